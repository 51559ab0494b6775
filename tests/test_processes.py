"""Two processes equal one: losses, weights, evaluations; who writes; resuming."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from pipeline import processes
from pipeline.history import read_history

ROOT = Path(__file__).resolve().parent.parent


def launch(count: int, script: str, *words: str, cwd: Path) -> subprocess.CompletedProcess:
    """Runs a script in `count` processes."""
    launcher = ["-m", "torch.distributed.run", "--nproc_per_node", str(count),
                "--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0"]
    return subprocess.run([sys.executable, *launcher, script, *words], cwd=cwd,
                          env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
                          timeout=240, check=False)


def without_dropout(encoder: Path, folder: Path) -> Path:
    """A copy of an encoder without dropout, so that one and two processes draw no different masks.
    """
    folder.mkdir()
    for file in encoder.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def still_encoder(make_encoder, tmp_path) -> Path:
    """A tiny encoder without dropout."""
    return without_dropout(make_encoder("bert"), tmp_path / "still")


def nli_files(folder: Path) -> Path:
    """A small set of inference pairs, a premise without a contradiction among them."""
    folder.mkdir()
    rows = [f"나는 {n}번 갔다,{hypothesis},{label}" for n in range(12) for hypothesis, label in
            ((f"{n}번 다녀왔다", "entailment"), (f"{n}번도 안 갔다", "contradiction"),
             (f"{n}번 갈까", "neutral")) if not (n == 3 and label == "contradiction")]
    for name in ("train", "dev"):
        (folder / f"{name}.csv").write_text("\n".join(["premise,hypothesis,label", *rows]) + "\n")
    return folder


STAGES = {
    "simcse": ["simcse.max_steps=3", "simcse.batch_size=10", "simcse.dropout=0",
               "simcse.learning_rate=1e-3", "simcse.eval_every=2"],
    "simcse-pieces": ["simcse.max_steps=3", "simcse.batch_size=10", "simcse.dropout=0",
                      "simcse.learning_rate=1e-3", "simcse.eval_every=2", "simcse.micro_batch=3",
                      "simcse.temperature=0.06"],  # pieces alone do not make another run
    "nli": ["nli.max_steps=3", "nli.batch_size=7", "nli.learning_rate=1e-3", "nli.eval_every=2"],
    "sts": ["sts.max_steps=4", "sts.batch_size=9", "sts.head=bi", "sts.learning_rate=1e-3",
            "sts.eval_every=2"],
    "sts-more": ["sts.max_steps=3", "sts.batch_size=9", "sts.learning_rate=1e-3",
                 "sts.eval_every=2", "sts.r_drop=1", "sts.binary_weight=0.5", "sts.fgm=0.3",
                 "sts.dropout_samples=2", "sts.ema=0.8", "sts.layer_decay=0.8", "sts.flatten=0.5"],
    "sts-bi": ["sts.max_steps=3", "sts.batch_size=9", "sts.head=bi", "sts.learning_rate=1e-3",
               "sts.eval_every=2", "sts.r_drop=1", "sts.binary_weight=0.5", "sts.awp=0.01"],
    "sts-folds": ["sts.max_steps=2", "sts.batch_size=9", "sts.learning_rate=1e-3",
                  "sts.eval_every=1", "sts.folds=2", "sts.use_dev=true", "sts.r_drop=1"],
    "distill": ["distill.max_steps=3", "distill.batch_size=9", "distill.learning_rate=1e-3",
                "distill.eval_every=2", "distill.pairs=30"],  # taught by the run of "sts"
}
RUN = "-" + 10 * "?"  # after the case's name: the ten digits of its run


@pytest.fixture
def both(competition, still_encoder, tmp_path, command) -> dict[int, Path]:
    """Every case's stage done by one process and by two: the folders of their runs."""
    files = nli_files(tmp_path / "nli")
    lines = []
    for case, words in STAGES.items():
        stage = case.split("-")[0]
        lines.append([f"stage={stage}", f"chain=[{stage}]", f"data.dir={competition}",
                      f"encoder.path={still_encoder}", "encoder.max_length=32", "device=cpu",
                      "precision=fp32", f"data.nli_dir={files}", f"name={case}", *words])
    for words in lines:
        if "stage=distill" in words:
            teacher = next((tmp_path / "runs1/sts").glob("sts" + RUN))
            words.append(f"distill.teachers=[{teacher}]")
        code, _, err = command(*words, "runs_dir=runs1", "submissions_dir=subs1")
        assert code == 0, err
    script = tmp_path / "all.py"
    script.write_text("import json, sys\n"
                      f"sys.path.insert(0, {str(ROOT)!r})\n"
                      "import run\n"
                      "for words in json.loads(sys.argv[1]):\n"
                      "    words += ['runs_dir=runs2', 'submissions_dir=subs2']\n"
                      "    assert run.main(words) == 0\n")
    done = launch(2, str(script), json.dumps(lines), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return {count: tmp_path / f"runs{count}" for count in (1, 2)}


def same_steps(first: Path, other: Path, scores_within: float) -> None:
    """Two runs' losses, norms, tokens and rates agree step by step, and their evaluations."""
    one, two = (read_history(run / "history.jsonl") for run in (first, other))
    assert [line["step"] for line in one] == [line["step"] for line in two]
    for first, second in zip(one, two, strict=True):
        for part in ("loss", "grad_norm", "tokens", "lr"):
            assert first.get(part, 0) == pytest.approx(second.get(part, 0), rel=2e-4), part
        for part in ("eval", "geometry"):
            assert first.get(part, {}) == pytest.approx(second.get(part, {}), abs=scores_within)


def test_two_processes_equal_one(both, still_encoder, tmp_path):
    """Same losses and gradient norms step by step, same weights and evaluations to rounding.

    Odd batch sizes give the processes unequal shares.
    """
    start = load_file(still_encoder / "model.safetensors")
    for case in STAGES:
        runs = [next((folder / case.split("-")[0]).glob(case + RUN)) for folder in both.values()]
        if case == "sts-folds":
            runs = [next(run.glob("folds/sts/fold2-*")) for run in runs]
        same_steps(*runs, scores_within=2e-4)
        weights = [load_file(run / "model" / "model.safetensors") for run in runs]
        for name, tensor in weights[0].items():
            torch.testing.assert_close(weights[1][name], tensor, atol=5e-5, rtol=1e-3)
        assert any(not torch.equal(start[name], weights[0][name]) for name in start)
    names = sorted(path.name for path in (tmp_path / "subs1").glob("*.csv"))
    assert len(names) == 4
    for name in names:
        one, two = (np.loadtxt(tmp_path / f"subs{count}" / name, delimiter=",", skiprows=1,
                               usecols=1) for count in (1, 2))
        np.testing.assert_allclose(one, two, atol=1e-3)
    one, two = (pd.read_csv(next(folder.glob(f"distill/distill{RUN}/silver.csv")))
                for folder in both.values())
    assert one.drop(columns="label").equals(two.drop(columns="label"))
    np.testing.assert_allclose(one["label"], two["label"], atol=1e-3)
    one, two = (pd.read_csv(next(folder.glob(f"sts/sts-folds{RUN}/predictions/oof.csv")))
                for folder in both.values())
    assert one[["id", "fold"]].equals(two[["id", "fold"]])
    np.testing.assert_allclose(one["prediction"], two["prediction"], atol=1e-3)


def test_another_number_of_processes_is_refused(competition, still_encoder, tmp_path):
    """A checkpoint of one process is not resumed by two: exit 2, one line that says both."""
    words = ["stage=sts", "chain=[sts]", f"data.dir={competition}", "device=cpu",
             f"encoder.path={still_encoder}", "encoder.max_length=32", "sts.head=bi",
             "sts.max_steps=40", "sts.batch_size=8", "sts.eval_every=2", "precision=fp32"]
    killed = (f"import os, signal, sys; sys.path.insert(0, {str(ROOT)!r})\n"
              "import run, pipeline.training as training\n"
              "save = training.Keeper.save\n"
              "def save_and_die(self): save(self); os.kill(os.getpid(), signal.SIGKILL)\n"
              "training.Keeper.save = save_and_die\n"
              "run.main(sys.argv[1:])")
    subprocess.run([sys.executable, "-c", killed, *words], cwd=tmp_path, capture_output=True,
                   env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=60, check=False)
    (run,) = (tmp_path / "runs" / "sts").glob("*-*")
    assert json.loads((run / "checkpoints/newest/state.json").read_text())["step"] == 2
    done = launch(2, str(ROOT / "run.py"), *words, cwd=tmp_path)
    assert done.returncode != 0
    assert "error:" in done.stderr
    assert "expected 1 processes, as the run was begun with, got 2" in done.stderr


def test_processes_keep_one_model_in_bf16(competition, still_encoder, tmp_path):
    """Evaluations in between, which read with other weights, leave the gradients' sum alone."""
    lines = [[f"stage={stage}", f"chain=[{stage}]", f"data.dir={competition}", "device=cpu",
              "precision=bf16", f"encoder.path={still_encoder}", "encoder.max_length=32",
              f"{stage}.max_steps=3", f"{stage}.batch_size=8", f"{stage}.learning_rate=1e-3",
              f"{stage}.eval_every=1", *words] for stage, words in (
                  ("simcse", []), ("sts", ["sts.head=bi"]), ("sts", ["sts.ema=0.5"]))]
    script = tmp_path / "compared.py"
    script.write_text("import json, sys\n"
                      f"sys.path.insert(0, {str(ROOT)!r})\n"
                      "import run, pipeline.training as training\n"
                      "from pipeline import processes\n"
                      "save = training.Keeper.save\n"
                      "def compared(self):\n"
                      "    sums = [p.detach().double().sum().item() for p in\n"
                      "            self.model.parameters()]\n"
                      "    assert processes.from_all(sums) == [sums] * 2, self.state.step\n"
                      "    save(self)\n"
                      "training.Keeper.save = compared\n"
                      "for words in json.loads(sys.argv[1]):\n"
                      "    assert run.main(words) == 0\n")
    done = launch(2, str(script), json.dumps(lines), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    histories = [read_history(file) for file in (tmp_path / "runs").glob("*/*/history.jsonl")]
    assert [[line["step"] for line in history if "eval" in line]
            for history in histories] == [[0, 1, 2, 3]] * 3


def test_one_process_does_nothing():
    """Without a process group all rows are one's own and gathering is the identity."""
    rows = np.arange(5)
    assert processes.world() == 1
    assert processes.rank() == 0
    np.testing.assert_array_equal(processes.own(rows), rows)
    assert list(processes.own_of("abc")) == ["a", "b", "c"]
    vectors = torch.randn(5, 3)
    assert processes.gathered(vectors, 5) is vectors
    assert processes.from_all(7) == [7]
