"""FSDP in two processes equals one process without it, on a CPU; what is saved; resuming."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from test_processes import ROOT, STAGES, launch, nli_files, same_steps, without_dropout
from transformers import AutoModel

from pipeline import hardware, sharding
from pipeline.errors import UserError
from pipeline.history import read_history

CASES = {
    "simcse": STAGES["simcse"],
    "simcse-pieces": STAGES["simcse-pieces"],
    "nli-pieces": [*STAGES["nli"], "nli.micro_batch=2"],
    "nli-classes": ["nli.objective=classification", "nli.head=bi", "encoder.pooling=cls_mlp",
                    *STAGES["nli"]],
    "sts": STAGES["sts"],
    "sts-cross": ["sts.head=cross", "sts.max_steps=3", "sts.batch_size=267",  # 535 rows: 1 is left
                  "sts.learning_rate=1e-3", "sts.eval_every=3", "encoder.pooling=pooler",
                  "sts.awp=0.01"],
    "sts-more": [*STAGES["sts"], "sts.ema=0.9", "sts.fgm=0.5", "sts.interpolate=0.6",
                 "sts.layer_decay=0.8", "sts.r_drop=1"],
}
RESUMED = ["sts.head=cross", "sts.max_steps=6", "sts.batch_size=48", "sts.learning_rate=1e-3",
           "sts.eval_every=2", "encoder.pooling=cls", "sts.ema=0.8"]
SHARDED = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2",
           "FSDP_CPU_RAM_EFFICIENT_LOADING": "true"}

# Every case, then a run that is broken off after its second checkpoint and gone on with.
SCRIPT = """
import json, os, sys
sys.path.insert(0, ROOT)
import run
from pipeline import checkpoint, sharding, training

def tell(what, tensors):
    with open(f"shards-{os.environ['RANK']}.txt", "a") as file:
        print(what, sum(tensor.to_local().numel() for tensor in tensors),
              sum(tensor.numel() for tensor in tensors), file=file)

made = training.prepared
def prepared(*arguments):
    model, optimizer = made(*arguments)
    tell("held", list(model.parameters()))
    return model, optimizer
training.prepared = prepared

cases, resumed = json.loads(sys.argv[1])
for words in cases:
    assert run.main([*words, "runs_dir=runs2", "submissions_dir=subs2"]) == 0
assert run.main([*resumed, "runs_dir=whole"]) == 0

class Died(Exception): pass
save, saves = training.Keeper.save, []
def save_and_die(self):
    save(self)
    saves.append(1)
    tell("moments", [value["exp_avg"] for value in self.optimizer.state_dict()["state"].values()])
    if len(saves) == 2:
        raise Died
training.Keeper.save = save_and_die
try:
    run.main([*resumed, "runs_dir=broken"])
except Died:
    pass
assert run.main([*resumed, "runs_dir=broken"]) == 0
os.environ["FSDP_RESHARD_AFTER_FORWARD"] = "false"
assert run.main([*resumed, "runs_dir=half", "precision=bf16"]) == 0
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory, make_encoder):
    """The folder of all runs: runs1 by one process, runs2 by two with FSDP."""
    import run

    folder = tmp_path_factory.mktemp("sharded")
    before = Path.cwd()
    os.chdir(folder)
    still = without_dropout(make_encoder("bert"), folder / "still")
    files = nli_files(folder / "nli")

    def words(case: str, encoder: Path, more: list[str]) -> list[str]:
        stage = case.split("-")[0]
        return [f"stage={stage}", f"chain=[{stage}]", f"data.dir={ROOT / 'data' / 'sample'}",
                "device=cpu", f"encoder.path={encoder}", "encoder.max_length=32", "precision=fp32",
                f"data.nli_dir={files}", f"name={case}", *more]

    cases = [words(case, still, more) for case, more in CASES.items()]
    resumed = words("sts-resumed", make_encoder("bert"), RESUMED)
    try:
        for line in cases:
            assert run.main([*line, "runs_dir=runs1", "submissions_dir=subs1"]) == 0
    finally:
        os.chdir(before)
    script = folder / "all.py"
    script.write_text(SCRIPT.replace("ROOT", repr(str(ROOT))))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SHARDED.items():
            patch.setenv(name, value)
        ended = launch(2, str(script), json.dumps([cases, resumed]), cwd=folder)
    assert ended.returncode == 0, ended.stderr
    return folder


def only(folder: Path, pattern: str) -> Path:
    """The one path of this pattern."""
    (found,) = folder.glob(pattern)
    return found


@pytest.mark.parametrize("case", CASES)
def test_sharded_equals_unsharded(done, case):
    """Same losses and gradient norms step by step, same evaluations and final weights.

    Odd batch sizes give the processes unequal shares, and pieces of unequal number.
    """
    folder = done
    runs = [only(folder, f"runs{count}/*/{case}-{'[0-9a-f]' * 10}") for count in (1, 2)]
    same_steps(*runs, scores_within=2e-3)
    for file in ("model.safetensors", "head.safetensors"):
        assert (runs[0] / "model" / file).exists() == (runs[1] / "model" / file).exists()
        if (runs[0] / "model" / file).exists():
            tensors = [load_file(run / "model" / file) for run in runs]
            assert tensors[0].keys() == tensors[1].keys()
            for name, tensor in tensors[0].items():
                torch.testing.assert_close(tensors[1][name], tensor, atol=2e-5, rtol=1e-3)


