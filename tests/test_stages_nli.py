"""What the stage nli learns from, writes, hands on and refuses.

python -m pytest tests/test_stages_nli.py
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from refusal import contents, refusal
from safetensors.torch import load_file
from toy import MODEL, RUN, STS, Crash, done, equal, files_of, only, read_json, small, timeless

from pipeline.history import read_history
from pipeline.nli import LABELS
from pipeline.stages import nli

ENDINGS = {"entailment": "은 좋다", "neutral": "도 올까요", "contradiction": "은 나쁘다"}
SUBJECTS = ["영화", "버스", "회의", "발표", "학교", "사람", "표", "시간"]


def write_nli(folder: Path, dev_labels: tuple[str, ...] = (*LABELS, "entailment")) -> Path:
    """Eight premises with one hypothesis a class, told apart by their endings alone."""
    folder.mkdir(exist_ok=True)
    for name, labels in (("train", LABELS), ("dev", dev_labels)):
        rows = [f"{subject}에 대해,{subject}{ENDINGS[label] + '!' * (place == 3)},{label}"
                for subject in SUBJECTS for place, label in enumerate(labels)]
        text = "\n".join(["premise,hypothesis,label", *rows]) + "\n"
        (folder / f"{name}.csv").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def words(competition, make_encoder, tmp_path) -> list[str]:
    """A command line for a few steps on a small set of inference pairs."""
    write_nli(tmp_path / "nli")
    return small(make_encoder(), "data.nli_dir=nli", "chain=[nli]", "nli.max_steps=4",
                 "nli.batch_size=6", "nli.eval_every=2", "nli.learning_rate=1e-3",
                 "nli.geometry_every=4")


def test_contrastive(command, words, make_encoder, tmp_path):
    """Trained on the triplets; model, geometry and dev correlations are written as by simcse."""
    done(command, "stage=nli", *words, "nli.max_steps=12", "nli.micro_batch=5")
    run = only(tmp_path / "runs/nli")
    assert files_of(run) == RUN
    metrics = read_json(run / "metrics.json")
    assert metrics["triplets"] == 8
    assert metrics["steps"] == 12
    assert metrics["dev"]["n"] == 24
    assert -1 <= metrics["dev"]["spearman"]["value"] <= 1
    assert metrics["geometry"].keys() == {"alignment", "uniformity", "mean_cosine"}
    lines = read_history(run / "history.jsonl")
    assert [line["step"] for line in lines if "geometry" in line] == [0, 2, 4, 6, 8, 10, 12]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert np.mean(losses[-3:]) < np.mean(losses[:3]) - 0.2
    assert "8 triplets, 8 of them with a contradiction" in (run / "log.txt").read_text()
    before, after = (load_file(path / "model.safetensors") for path in
                     (make_encoder(), run / "model"))
    assert sum(not torch.equal(after[name], before[name]) for name in after) > 20


@pytest.mark.parametrize("head", ["cross", "bi"])
def test_classification(command, words, make_encoder, tmp_path, head):
    """Either head learns separable classes; model/ is the encoder's alone."""
    done(command, "stage=nli", *words, "nli.objective=classification", f"nli.head={head}",
         "nli.max_steps=90", "nli.batch_size=12", "nli.eval_every=30", "nli.learning_rate=5e-3")
    run = only(tmp_path / "runs/nli")
    assert files_of(run) == RUN
    metrics = read_json(run / "metrics.json")
    assert metrics["pairs"] == 24
    assert metrics["steps"] == 90
    assert metrics["nli_dev"]["n"] == 32
    accuracy = metrics["nli_dev"]["accuracy"]
    assert accuracy["value"] > 0.75  # the commonest class alone: 0.5
    assert 0.5 < accuracy["low"] <= accuracy["value"] <= accuracy["high"] <= 1
    evaluated = {line["step"]: line["eval"]["accuracy"]
                 for line in read_history(run / "history.jsonl") if "eval" in line}
    assert list(evaluated) == [0, 30, 60, 90]
    assert evaluated[metrics["best_step"]] == max(evaluated.values()) == accuracy["value"]
    assert "the commonest class alone: 0.5000" in (run / "log.txt").read_text(encoding="utf-8")
    names = set(load_file(run / "model/model.safetensors"))
    assert names == {name for name in load_file(make_encoder() / "model.safetensors")
                     if not name.startswith("pooler.")}


def test_chain_of_three(command, words, tmp_path):
    """simcse, nli and sts in order, each from the model of the one before."""
    done(command, "stage=sts", *words, "chain=[simcse,nli,sts]", "nli.objective=classification")
    runs = [only(tmp_path / "runs" / stage) for stage in ("simcse", "nli", "sts")]
    manifests = [read_json(run / "manifest.json") for run in runs]
    assert [manifest["status"] for manifest in manifests] == ["complete"] * 3
    starts = [manifest["shape"]["start"] for manifest in manifests]
    assert "run" not in starts[0]
    assert starts[1:] == [{"run": manifest["identity"]} for manifest in manifests[:2]]
    times = [(run / "model/model.safetensors").stat().st_mtime_ns for run in runs]
    assert times == sorted(times)
    assert files_of(runs[1]) == RUN
    assert files_of(runs[2]) == RUN | STS | {"model/head.safetensors"}
    assert files_of(runs[1] / "model") == {name.removeprefix("model/") for name in MODEL}


