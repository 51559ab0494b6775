"""A run's identity and folder: what makes two runs one, when one is reused, who has to wait.

python -m pytest tests/test_runs.py
"""

import hashlib
import logging
import multiprocessing
import shutil
import threading
from pathlib import Path

import pytest
from filelock import FileLock

from pipeline.checkpoint import State
from pipeline.config import KEYS
from pipeline.errors import UserError
from pipeline.layers import load
from pipeline.runs import Run, claimed, finished, identity
from pipeline.stages.chain import Start, carried_out, start_of

SHAPE = {"version": 1, "stage": "sts", "seed": 42, "precision": "fp32",
         "settings": {"epochs": 3.0, "head": "cross"},
         "data": {"train": "aa", "dev": "bb"}, "start": {"encoder": {"config.json": "cc"}}}
DATA = {"train": "aa", "dev": "bb", "test": "cc"}


@pytest.fixture
def workplace(tmp_path, monkeypatch, caplog):
    """`workplace("seed=1")` runs a stage that does no work: (its folder, whether it was reused)."""
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.INFO, logger="pipeline")  # as run.py does
    worked: list[Path] = []

    def work(run: Run, _accelerator: object) -> State:
        worked.append(run.folder)
        (run.folder / "predictions").mkdir()
        (run.folder / "predictions" / "dev.csv").write_text("1\n")
        (run.folder / "metrics.json").write_text("{}")
        return State(seconds=1.5)

    def call(*words: str, data=None, start=None) -> tuple[Path, bool]:
        worked.clear()
        config = load(["stage=sts", "data.dir=data", "device=cpu", "precision=fp32",
                       "encoder.path=a/bert", *words])
        run = carried_out(config, "sts", data or DATA, start or Start("x", {"encoder": "e"}), work)
        assert worked in ([], [run.folder])
        return run.folder, not worked

    return call


def other(name: str) -> str:
    """Another valid value of a key, as one would type it."""
    default, limits = KEYS[name]
    if "choices" in limits:
        return next(choice for choice in limits["choices"] if choice != default)
    if isinstance(default, bool):
        return str(not default).lower()
    if isinstance(default, str):
        return default + "x"
    return str(default + 1) if isinstance(default, int) else str(default / 2 or 0.5)


def test_identity():
    """Ten hexadecimal digits, whatever the order of the keys; any change makes another."""
    mark = identity(SHAPE)
    assert len(mark) == 10
    assert int(mark, 16) >= 0
    assert identity(dict(reversed(SHAPE.items()))) == mark
    changed = [SHAPE | {"version": 2}, SHAPE | {"stage": "nli"}, SHAPE | {"seed": 43},
               SHAPE | {"precision": "bf16"}, SHAPE | {"data": {"train": "aa", "dev": "bc"}},
               SHAPE | {"settings": {"epochs": 3.1, "head": "cross"}},
               SHAPE | {"settings": {"epochs": 3.0, "head": "bi"}},
               SHAPE | {"start": {"encoder": {"config.json": "cd"}}}]
    assert len({mark, *map(identity, changed)}) == 1 + len(changed)


def test_identity_is_stable():
    """Pinned: if it changes, everybody's finished runs are found no more."""
    text = '{"seed": 1, "stage": "sts", "이름": [2.5, true, null]}'
    assert identity({"이름": [2.5, True, None], "stage": "sts", "seed": 1}) == (
        hashlib.sha256(text.encode()).hexdigest()[:10])


def test_reused(workplace):
    """Name, paths and other stages' settings do not count: the first run's folder is found."""
    folder, reused = workplace()
    assert not reused
    assert folder.name.startswith("bert-")
    for word in ("seed=42", "name=other", "submissions_dir=s", "deterministic=true", "run=x",
                 "data.dir=elsewhere", "simcse.epochs=2", "encoder.path=another/path",
                 "data.extra=[x.txt]", "runs_dir=./runs"):
        again, reused = workplace(word)
        assert (again.resolve(), reused) == (folder.resolve(), True), word


def test_not_reused_with_other_settings(workplace):
    """Every setting of the stage, the seed and the precision make another run."""
    words = ["seed=1", "precision=bf16",
             *(f"{name}={other(name)}" for name in KEYS if name.startswith("sts."))]
    made = {workplace()[0]: "the defaults"}
    for word in words:
        folder, reused = workplace(word)
        assert not reused, word
        assert folder not in made, (word, made[folder])
        made[folder] = word
    assert workplace()[1]  # the first one is still found


def test_not_reused_with_other_data_or_start(workplace):
    """Nor with other content of a file, another encoder or another stage before."""
    runs = [workplace()[0]]
    for name in DATA:
        runs.append(workplace(data=DATA | {name: "zz"})[0])
    runs.append(workplace(start=Start("x", {"encoder": "f"}))[0])
    runs.append(workplace(start=Start("x", {"run": "e"}))[0])
    assert len(set(runs)) == 6


