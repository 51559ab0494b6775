"""Trackers: what TensorBoard and Weights & Biases read back is history.jsonl, once.

python -m pytest tests/test_trackers.py    # with the packages tensorboard and wandb
"""

import json
import signal

import pytest

from pipeline.config import KEYS
from pipeline.errors import Stopped, UserError
from pipeline.history import read_history
from pipeline.trackers import TRACKERS, Tracker, series
from pipeline.training import train
from tests.refusal import refusal
from tests.toy import Crash, done, only, read_json, small, stopping, toy_model, toy_recipe, toy_task

SHAPE = {"stage": "sts", "settings": {"epochs": 3.0}, "seed": 1, "precision": "fp32"}


@pytest.fixture(autouse=True)
def no_login(monkeypatch, tmp_path):
    """No key of W&B from outside the test."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("HOME", str(tmp_path))


def scalars(folder):
    """Every series of an event folder: name to [(step, value)], as TensorBoard shows it."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder), {"scalars": 0})
    events.Reload()
    return {name: [(event.step, event.value) for event in events.Scalars(name)]
            for name in events.Tags()["scalars"]}


def records(folder):
    """The records of the one offline run of W&B, in the order in which they were written."""
    pytest.importorskip("wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    data, found, place = only(folder, "offline-run-*/run-*.wandb").read_bytes(), [], 7
    pending = b""
    while place + 7 <= len(data):  # LevelDB's log: blocks of 32 KiB, 7 bytes before every piece
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        size, kind = int.from_bytes(data[place + 4:place + 6], "little"), data[place + 6]
        pending += data[place + 7:place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last piece
            found.append(Record.FromString(pending))
            pending = b""
    return found


def offline_history(folder):
    """W&B's rows: step to its values by series."""
    rows = {}
    for record in records(folder):
        if record.HasField("history"):
            row = {item.key or "/".join(item.nested_key): json.loads(item.value_json)
                   for item in record.history.item}
            step = row.pop("_step")
            assert step not in rows
            rows[step] = {name: value for name, value in row.items() if not name.startswith("_")}
    return rows


def expected_series(lines):
    """The history by series."""
    found = {}
    for line in lines:
        for name, value in series(line).items():
            found.setdefault(name, []).append((line["step"], pytest.approx(value, rel=1e-6)))
    return found


def expected_rows(lines):
    """The history by step: a step's evaluation and geometry stand in its row."""
    found = {}
    for line in lines:
        found.setdefault(line["step"], {}).update(series(line))
    return found


def test_series():
    """Nested numbers have paths; what is no number is left out."""
    line = {"step": 3, "loss": 0.5, "tokens": 40, "eval": {"pearson": None, "spearman": 0.25},
            "geometry": {"uniformity": -2.0}}
    assert series(line) == {"loss": 0.5, "tokens": 40.0, "eval/spearman": 0.25,
                            "geometry/uniformity": -2.0}


def tracked(folder, kind, loss=None):
    """The toy's training with a tracker."""
    import torch

    from pipeline import hardware

    accelerator = hardware.start("cpu", "fp32", 0, False)
    tracker = Tracker(kind, folder, SHAPE, "0123456789")
    accelerator.trackers = [tracker]
    model = toy_model()
    torch.manual_seed(5)
    try:
        train(model, toy_task(**({"loss": loss} if loss else {})), toy_recipe(), accelerator,
              folder)
    finally:
        tracker.finish()


READERS = {"tensorboard": (scalars, expected_series), "wandb": (offline_history, expected_rows)}


@pytest.mark.parametrize("kind", TRACKERS)
@pytest.mark.parametrize("how", [signal.SIGTERM, None])
def test_a_run_that_goes_on(kind, how, tmp_path):
    """Stopped, or broken off after its last checkpoint, then completed: every step once."""
    pytest.importorskip(kind)
    read, expected = READERS[kind]
    folder = tmp_path / "run-0123456789"
    folder.mkdir()
    with pytest.raises((Stopped, Crash)):
        tracked(folder, kind, stopping(15, how))
    early = read_history(folder / "history.jsonl")
    assert 10 <= early[-1]["step"] < 26
    assert read(folder / kind) == expected(early)
    tracked(folder, kind)
    lines = read_history(folder / "history.jsonl")
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 27))
    assert read(folder / kind) == expected(lines)


