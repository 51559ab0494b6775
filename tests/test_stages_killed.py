"""Runs that a signal or a failure ends: the same command goes on.

python -m pytest tests/test_stages_killed.py
"""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from toy import RUN, done, equal, files_of, only, read_json, small, timeless

from pipeline import checkpoint, runs
from pipeline.config import SAMPLE
from pipeline.history import read_history
from pipeline.stages import simcse

SCRIPT = SAMPLE.parent.parent / "run.py"
STEPS = 110


def steps_of(run: Path) -> int:
    """The last step in the run's history."""
    return max((line["step"] for line in read_history(run / "history.jsonl")), default=-1)


def ended_by(number: int, words: list[str], folder: Path, after: int) -> tuple[int, str]:
    """Runs the command, sends the signal after this step: exit code and stderr."""
    process = subprocess.Popen([sys.executable, str(SCRIPT), *words], cwd=folder, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ)
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            found = list((folder / "runs/simcse").glob("*-*"))
            if found and steps_of(found[0]) >= after:
                process.send_signal(number)
                break
            time.sleep(0.005)
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
    return process.returncode, err


@pytest.fixture
def words(make_encoder) -> list[str]:
    """A command of 110 steps with a checkpoint every 15."""
    return ["stage=simcse", *small(make_encoder(), f"simcse.max_steps={STEPS}",
                                   "simcse.eval_every=15", "simcse.learning_rate=3e-4")]


@pytest.fixture
def undisturbed(command, competition, words, tmp_path) -> Path:
    """The folder of the same run, undisturbed."""
    done(command, *words, "runs_dir=undisturbed")
    return only(tmp_path / "undisturbed/simcse")


def assert_same(run: Path, undisturbed: Path) -> None:
    """Both are complete with the same weights, history and metrics."""
    assert read_json(run / "manifest.json")["status"] == "complete"
    assert run.name == undisturbed.name
    assert files_of(run) == RUN
    assert equal(load_file(run / "model/model.safetensors"),
                 load_file(undisturbed / "model/model.safetensors"))
    assert timeless(read_history(run / "history.jsonl")) == timeless(
        read_history(undisturbed / "history.jsonl"))
    assert read_json(run / "metrics.json") == read_json(undisturbed / "metrics.json")


def test_stopped_and_killed(command, undisturbed, words, tmp_path, caplog):
    """SIGTERM: exit 143 and resumable; kill -9: the same; the end is that of an undisturbed run."""
    code, err = ended_by(signal.SIGTERM, words, tmp_path, after=15)
    run = only(tmp_path / "runs/simcse")
    assert code == 143, err
    assert err.splitlines()[-1].startswith("error: stopped by SIGTERM after step ")
    assert "Traceback" not in err
    assert read_json(run / "manifest.json")["status"] == "running"
    stopped_at = read_json(run / "checkpoints/newest/state.json")["step"]
    assert 15 <= stopped_at < STEPS
    assert steps_of(run) == stopped_at

    code, err = ended_by(signal.SIGKILL, words, tmp_path, after=stopped_at + 20)
    assert code == -signal.SIGKILL, err
    assert f"resumed at step {stopped_at} of {STEPS}" in (run / "log.txt").read_text()

    caplog.clear()
    done(command, *words)
    resumed_at = int(re.search(rf"resumed at step (\d+) of {STEPS}", caplog.text)[1])
    assert stopped_at < resumed_at < STEPS
    assert only(tmp_path / "runs/simcse") == run
    assert_same(run, undisturbed)


@pytest.fixture
def at_step_3(monkeypatch):
    """`at_step_3(action)`: simcse's loss is the action's in the third step."""
    def arrange(action) -> None:
        calls, info_nce = [], simcse.info_nce

        def loss(*args):
            calls.append(args)
            return action(info_nce(*args)) if len(calls) == 3 else info_nce(*args)

        monkeypatch.setattr(simcse, "info_nce", loss)

    return arrange


def interrupt(loss: torch.Tensor) -> torch.Tensor:
    """Ctrl-C."""
    os.kill(os.getpid(), signal.SIGINT)
    return loss


def test_ctrl_c(command, competition, make_encoder, tmp_path, at_step_3, caplog):
    """Ctrl-C in the chain's first stage ends the command with 130; the same command completes."""
    at_step_3(interrupt)
    words = ["stage=sts", *small(make_encoder())]
    code, _, err = command(*words)
    assert code == 130
    assert err.splitlines()[-1].startswith("error: stopped by Ctrl-C after step 3")
    assert not (tmp_path / "runs/sts").exists()
    done(command, *words)
    assert "resumed at step 3 of 4" in caplog.text
    assert read_json(only(tmp_path / "runs/sts") / "manifest.json")["status"] == "complete"


def test_loss_that_is_no_number(command, competition, make_encoder, tmp_path, at_step_3):
    """One line with step and sentences, exit 1, and no finished run."""
    at_step_3(lambda loss: loss * float("nan"))
    code, _, err = command("stage=sts", *small(make_encoder()))
    assert code == 1
    line = err.splitlines()[-1]
    assert line.startswith("error: step 3: expected a finite loss, got nan")
    sentences = line.split("the batch's sentences: ")[1].split(" | ")
    assert len(sentences) == 8
    texts = "".join(path.read_text(encoding="utf-8") for path in competition.glob("*.csv"))
    assert sum(text in texts for text in sentences) >= 6  # a " inside is doubled in the CSV
    assert read_json(only(tmp_path / "runs/simcse") / "manifest.json")["status"] == "running"
    assert not (tmp_path / "runs/sts").exists()


def test_failure_inside(command, competition, make_encoder, tmp_path, at_step_3):
    """The traceback stands in the run's log, and the same command completes the run."""
    def fail(loss: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("a fault of ours")

    at_step_3(fail)
    words = ["stage=simcse", *small(make_encoder())]
    with pytest.raises(RuntimeError):
        command(*words)
    run = only(tmp_path / "runs/simcse")
    log = (run / "log.txt").read_text(encoding="utf-8")
    assert "Traceback" in log
    assert "RuntimeError: a fault of ours" in log
    done(command, *words)
    assert files_of(run) == RUN


def test_full_disk(command, competition, make_encoder, tmp_path, monkeypatch):
    """A full disk is one line with the path, exit 2, no traceback, and resumable."""
    def full(tensors: dict, path: Path) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left (os error 28)")

    words = ["stage=simcse", *small(make_encoder())]
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_file", full)
        code, _, err = command(*words)
    assert code == 2
    assert re.fullmatch(r"error: \S+/checkpoints/\S+: No space left on device",
                        err.splitlines()[-1])
    assert "Traceback" not in err
    done(command, *words)
    assert files_of(only(tmp_path / "runs/simcse")) == RUN


def test_broken_off_while_finishing(command, competition, make_encoder, tmp_path, monkeypatch,
                                    caplog):
    """Ctrl-C while the finished files are being hashed does not throw the training away."""
    def interrupted(folder: Path) -> dict:
        raise KeyboardInterrupt

    words = ["stage=simcse", *small(make_encoder())]
    with monkeypatch.context() as patch:
        patch.setattr(runs, "checksums", interrupted)
        code, _, _ = command(*words)
    assert code == 130
    done(command, *words)
    assert "resumed at step 4 of 4" in caplog.text
    assert files_of(only(tmp_path / "runs/simcse")) == RUN