def test_start_is_the_encoders_content(workplace, make_encoder, tmp_path):
    """A copied encoder is the same one; other weights or another way to read it is not."""
    copy = tmp_path / "copy"
    shutil.copytree(make_encoder(), copy)

    def origin(path: Path, *words: str) -> dict:
        return start_of(load(["stage=sts", "chain=[sts]", "data.dir=x", f"encoder.path={path}",
                              *words]), "sts").origin

    own = origin(make_encoder())
    assert origin(copy) == own
    for word in ("encoder.pooling=cls", "encoder.prefix=q: ", "encoder.max_length=32"):
        assert origin(copy, word) != own
    weights = bytearray((copy / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (copy / "model.safetensors").write_bytes(weights)
    assert origin(copy) != own


def test_force(workplace):
    """It runs anew, in the same folder, with nothing of the earlier attempt but its log."""
    folder, _ = workplace()
    (folder / "stale.txt").write_text("x")
    log = (folder / "log.txt").read_text(encoding="utf-8")
    assert workplace("force=true") == (folder, False)
    assert not (folder / "stale.txt").exists()
    assert (folder / "log.txt").read_text(encoding="utf-8").startswith(log)


@pytest.mark.parametrize("damage", ["changed", "gone", "manifest"])
def test_damage_is_noticed(workplace, caplog, damage):
    """A file of a finished run that changed or went: it is named and the stage runs anew."""
    folder, _ = workplace()
    if damage == "changed":
        (folder / "predictions" / "dev.csv").write_text("2\n")
    elif damage == "gone":
        (folder / "predictions" / "dev.csv").unlink()
    else:
        (folder / "manifest.json").write_text('{"status": "comp')
        shutil.rmtree(folder / "predictions")
    assert workplace() == (folder, False)
    assert damage == "manifest" or (
        f"{folder}/predictions/dev.csv is missing or changed: the stage runs anew" in caplog.text)
    assert (folder / "predictions" / "dev.csv").read_text() == "1\n"
    assert workplace() == (folder, True)


def test_log_and_new_files_are_no_damage(workplace):
    """The log grows with every command, and notes of the user's do no harm."""
    folder, _ = workplace()
    (folder / "notes.md").write_text("best one so far")
    assert workplace() == (folder, True)
    assert "reusing" in (folder / "log.txt").read_text(encoding="utf-8")


def test_finished(workplace, tmp_path):
    """Only the folder of a finished run is taken."""
    folder, _ = workplace()
    assert finished(str(folder)) == folder
    Run(tmp_path / "begun", SHAPE).begin("", "e", {})
    for path, said in (("", "got ''"), ("none", "got 'none'"), (str(tmp_path), "got '"),
                       ("begun", "got begun with status 'running'; the command that "
                                 "began it goes on with it")):
        with pytest.raises(UserError, match="run: expected") as caught:
            finished(path)
        assert said in str(caught.value)


@pytest.mark.parametrize("name", ["../x", "a/b", "..", ".", "", ".x", "a b", "a\n", "a\0",
                                  "x" * 81])
def test_bad_names(tmp_path, name):
    """Refused before a folder is made."""
    with pytest.raises(UserError, match="name: expected letters"), \
            claimed(tmp_path / "runs", name, SHAPE):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["kf-deberta", "v1.2_x", "실험-3", "x" * 80])
def test_good_names(tmp_path, name):
    """The folder's name is the name and the identity."""
    with claimed(tmp_path, name, SHAPE) as run:
        assert run.folder == tmp_path / "sts" / f"{name}-{identity(SHAPE)}"


def test_second_process_waits(tmp_path, caplog):
    """It says so, gets in when the first is done, and finds the finished run."""
    caplog.set_level(logging.INFO, logger="pipeline")
    own, other = multiprocessing.Pipe()

    def first() -> None:
        with claimed(tmp_path, "first", SHAPE) as run:
            run.begin("", "e", {})
            other.send("in")
            other.recv()
            run.finish(0.0)

    def second() -> None:
        with claimed(tmp_path, "second", SHAPE) as run:
            entered.append((run.folder.name, run.is_complete()))

    entered: list[tuple[str, bool]] = []
    process = multiprocessing.get_context("fork").Process(target=first)  # no second import of torch
    process.start()
    assert own.recv() == "in"
    with claimed(tmp_path, "third", SHAPE | {"seed": 1}):
        pass  # another run is not held up
    thread = threading.Thread(target=second)
    thread.start()
    thread.join(0.3)
    assert entered == []
    own.send("go on")
    thread.join(20)
    process.join(20)
    assert process.exitcode == 0
    assert entered == [(f"first-{identity(SHAPE)}", True)]
    assert "another process runs this sts: waiting for it" in caplog.text


def test_failure_releases_the_lock_and_is_logged(tmp_path):
    """A failed run holds nobody up, however long its error is kept; log.txt has the traceback."""
    def fail() -> None:
        with claimed(tmp_path, "x", SHAPE):
            raise ZeroDivisionError("here")

    with pytest.raises(ZeroDivisionError) as kept:
        fail()
    FileLock(tmp_path / "sts" / f".{identity(SHAPE)}.lock").acquire(timeout=0).lock.release()
    assert kept.value.args == ("here",)
    text = (tmp_path / "sts" / f"x-{identity(SHAPE)}" / "log.txt").read_text(encoding="utf-8")
    assert "Traceback" in text
    assert "ZeroDivisionError: here" in text
