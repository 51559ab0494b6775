"""Same seed, same machine, same bits: every training stage, with deterministic=true and without.

python -m pytest tests/test_determinism.py
"""

from pathlib import Path

import pandas as pd
import pytest
from safetensors.torch import load_file
from toy import done, equal, small

CASES = {
    "simcse": ["stage=simcse", "chain=[simcse]"],
    "simcse in pieces": ["stage=simcse", "chain=[simcse]", "simcse.micro_batch=3"],
    "nli": ["stage=nli", "chain=[nli]"],
    "nli of three classes": ["stage=nli", "chain=[nli]", "nli.objective=classification"],
    "bi": ["stage=sts", "chain=[sts]", "sts.head=bi"],
    "cross": ["stage=sts", "chain=[sts]", "sts.head=cross", "sts.r_drop=1", "sts.flatten=0.5",
              "sts.label_noise=0.1", "sts.ema=0.9"],
    "folds": ["stage=sts", "chain=[sts]", "sts.folds=2", "sts.max_steps=2"],
}


@pytest.fixture
def words(make_encoder, tmp_path) -> list[str]:
    """Settings that all cases share, and inference pairs."""
    folder = tmp_path / "nli"
    folder.mkdir()
    rows = [(f"나는 {n}번 갔다", f"{n}번{word}", label) for n in range(8) for word, label in
            ((" 다녀왔다", "entailment"), ("도 안 갔다", "contradiction"), (" 갈까", "neutral"))]
    for name in ("train", "dev"):
        pd.DataFrame(rows, columns=["premise", "hypothesis", "label"]).to_csv(
            folder / f"{name}.csv", index=False)
    return small(make_encoder(), f"data.nli_dir={folder}", "nli.max_steps=3", "nli.batch_size=6",
                 "simcse.max_steps=3", "sts.max_steps=3")


def bits(folder: Path) -> tuple[dict, dict]:
    """All weights of the runs in folder, and all predictions, by path without names' identity."""
    tensors = {f"{path.relative_to(folder)}:{name}": tensor
               for path in sorted(folder.rglob("model/*.safetensors"))
               for name, tensor in load_file(path).items()}
    return tensors, {str(path.relative_to(folder)): path.read_bytes()
                     for path in sorted(folder.rglob("predictions/*.csv"))}


@pytest.mark.parametrize("case", CASES)
def test_same_seed_same_bits(command, competition, words, tmp_path, case):
    """Twice without deterministic=true and once with it: one set of weights and predictions."""
    found = []
    for number, more in enumerate(([], [], ["deterministic=true"])):
        done(command, *words, *CASES[case], *more, f"runs_dir=runs{number}")
        found.append(bits(tmp_path / f"runs{number}"))
    assert found[0][0]
    for tensors, predictions in found[1:]:
        assert equal(tensors, found[0][0])
        assert predictions == found[0][1]


def test_another_seed_is_another_model(command, competition, words, tmp_path):
    """Else the test above would say nothing."""
    for seed in (1, 2):
        done(command, *words, *CASES["bi"], f"seed={seed}", f"runs_dir=runs{seed}")
    one, other = (list(bits(tmp_path / f"runs{seed}")[1].values()) for seed in (1, 2))
    assert one != other