def test_predictions_and_the_model_are_ordinary(done):
    """The submission agrees, and the saved folder loads in transformers without a missing key."""
    folder = done
    for case in ("sts", "sts-cross"):
        one, two = (np.loadtxt(only(folder, f"subs{count}/{case}-{'[0-9a-f]' * 10}.csv"),
                               delimiter=",", skiprows=1, usecols=1) for count in (1, 2))
        np.testing.assert_allclose(one, two, atol=1e-3)
        models = [only(folder, f"runs{count}/sts/{case}-{'[0-9a-f]' * 10}/model")
                  for count in (1, 2)]
        names = [{file.name for file in model.iterdir()} for model in models]
        assert names[0] == names[1]
        plain, loading = AutoModel.from_pretrained(models[1], output_loading_info=True,
                                                   add_pooling_layer=case == "sts-cross")
        assert not loading["missing_keys"]
        assert type(plain).__name__ == json.loads(
            (models[1] / "config.json").read_text())["architectures"][0] == "BertModel"


def test_parameters_and_moments_are_in_shards(done):
    """Each process holds about half of the parameters and of AdamW's moments."""
    for rank in (0, 1):
        lines = [line.split() for line in
                 (done / f"shards-{rank}.txt").read_text().splitlines()]
        assert [line[0] for line in lines].count("held") == len(CASES) + 4
        assert [line[0] for line in lines].count("moments") == 2 + 1 + 3
        for _, local, whole in lines:
            assert 0.45 < int(local) / int(whole) < 0.55


def test_a_broken_run_goes_on_exactly(done):
    """With dropout and a cross head: same history, same weights bit for bit."""
    folder = done
    whole, broken = (only(folder, f"{name}/sts/*-*") for name in ("whole", "broken"))
    one, two = (read_history(run / "history.jsonl") for run in (whole, broken))
    for line in one + two:
        line.pop("seconds", None)
    assert one == two
    assert one[-1]["step"] == 6
    for file in ("model.safetensors", "head.safetensors"):
        first, second = (load_file(run / "model" / file) for run in (whole, broken))
        assert all(torch.equal(second[name], tensor) for name, tensor in first.items())


def test_half_precision_trains_and_saves_fp32(done):
    """bf16 computes near the fp32 run's loss, and what is saved is fp32; layers stay gathered."""
    folder = done
    whole, half = (only(folder, f"{name}/sts/*-*") for name in ("whole", "half"))
    one, two = (read_history(run / "history.jsonl") for run in (whole, half))
    assert one[1]["loss"] == pytest.approx(two[1]["loss"], rel=0.05)
    assert one[1]["loss"] != two[1]["loss"]
    tensors = load_file(half / "model" / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}


@pytest.mark.parametrize(("name", "value", "words"), [
    ("FSDP_VERSION", "1", "fsdp_version 2, got 1"),
    ("FSDP_OFFLOAD_PARAMS", "true", "fsdp_offload_params false, got true"),
    ("FSDP_ACTIVATION_CHECKPOINTING", "true", "fsdp_activation_checkpointing false, got true"),
    ("FSDP_AUTO_WRAP_POLICY", "SIZE_BASED_WRAP", "got size_based_wrap"),
    ("FSDP_IGNORED_MODULES", "pooler", "fsdp_ignored_modules none, got pooler"),
])
def test_what_is_not_supported_is_refused(monkeypatch, name, value, words):
    """What this module does not do ends in one line before anything begins."""
    for key, there in (SHARDED | {name: value}).items():
        monkeypatch.setenv(key, there)
    with pytest.raises(UserError, match=words):
        hardware.start("cpu", "fp32", 0, False)


def test_one_process_and_fp16_are_refused(monkeypatch):
    """Nothing to shard over; a scaler that would judge its own shard alone."""
    for key, there in SHARDED.items():
        monkeypatch.setenv(key, there)
    with pytest.raises(UserError, match="expected several processes for FSDP, got 1"):
        hardware.start("cpu", "fp32", 0, False)
    with pytest.raises(UserError, match="expected bf16 or fp32 under FSDP, got fp16"):
        hardware.start("cuda", "fp16", 0, False)


def test_unsharded_nothing_happens(monkeypatch):
    """Without the variable nothing is asked, and tensors and models stay what they are."""
    monkeypatch.delenv("ACCELERATE_USE_FSDP", raising=False)
    assert not sharding.wanted()
    model = torch.nn.Linear(2, 2)
    weight = model.weight
    assert not sharding.is_sharded(model)
    assert sharding.plain(weight) is weight
    assert sharding.norms([weight, model.bias]) == pytest.approx(
        [weight.norm().item(), model.bias.norm().item()])
    assert sharding.norms([]) == []
    assert sharding.whole({"a": weight}) == {"a": weight}
    sharding.gather(model)
    assert model.weight is weight