def test_sts_starts_from_nlis_weights(command, words, tmp_path):
    """With a learning rate of nearly nothing sts leaves nli's weights as they are."""
    done(command, "stage=sts", *words, "chain=[nli,sts]", "sts.max_steps=1",
         "sts.learning_rate=1e-12", "sts.weight_decay=0")
    tuned, last = (load_file(only(tmp_path / "runs" / stage) / "model/model.safetensors")
                   for stage in ("nli", "sts"))
    assert tuned.keys() == last.keys()
    for name, tensor in tuned.items():
        torch.testing.assert_close(last[name], tensor, rtol=1e-5, atol=1e-8)


def test_identity(command, words, tmp_path, caplog):
    """Settings of sts alone reuse the nli run; other pairs, settings or objectives do not."""
    done(command, "stage=nli", *words)
    first = only(tmp_path / "runs/nli")
    caplog.clear()
    done(command, "stage=nli", *words, "sts.learning_rate=2e-3", "sts.head=bi", "simcse.dropout=0",
         "chain=[nli,sts]", "name=other")
    assert f"nli: reusing runs/nli/{first.name}" in caplog.text
    assert only(tmp_path / "runs/nli") == first
    changes = (["nli.hard_negative_weight=2"], ["nli.objective=classification"], ["seed=43"])
    for count, change in enumerate(changes, start=2):
        done(command, "stage=nli", *words, *change)
        assert len(list((tmp_path / "runs/nli").glob("*-*"))) == count
    path = tmp_path / "nli/train.csv"
    path.write_text(path.read_text().replace("학교도 올까요", "학교도 쉴까요"))
    done(command, "stage=nli", *words)
    assert len(list((tmp_path / "runs/nli").glob("*-*"))) == len(changes) + 2


@pytest.mark.parametrize(("place", "name", "change"), [
    (nli, "info_nce", []), (nli.F, "cross_entropy", ["nli.objective=classification"])])
def test_failed_and_resumed(command, words, tmp_path, monkeypatch, place, name, change):
    """An exception in the loss leaves a run that the same command completes as if undisturbed."""
    words = ["stage=nli", *words, *change, "nli.max_steps=7"]
    done(command, *words, "runs_dir=undisturbed")
    calls, loss = [], getattr(place, name)

    def failing(*args):
        calls.append(args)
        if len(calls) == 6:
            raise Crash
        return loss(*args)

    with monkeypatch.context() as patch:
        patch.setattr(place, name, failing)
        with pytest.raises(Crash):
            command(*words)
    run, other = only(tmp_path / "runs/nli"), only(tmp_path / "undisturbed/nli")
    assert read_json(run / "manifest.json")["status"] == "running"
    assert read_json(run / "checkpoints/newest/state.json")["step"] == 4
    done(command, *words)
    assert "resumed at step 4 of 7" in (run / "log.txt").read_text(encoding="utf-8")
    assert run.name == other.name
    assert files_of(run) == RUN
    assert equal(*(load_file(folder / "model/model.safetensors") for folder in (run, other)))
    assert read_json(run / "metrics.json") == read_json(other / "metrics.json")
    histories = [timeless(read_history(folder / "history.jsonl")) for folder in (run, other)]
    assert histories[0] == histories[1]


@pytest.mark.parametrize(("change", "message"), [
    (["nli.batch_size=9"], "nli.batch_size: expected at most 8, the number of training rows, got "
                           "9"),
    (["nli.batch_size=25", "nli.objective=classification"],
     "nli.batch_size: expected at most 24, the number of training rows, got 25"),
    (["data.nli_dir=none"], "data.nli_dir=none: expected a .csv, .tsv or .json with 'train' in its "
                            "name, got no files"),
    (["chain=[sts]"], "chain: expected distinct stages of simcse, nli, distill, sts with nli "
                      "among them")])
def test_refused(command, words, tmp_path, change, message):
    """Too few rows, no files and a chain without nli: one line, and nothing is written."""
    before = contents(tmp_path)
    assert refusal(command("stage=nli", *words, *change)).startswith(message)
    assert contents(tmp_path) == before


def test_dev_without_a_usable_row(command, words, tmp_path):
    """A dev file whose rows are all marked `-` is refused before anything is trained."""
    (tmp_path / "nli/dev.csv").write_text("premise,hypothesis,label\n영화,버스,-\n")
    before = contents(tmp_path)
    said = refusal(command("stage=nli", *words, "nli.objective=classification"))
    assert "dev" in said
    assert contents(tmp_path) == before