@pytest.mark.parametrize("kind", TRACKERS)
def test_by_key(kind, command, competition, make_encoder, tmp_path):
    """simcse and sts of the real command; the run is the same with a tracker and without."""
    pytest.importorskip(kind)
    read, expected = READERS[kind]
    words = ["stage=sts", *small(make_encoder("bert"), data=competition)]
    done(command, *words, f"tracker={kind}")
    folders = [only(tmp_path / "runs" / stage) for stage in ("simcse", "sts")]
    for folder in folders:
        lines = read_history(folder / "history.jsonl")
        assert read(folder / kind) == expected(lines)
        assert not any(kind in name for name in read_json(folder / "manifest.json")["files"])
    names = {name for line in read_history(folders[0] / "history.jsonl") for name in series(line)}
    assert {"loss", "lr", "grad_norm", "eval/spearman"} <= names
    assert any(name.startswith("geometry/") for name in names)
    before = (folders[1] / "manifest.json").read_bytes()
    done(command, *words)
    assert (folders[1] / "manifest.json").read_bytes() == before  # reused


def test_wandb_keeps_to_itself(tmp_path):
    """Settings and numbers alone: no key, no machine, no code, no packages."""
    pytest.importorskip("wandb")
    tracked(tmp_path, "wandb")
    found = records(tmp_path / "wandb")
    settings = next(record.run.config for record in found if record.HasField("run"))
    assert {item.key: json.loads(item.value_json) for item in settings.update
            if not item.key.startswith("_")} == SHAPE
    files = only(tmp_path / "wandb", "offline-run-*") / "files"
    assert not list(files.glob("*"))


def test_login_decides(monkeypatch, tmp_path):
    """With a key of the user's W&B is asked to go online; a refusal is one line without the key."""
    wandb = pytest.importorskip("wandb")
    asked = []

    def init(**options):
        asked.append(options)
        raise wandb.errors.CommError("server\nsays no")

    monkeypatch.setattr(wandb, "init", init)
    monkeypatch.setattr(wandb, "login", lambda **options: True)
    with pytest.raises(UserError, match="tracker=wandb: server says no; WANDB_MODE=offline"):
        Tracker("wandb", tmp_path, SHAPE, "0123456789").begin([])
    assert asked[0]["mode"] == "online"
    assert asked[0]["id"] == "0123456789"
    assert asked[0]["resume"] == "allow"


def test_steps_that_the_server_has_stay(monkeypatch, tmp_path):
    """A run that goes on online sends what comes after its last step there."""
    wandb = pytest.importorskip("wandb")
    sent = []

    class Online:
        step = 3
        finish = staticmethod(lambda: None)
        log = staticmethod(lambda values, step: sent.append((step, values)))

    monkeypatch.setattr(wandb, "init", lambda **options: Online)
    monkeypatch.setattr(wandb, "login", lambda **options: True)
    Tracker("wandb", tmp_path, SHAPE, "0").begin([{"step": step, "loss": 1.0} for step in range(5)])
    assert sent == [(3, {"loss": 1.0}), (4, {"loss": 1.0})]


@pytest.mark.parametrize("kind", TRACKERS)
def test_without_the_package(kind, command, competition, make_encoder, tmp_path, monkeypatch):
    """One line at the start; no run is begun."""
    import pipeline.trackers

    monkeypatch.setattr(pipeline.trackers, "find_spec", lambda name: None)
    said = refusal(command("stage=sts", *small(make_encoder("bert"), data=competition),
                           f"tracker={kind}"))
    assert said == (f"tracker={kind}: expected the package {kind}, got none: "
                    f".venv/bin/python -m pip install {kind}")
    assert not (tmp_path / "runs").exists()


def test_the_key_names_them():
    """Every tracker can be chosen, and none is the default."""
    assert KEYS["tracker"][1]["choices"] == ["none", *TRACKERS]
    assert KEYS["tracker"][0] == "none"
