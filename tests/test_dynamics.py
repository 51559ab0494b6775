"""The grid of traced runs: what is run, reused, resumed, written and refused.

python -m pytest tests/test_dynamics.py
"""

import os
import signal

import numpy as np
import pandas as pd
import pytest
from matplotlib import image
from refusal import refusal
from toy import done, only, read_json, small

from pipeline.diagnostics.trajectories import METRICS, read_trajectory
from pipeline.history import read_history
from pipeline.stages import contrastive

FILES = {"dynamics.json", "table.csv", "trajectories.csv", "figure2.png", "trajectories.png",
         "prediction.png", "layers.png"}


def words(encoder, *more):
    """A grid of two temperatures and two dropouts of six steps."""
    return small(encoder, "dynamics.temperatures=[0.05,0.5]", "dynamics.dropouts=[0.1,0.3]",
                 "simcse.max_steps=6", "simcse.geometry_every=2", *more)


def test_grid(command, competition, make_encoder, tmp_path, caplog):
    """Every cell has its trajectory, the files hold its numbers, and nothing is trained twice."""
    done(command, "stage=dynamics", *words(make_encoder()))
    folder = only(tmp_path / "runs/dynamics")
    assert {path.name for path in folder.iterdir()} == FILES
    found, table = read_json(folder / "dynamics.json"), pd.read_csv(folder / "table.csv")
    assert [(cell["temperature"], cell["dropout"]) for cell in found["cells"]] == [
        (temperature, dropout) for temperature in (0.05, 0.5) for dropout in (0.1, 0.3)]
    series = pd.read_csv(folder / "trajectories.csv")
    for place, cell in enumerate(found["cells"]):
        run = tmp_path / cell["run"]
        settings = read_json(run / "manifest.json")["shape"]["settings"]
        assert (settings["temperature"], settings["dropout"]) == (cell["temperature"],
                                                                  cell["dropout"])
        own = read_trajectory(run)
        assert own["step"].tolist() == [0, 2, 4, 6]
        mine = series[series["cell"] == place + 1]
        np.testing.assert_allclose(mine[[*METRICS]], own[[*METRICS]])
        scores = {line["step"]: line["eval"]["spearman"]
                  for line in read_history(run / "history.jsonl") if "eval" in line}
        assert cell["final"] == scores[6]
        assert cell["best"] == max(scores.values()) == scores[cell["best_step"]]
        assert table["lost"][place] == pytest.approx(max(scores.values()) - scores[6])
        assert own["end layer 1"].iloc[-1] == pytest.approx(1)
        assert own["change_with_end"].iloc[:1].isna().all()
        assert 0 < own["change_with_end"][1] < 1
        assert own["effective_rank"].between(1, 32).all()
    for name in FILES:
        if name.endswith("png"):
            picture = image.imread(folder / name)
            assert len(np.unique(picture.reshape(-1, picture.shape[2]), axis=0)) > 20
    for sentence in found["answers"]:
        assert sentence in caplog.text
    assert any(sentence.startswith("Early stopping") for sentence in found["answers"])

    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*.safetensors")}
    assert len(before) == 4
    done(command, "stage=dynamics", *words(make_encoder()))
    assert {path: path.stat().st_mtime_ns
            for path in (tmp_path / "runs").rglob("*.safetensors")} == before
    assert only(tmp_path / "runs/dynamics") == folder


def test_tracing_changes_no_training(command, competition, make_encoder, tmp_path):
    """A plain run with the same settings learns the same weights; it is a run of its own."""
    one = ["dynamics.dropouts=[0.1]", "simcse.eval_every=2"]
    done(command, "stage=dynamics", *words(make_encoder(), *one))
    traced = tmp_path / read_json(only(tmp_path / "runs/dynamics") / "dynamics.json")[
        "cells"][0]["run"]
    done(command, "stage=simcse", *words(make_encoder(), *one), "simcse.temperature=0.05",
         "simcse.dropout=0.1")
    plain = next(path for path in (tmp_path / "runs/simcse").glob("*-*")
                 if not (path / "trajectory").exists())
    losses = [[line["loss"] for line in read_history(run / "history.jsonl") if "loss" in line]
              for run in (traced, plain)]
    assert losses[0] == losses[1]
    assert (read_json(traced / "manifest.json")["files"]["model/model.safetensors"]
            == read_json(plain / "manifest.json")["files"]["model/model.safetensors"])


def test_goes_on_where_it_was(command, competition, make_encoder, tmp_path, monkeypatch):
    """A grid that is stopped in its second cell resumes that cell and keeps the first one."""
    plain, calls = contrastive.save_sketch, []

    def stopping(*arguments):
        calls.append(arguments)
        if len(calls) == 7:  # step 4 of the second cell
            os.kill(os.getpid(), signal.SIGTERM)
        plain(*arguments)

    monkeypatch.setattr(contrastive, "save_sketch", stopping)
    one = ["dynamics.dropouts=[0.1]"]
    code, _, err = command("stage=dynamics", *words(make_encoder(), *one))
    assert code == 143, err
    assert not (tmp_path / "runs/dynamics").exists()
    first = only(tmp_path / "runs/simcse", "*-*/model")
    stamp = first.stat().st_mtime_ns
    done(command, "stage=dynamics", *words(make_encoder(), *one))
    assert first.stat().st_mtime_ns == stamp
    cells = read_json(only(tmp_path / "runs/dynamics") / "dynamics.json")["cells"]
    logs = [(tmp_path / cell["run"] / "log.txt").read_text() for cell in cells]
    assert ["resumed" in text for text in logs] == [False, True]
    assert read_trajectory(tmp_path / cells[1]["run"])["step"].tolist() == [0, 2, 4, 6]


@pytest.mark.parametrize(("more", "message"), [
    ("dynamics.temperatures=[a]", "dynamics.temperatures: expected numbers, got [a]"),
    ("dynamics.temperatures=[0]", "dynamics.temperatures: expected more than 0, got 0.0"),
    ("dynamics.dropouts=[0.1,1]", "dynamics.dropouts: expected 0.9 or less, got 1.0"),
    ("dynamics.dropouts=[0.1,0.10]", "dynamics.dropouts: expected different values"),
    ("dynamics.batch_sizes=[8.5]", "dynamics.batch_sizes: expected numbers, got [8.5]"),
    ("dynamics.batch_sizes=[8,9999]", "simcse.batch_size: expected at most "),
    ("dynamics.batch_sizes=[1]", "dynamics.batch_sizes: expected 2 or more, got 1"),
    ("chain=[sts]", "chain: expected distinct stages of simcse, nli, distill, sts with simcse")])
def test_refused(command, competition, make_encoder, tmp_path, more, message):
    """Before any cell is trained."""
    said = refusal(command("stage=dynamics", *words(make_encoder(), more)))
    assert said.startswith(message)
    assert not list((tmp_path / "runs").glob("*/*-*"))


def test_one_cell_is_no_grid(command, competition, make_encoder, tmp_path):
    """There is nothing to compare."""
    said = refusal(command("stage=dynamics", *words(
        make_encoder(), "dynamics.temperatures=[]", "dynamics.dropouts=[]")))
    assert said.startswith("dynamics: expected two or more cells, got one")
