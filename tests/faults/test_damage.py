"""Truncated and bit-flipped files: found, named, and the work goes back to the last good state.

python -m pytest tests/faults/test_damage.py
"""

import os
import shutil
import time
from pathlib import Path

import pytest
from refusal import contents, refusal
from toy import (
    Crash,
    assert_same,
    done,
    only,
    read_json,
    small,
    stopping,
    toy_task,
    toy_train,
    weights,
)

from pipeline import runs
from pipeline.history import read_history
from pipeline.runs import read_manifest


def flipped(path: Path) -> None:
    """Flips the lowest bit of a letter or digit in the middle of the file."""
    content = bytearray(path.read_bytes())
    place = next(place for place in range(len(content) // 2, len(content))
                 if chr(content[place]).isalnum())
    content[place] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    """Takes the file's second half away."""
    os.truncate(path, path.stat().st_size // 2)


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    """Where the finished run of this module is kept."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def words(make_encoder) -> list[str]:
    """A short sts run with a calibration."""
    return ["stage=sts", *small(make_encoder(), "chain=[sts]", "sts.max_steps=2",
                                "sts.calibrate=monotone")]


@pytest.fixture
def finished(command, competition, words, tmp_path, cache) -> Path:
    """The folder of that run, finished."""
    if not (cache / "runs").exists():
        done(command, *words)
        shutil.copytree(tmp_path / "runs", cache / "runs")
    elif not (tmp_path / "runs").exists():
        shutil.copytree(cache / "runs", tmp_path / "runs")
    return only(tmp_path / "runs/sts")


@pytest.fixture
def pair(command, competition, make_encoder, tmp_path, cache) -> list[Path]:
    """Two finished runs with a bi head and a calibration, of two seeds."""
    if not (cache / "pair").exists():
        for seed in (1, 2):
            done(command, "stage=sts", *small(
                make_encoder(), "chain=[sts]", "sts.max_steps=2", "sts.head=bi", f"seed={seed}",
                "sts.calibrate=monotone"))
        shutil.copytree(tmp_path / "runs", cache / "pair")
        shutil.rmtree(tmp_path / "submissions")
    shutil.copytree(cache / "pair", tmp_path / "runs", dirs_exist_ok=True)
    return sorted((tmp_path / "runs/sts").glob("*-*"))


@pytest.mark.parametrize("spoil", [flipped, cut])
@pytest.mark.parametrize("name", ["manifest.json", "model/model.safetensors", "history.jsonl",
                                  "calibration.csv", "predictions/test.csv", "config.yaml"])
def test_damage_of_a_finished_run(command, finished, words, tmp_path, caplog, name, spoil):
    """The same command names the file and makes the run anew, with the same result."""
    before = {path.name: path.read_bytes() for path in (finished / "predictions").iterdir()}
    spoil(finished / name)
    done(command, *words)
    assert f"{finished.relative_to(tmp_path) / name} is " in caplog.text
    assert "reusing" not in caplog.text
    assert {path.name: path.read_bytes()
            for path in (finished / "predictions").iterdir()} == before
    caplog.clear()
    done(command, *words)
    assert "reusing" in caplog.text


ON_A_RUN = {"predict": ["run=RUN", "pairs=data/test.csv"], "diagnose": ["run=RUN"],
            "ensemble": ["data.dir=data", "runs=[RUN,OTHER]"],
            "export": ["run=RUN", "export.dir=out"],
            "compare": ["data.dir=data", "compare.encoders=[RUN]"]}


@pytest.mark.parametrize("spoil", [flipped, cut, Path.unlink])
@pytest.mark.parametrize("name", ["predictions/dev.csv", "model/model.safetensors", "metrics.json",
                                  "manifest.json", "config.yaml", "calibration.csv"])
@pytest.mark.parametrize("stage", ON_A_RUN)
def test_a_damaged_run_is_not_used(command, pair, tmp_path, stage, name, spoil):
    """Refused and named by every stage that looks at finished runs; nothing is written."""
    run, other = (path.relative_to(tmp_path) for path in pair)
    spoil(run / name)
    before = contents(tmp_path)
    said = refusal(command(f"stage={stage}", *(
        word.replace("RUN", str(run)).replace("OTHER", str(other)) for word in ON_A_RUN[stage])))
    if name == "manifest.json" and not (run / name).exists():
        assert str(run) in said
    else:
        assert said == (f"{run / name}: expected the file that the run wrote, got one that is "
                        "missing or changed since; the command that made the run repairs it")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("stage", ON_A_RUN)
def test_whole_runs_are_used(command, pair, tmp_path, stage):
    """The same commands on the runs as they were written."""
    run, other = (path.relative_to(tmp_path) for path in pair)
    done(command, f"stage={stage}", *(
        word.replace("RUN", str(run)).replace("OTHER", str(other)) for word in ON_A_RUN[stage]))


@pytest.mark.parametrize("stage", ["predict", "diagnose", "export"])
def test_a_damaged_manifest_of_a_fold(command, competition, make_encoder, tmp_path, cache, stage):
    """It has a checksum of its own, which counts as much."""
    kept = cache / "folds"
    if not kept.exists():
        done(command, "stage=sts", *small(make_encoder(), "chain=[sts]", "sts.max_steps=2",
                                          "sts.folds=2"))
        shutil.copytree(tmp_path / "runs", kept)
    shutil.copytree(kept, tmp_path / "runs", dirs_exist_ok=True)
    run = only(tmp_path / "runs/sts").relative_to(tmp_path)
    manifest = only(run / "folds/sts", "fold2-*") / "manifest.json"
    cut(manifest)
    said = refusal(command(f"stage={stage}", *(word.replace("RUN", str(run))
                                               for word in ON_A_RUN[stage]), *(
        ["export.fold=1"] if stage == "export" else [])))
    assert said.startswith(f"{manifest}: expected the file that the run wrote")


@pytest.mark.parametrize("stage", ["diagnose", "export"])
@pytest.mark.parametrize("name", ["history.jsonl", "metrics.json"])
def test_damage_of_a_run_that_led_to_another(command, competition, make_encoder, tmp_path, cache,
                                             stage, name):
    """A report and a card tell of the whole chain: its records must be as they were written."""
    kept = cache / "chain"
    if not kept.exists():
        done(command, "stage=sts", *small(make_encoder(), "sts.max_steps=2"))
        shutil.copytree(tmp_path / "runs", kept)
    shutil.copytree(kept, tmp_path / "runs", dirs_exist_ok=True)
    run = only(tmp_path / "runs/sts").relative_to(tmp_path)
    file = only(tmp_path / "runs/simcse").relative_to(tmp_path) / name
    cut(file)
    said = refusal(command(f"stage={stage}", *(word.replace("RUN", str(run))
                                               for word in ON_A_RUN[stage])))
    assert said.startswith(f"{file}: expected the file that the run wrote")
    assert not (tmp_path / "out").exists()


def test_every_bit_of_a_manifest_counts(finished):
    """Whichever is flipped: nothing is believed of it."""
    path = finished / "manifest.json"
    content = path.read_bytes()
    for place in range(0, len(content), 97):
        spoilt = bytearray(content)
        spoilt[place] ^= 2
        path.write_bytes(spoilt)
        found = read_manifest(finished)
        path.write_bytes(content)
        assert found in ({}, read_manifest(finished)), place  # equal: white space between values
    assert read_manifest(finished)["status"] == "complete"


@pytest.mark.parametrize("spoil", [flipped, cut, Path.unlink, lambda path: path.write_bytes(b"")])
def test_damaged_history_of_an_interrupted_run(tmp_path, caplog, spoil):
    """Restored from the checkpoint: nothing is trained twice, and the end is the undisturbed."""
    model, state = toy_train(tmp_path / "left alone")
    alone = weights(model), state, read_history(tmp_path / "left alone" / "history.jsonl")
    folder = tmp_path / "disturbed"
    with pytest.raises(Crash):
        toy_train(folder, toy_task(loss=stopping(10, None)))
    spoil(folder / "history.jsonl")
    model, state = toy_train(folder)
    assert "history.jsonl is missing or damaged: restored from the checkpoint" in caplog.text
    assert "resumed at step 8 of 26" in caplog.text or state.step == 26
    assert_same(folder, model, state, alone)


def test_corpus_of_an_interrupted_run(command, competition, make_encoder, tmp_path, monkeypatch):
    """simcse's Arrow file is made again with every command: what stands there is not believed."""
    from pipeline.stages import simcse

    words = ["stage=simcse", *small(make_encoder())]
    done(command, *words, "runs_dir=alone")
    with monkeypatch.context() as patch:
        calls, info_nce = [], simcse.info_nce

        def loss(*arguments):
            calls.append(arguments)
            if len(calls) == 3:
                raise Crash
            return info_nce(*arguments)

        patch.setattr(simcse, "info_nce", loss)
        with pytest.raises(Crash):
            command(*words)
    run = only(tmp_path / "runs/simcse")
    cut(run / "checkpoints/corpus-0.arrow")
    done(command, *words)
    assert (run / "model/model.safetensors").read_bytes() == (
        only(tmp_path / "alone/simcse") / "model/model.safetensors").read_bytes()


def test_clock_that_goes_back(command, finished, words, competition, tmp_path, monkeypatch):
    """A run that ends before it began is as finished as others, reused and listed."""
    times = iter(["2031-01-01T00:00:00+00:00"] + ["1999-01-01T00:00:00+00:00"] * 9)
    monkeypatch.setattr(runs, "now", lambda: next(times))
    done(command, *words, "seed=7")
    run = next(path for path in (tmp_path / "runs/sts").glob("*-*") if path != finished)
    manifest = read_json(run / "manifest.json")
    assert manifest["started"] > manifest["finished"]
    assert manifest["seconds"] >= 0
    done(command, *words, "seed=7")
    assert next(times).startswith("1999")  # the second command wrote no manifest
    assert run.name in done(command, "stage=board", f"data.dir={competition}")


def test_clock_that_goes_back_within_a_training(tmp_path, monkeypatch):
    """By an hour at every look, and to a time after a restart: seconds are those that passed."""
    model, state = toy_train(tmp_path / "left alone")
    alone = weights(model), state, read_history(tmp_path / "left alone" / "history.jsonl")
    hours, passed = iter(range(10**6, 0, -1)), time.monotonic
    monkeypatch.setattr(time, "time", lambda: 3600.0 * next(hours))
    folder, began = tmp_path / "disturbed", passed()
    with pytest.raises(Crash):
        toy_train(folder, toy_task(loss=stopping(15, None)))
    monkeypatch.setattr(time, "monotonic", lambda: passed() - began - 100)  # the machine restarted
    model, state = toy_train(folder)
    assert 0 < state.seconds <= passed() - began
    lines = read_history(folder / "history.jsonl")
    assert all(0 <= line["seconds"] < 60 for line in lines if "loss" in line)
    assert_same(folder, model, state, alone)
