"""What the tests of studies share: a toy in the place of the training, a small study.

A toy's score is a function of its settings, so that a trial takes milliseconds.
PYTEST_DONT_REWRITE: nothing is asserted here.
"""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import optuna
import pandas as pd
import pytest
from filelock import FileLock
from toy import small

from pipeline.config import Config
from pipeline.data import read_competition
from pipeline.errors import Pruned
from pipeline.files import write_json, write_text
from pipeline.metrics import pearson
from pipeline.runs import Run, identity
from pipeline.stages import finalists, trials
from pipeline.study import counted, open_storage

BEST = 2e-3  # the toy's best learning rate
SPACE = """
sts.learning_rate: {low: 1e-4, high: 1e-1, log: true}
sts.weight_decay: {low: 0.0, high: 0.1}
"""

def toy_run(part: Config, watch: Callable | None) -> Run:
    """A run folder whose dev predictions are the better, the nearer the learning rate is to BEST.

    Its evaluations climb to the final score in three steps.
    """
    miss = abs(np.log10(part.sts.learning_rate / BEST))
    labels = read_competition(Path(part.data.dir)).dev["label"].to_numpy()
    noise = np.random.default_rng(0).normal(size=len(labels))
    other = np.random.default_rng(part.seed).normal(size=len(labels))
    dev = np.clip(labels + miss * noise + 0.1 * other, 0, 5)
    shape = {"stage": "sts", "seed": part.seed, "start": {}, "settings": repr(part.sts)}
    folder, mark = Path(part.runs_dir) / "sts", identity(shape)
    folder.mkdir(parents=True, exist_ok=True)
    run = Run(folder / f"{part.name}-{mark}", shape)
    with FileLock(folder / f".{mark}.lock"):  # as a stage has it: others tidy up meanwhile
        run.begin("", "", {})
        for number in (1, 2, 3):
            scores = {"pearson": float(pearson(dev, labels)) * number / 3, "spearman": 0.0}
            if watch and watch(number, scores) and number < 3:
                raise Pruned(run.folder, number)
        write_text(run.model / "weights", "many bytes")
        score = {"value": float(pearson(dev, labels)), "low": -1.0, "high": 1.0}
        write_json(run.folder / "metrics.json", {"dev": {"pearson": score, "spearman": score}})
        write_text(run.folder / "predictions" / "dev.csv",
                   pd.DataFrame({"label": labels, "prediction": dev}).to_csv(index=False))
        run.finish(1.0)
    return run


@pytest.fixture
def toys(monkeypatch) -> Callable:
    """`toys(function)` puts it in the place of the training; it gets the toy's arguments.

    What makes a trial of milliseconds slow is left out: collecting garbage, flushing to disk.
    """
    monkeypatch.setattr("optuna.study._optimize.gc.collect", lambda: 0)
    monkeypatch.setattr(os, "fsync", lambda handle: None)

    def put(function: Callable) -> None:
        for module in (trials, finalists):
            monkeypatch.setattr(module, "complete",
                                lambda part, watch=None: function(part, watch))

    put(toy_run)
    return put


@pytest.fixture
def words(competition, make_encoder, tmp_path) -> list[str]:
    """A command of a small study; no pruning."""
    (tmp_path / "space.yaml").write_text(SPACE, encoding="utf-8")
    return ["stage=tune", *small(make_encoder(), "chain=[sts]", "tune.space=space.yaml",
                                 "tune.study=s", "tune.trials=6", "tune.startup=4",
                                 "tune.finalists=2", "tune.finalist_seeds=[7]"),
            "tune.pruner=none"]


@pytest.fixture
def undrawn(monkeypatch) -> None:
    """Leaves the figures out, which take longer than all else."""
    monkeypatch.setattr("pipeline.stages.tune.draw", lambda *arguments: None)


def study_of(folder: Path, url: str = "") -> optuna.Study:
    """The study s below runs/ of the folder."""
    return optuna.load_study(study_name="s", storage=open_storage(folder / "runs/tune/s", url))


def values(study: optuna.Study) -> list[dict]:
    """The values of the trials that count, in their order."""
    return [trial.params for trial in counted(study)]
