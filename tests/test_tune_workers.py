"""Studies that several commands work on, that are killed or stopped, and go on.

python -m pytest tests/test_tune_workers.py
"""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import optuna
import pandas as pd
import pytest
from toy import done
from tuning import study_of, toy_run, values

import run as entry
from pipeline import study as studies
from pipeline.config import Config
from pipeline.errors import Stopped
from pipeline.runs import Run
from pipeline.stages import finalists, trials
from pipeline.study import counted, open_study

pytest_plugins = ["tuning"]


def work(words: list[str], calls: str, together: int, hang_at: int) -> None:
    """A worker in a process of its own, which notes what it trains.

    It begins when so many workers are there and hangs at a call.
    """
    mine = []

    def slow(part: Config, watch: Callable | None) -> Run:
        mine.append(part)
        with open(calls, "a", encoding="utf-8") as file:
            file.write(f"{os.getpid()} {part.seed} {part.sts.learning_rate}\n")
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and (
                len(mine) == hang_at or len(workers_of(Path(calls))) < together):
            time.sleep(0.02)
        return toy_run(part, watch)

    trials.complete = finalists.complete = lambda part, watch=None: slow(part, watch)
    entry.main(words)


def workers_of(calls: Path) -> set[str]:
    """The workers that have trained something."""
    return {line.split()[0] for line in calls.read_text(encoding="utf-8").splitlines()}


def start(words: list[str], calls: Path, together: int = 1, hang_at: int = 0) -> object:
    """Starts a worker as a copy of this process, which has everything imported."""
    process = multiprocessing.get_context("fork").Process(
        target=work, args=(words, str(calls), together, hang_at))
    process.start()
    return process


@pytest.mark.parametrize("storage", ["", "sqlite:///tune.db"])
def test_two_workers(command, toys, words, tmp_path, undrawn, storage):
    """Both take part, no trial is done twice, the total is exact, one of them concludes."""
    words = [*words, "tune.trials=9", f"tune.storage={storage}"]
    workers = [start(words, tmp_path / "calls", together=2) for _ in range(2)]
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    calls = [line.split() for line in (tmp_path / "calls").read_text().splitlines()]
    searched = [value for _, seed, value in calls if seed == "42"]
    assert len(workers_of(tmp_path / "calls")) == 2
    study = study_of(tmp_path, storage)
    assert len(counted(study)) == 9
    states = [trial.state for trial in counted(study)]
    assert states == [optuna.trial.TrialState.COMPLETE] * 9
    assert {str(part["sts.learning_rate"]) for part in values(study)} == set(searched)
    assert len(set(searched)) == 9
    assert (tmp_path / "runs/tune/s/best.yaml").exists()
    assert not list((tmp_path / "runs/tune/s").glob(".worker-*"))


def test_killed(command, toys, words, tmp_path, undrawn, caplog):
    """kill -9 in the third trial: the next command tries its values again and counts right."""
    worker, calls = start(words, tmp_path / "calls", hang_at=3), tmp_path / "calls"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (
            not calls.exists() or len(calls.read_text().splitlines()) < 3):
        time.sleep(0.02)
    os.kill(worker.pid, signal.SIGKILL)
    worker.join(60)
    study = study_of(tmp_path)
    assert study.trials[2].state == optuna.trial.TrialState.RUNNING
    values_then = study.trials[2].params
    done(command, *words)
    study = study_of(tmp_path)
    assert "trial 2: its worker was killed; its values are tried again" in caplog.text
    assert study.trials[2].state == optuna.trial.TrialState.FAIL
    assert study.trials[3].params == values_then
    assert study.trials[3].user_attrs["again"] == 2
    assert len(counted(study)) == 6


def test_living_workers_are_left_alone(command, toys, words, tmp_path, undrawn, caplog):
    """A trial that another worker runs is neither taken from it nor done twice."""
    done(command, *words, "tune.trials=1")
    worker = start(words, tmp_path / "calls", hang_at=1)
    while not (tmp_path / "calls").exists():
        time.sleep(0.02)
    try:
        done(command, *words, "tune.trials=3")
    finally:
        os.kill(worker.pid, signal.SIGKILL)
        worker.join(60)
    states = [trial.state.name for trial in study_of(tmp_path).trials]
    assert states == ["COMPLETE", "RUNNING", "COMPLETE"]
    assert "other workers are still at 1 trials" in caplog.text


def test_broken_off_and_repeated(command, toys, words, tmp_path, undrawn):
    """Stopped by SIGTERM, Ctrl-C and a fault, then continued: the values of an unbroken study."""
    done(command, *words, "runs_dir=unbroken/runs")
    expected = values(study_of(tmp_path / "unbroken"))
    assert len(expected) == 6
    ends = {2: Stopped(signal.SIGTERM, 3), 4: KeyboardInterrupt(), 5: RuntimeError("a fault")}
    calls = []

    def breaking(part: Config, watch: Callable | None) -> Run:
        calls.append(part.sts.learning_rate)
        if error := ends.pop(len(calls), None):
            raise error
        return toy_run(part, watch)

    toys(breaking)
    code, _, err = command(*words)
    assert (code, err.splitlines()[-1]) == (143, f"error: {Stopped(signal.SIGTERM, 3)}")
    assert command(*words)[0] == 130
    with pytest.raises(RuntimeError):
        command(*words)
    done(command, *words)
    study = study_of(tmp_path)
    assert values(study) == expected
    assert calls[1] == calls[2] == expected[1]["sts.learning_rate"]
    table = pd.read_csv(tmp_path / "runs/tune/s/trials.csv")
    assert table["state"].tolist().count("interrupted") == 3
    assert table["state"].tolist().count("complete") == 6


@pytest.mark.parametrize(("later", "is_revived"), [
    (timedelta(), False), (timedelta(seconds=70), True), (timedelta(days=-400), True)])
def test_trial_that_no_worker_claimed(tmp_path, monkeypatch, later, is_revived):
    """Begun by a worker that was killed at once: tried again soon, though the clock went back."""
    class Moved(datetime):
        @classmethod
        def now(cls, tz=None):
            return super().now(tz) + later

    def opened():
        return open_study(tmp_path, "a", "", optuna.pruners.NopPruner(), {"x": 1.0}, {})

    opened().ask({"x": optuna.distributions.FloatDistribution(0, 2)})
    monkeypatch.setattr(studies, "datetime", Moved)
    states = [trial.state.name for trial in opened().get_trials()]
    assert states == (["FAIL", "WAITING"] if is_revived else ["RUNNING"])
