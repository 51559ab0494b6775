"""A full disk, folders that cannot be written: one line, nothing half-written, work is kept.

python -m pytest tests/test_bad_disk.py
"""

import errno
import io
import logging
import os
from pathlib import Path

import pytest
import safetensors.torch
from refusal import contents, unfinished
from safetensors import SafetensorError

from pipeline import tables
from pipeline.runs import logged_to

FULL = "No space left on device"


@pytest.fixture
def train(command, competition, make_encoder):
    """`train("seed=1")` runs one step of sts through the entry point."""
    def call(*words: str) -> tuple[int, str, str]:
        return command("stage=sts", "chain=[sts]", f"data.dir={competition}", "sts.max_steps=1",
                       f"encoder.path={make_encoder()}", "encoder.max_length=32",
                       "sts.batch_size=8", *words)

    return call


def failure(result: tuple[int, str, str]) -> str:
    """The one error line; only the progress bar may stand on stderr beside it."""
    code, out, err = result
    assert code == 2, out + err
    assert "Traceback" not in out + err
    assert "Logging error" not in err
    assert err.count("error: ") == 1
    return err[err.index("error: "):].removeprefix("error: ").removesuffix("\n")


def full_disk(*names: object) -> None:
    """The system's own word, which names no file."""
    raise OSError(errno.ENOSPC, FULL)


@pytest.mark.parametrize("part", ["checkpoints/.best", "/.model.", "head.safetensors"])
def test_full_disk_while_saving_tensors(train, tmp_path, monkeypatch, part):
    """Checkpoints, the encoder and the head: safetensors has its own word for a full disk."""
    original = safetensors.torch.serialize_file

    def full(data, filename, *rest, **options) -> None:
        if part in str(filename):
            raise SafetensorError(f"Error while serializing: I/O error: {FULL} (os error 28)")
        original(data, filename, *rest, **options)

    monkeypatch.setattr(safetensors.torch, "serialize_file", full)
    said = failure(train())
    assert said.startswith("runs/sts/bert-")
    assert said.endswith(f": {FULL}")
    assert unfinished(tmp_path) == []


@pytest.mark.parametrize("name", ["config.yaml", "model", "metrics.json"])
def test_full_disk_at_a_renaming(train, tmp_path, monkeypatch, name):
    """Every file of a run: it is named, and no file is left that claims to be whole."""
    original = os.replace

    def full(source, target) -> None:
        if Path(target).name == name:
            raise OSError(errno.ENOSPC, FULL, str(target))
        original(source, target)

    monkeypatch.setattr(os, "replace", full)
    said = failure(train())
    assert said.startswith("runs/sts/bert-")
    assert said.endswith(f"{name}: {FULL}")
    left = unfinished(tmp_path)
    assert not [path for path in left if path.endswith((".tmp", ".csv")) and "predictions" not in
                path]
    run, = (tmp_path / "runs/sts").glob("bert-*")
    manifest = run / "manifest.json"
    assert not manifest.exists() or '"status": "running"' in manifest.read_text()


def test_full_disk_is_said_with_a_place(train, tmp_path, monkeypatch):
    """Writing and flushing fail without naming a file: the message names one all the same."""
    monkeypatch.setattr(os, "fsync", full_disk)
    said = failure(train())
    assert said.startswith("runs/sts/bert-")
    assert said.endswith(f": {FULL}")
    assert unfinished(tmp_path) == []


def test_full_disk_in_the_history(train, tmp_path, monkeypatch):
    """The same where lines are appended."""
    class Full(io.StringIO):
        write = full_disk

    monkeypatch.setattr("pipeline.history.open", lambda *_, **__: Full(), raising=False)
    said = failure(train())
    assert said.startswith("runs")
    assert said.endswith(f": {FULL}")
    assert unfinished(tmp_path) == []


def test_full_disk_then_space(train, tmp_path, monkeypatch):
    """The same command goes on when there is space again, to the end."""
    with monkeypatch.context() as patch:
        patch.setattr("pipeline.stages.sts.write_predictions",
                      lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, FULL, "x")))
        assert failure(train()) == f"x: {FULL}"
    code, _, err = train()
    assert code == 0, err
    assert len(list((tmp_path / "runs/sts").glob("bert-*"))) == 1
    assert len(list((tmp_path / "submissions").glob("*.csv"))) == 1


def test_full_disk_at_the_submission(train, tmp_path, monkeypatch):
    """The finished run stays and is reused; there is no half submission."""
    original = os.replace

    def full(source, target) -> None:
        if Path(target).suffix == ".csv" and "submissions" in str(target):
            raise OSError(errno.ENOSPC, FULL, str(target))
        original(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        said = failure(train())
        assert said.startswith("submissions/bert-")
        assert said.endswith(f".csv: {FULL}")
    assert not [path for path in contents(tmp_path / "submissions") if not path.endswith(".json")]
    run, = (tmp_path / "runs/sts").glob("bert-*")
    before = contents(run / "model")
    code, _, err = train()
    assert (code, err) == (0, "")
    assert contents(run / "model") == before
    assert len(list((tmp_path / "submissions").glob("*.csv"))) == 1


@pytest.mark.parametrize(("key", "value", "said"), [
    ("runs_dir", "file/runs", "file/runs"), ("runs_dir", "file", "file"),
    ("submissions_dir", "file/mine", "file/mine")])
def test_folder_below_a_file(train, tmp_path, key, value, said):
    """A folder that cannot be made, named; the run of a lost submission is kept."""
    (tmp_path / "file").write_text("mine")
    message = failure(train(f"{key}={value}"))
    assert message.startswith(said)
    assert message.endswith(": Not a directory")
    assert (tmp_path / "file").read_text() == "mine"
    assert not list(tmp_path.glob("**/*.tmp"))
    if key == "runs_dir":
        assert not (tmp_path / "runs").exists()
        assert not (tmp_path / "submissions").exists()
    else:
        assert train()[0] == 0  # reuses the run


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EDQUOT])
def test_folder_without_permission(train, tmp_path, monkeypatch, number):
    """No permission, a read-only file system, a full quota: the folder and the reason."""
    original = Path.mkdir

    def mkdir(self, *rest, **options) -> None:
        if self.parts[0] == "runs":
            raise OSError(number, os.strerror(number), str(self))
        original(self, *rest, **options)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    message = failure(train())
    assert message.startswith("runs")
    assert message.endswith(f": {os.strerror(number)}")
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "submissions").exists()


def test_unreadable_file(train, competition, tmp_path, monkeypatch):
    """A CSV that may not be read."""
    path = competition / "dev.csv"

    def opened(file, *words, **more):
        if file == path:
            raise PermissionError(errno.EACCES, "Permission denied", str(file))
        return open(file, *words, **more)

    monkeypatch.setattr(tables, "open", opened, raising=False)
    assert failure(train()) == f"{path}: Permission denied"
    assert not (tmp_path / "runs").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_log_on_a_full_disk(tmp_path, capfd):
    """The log that cannot be written hides no error and prints no traceback of its own."""
    (tmp_path / "log.txt").symlink_to("/dev/full")

    def fail() -> None:
        with logged_to(tmp_path):
            logging.getLogger("pipeline").warning("a line")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "model.safetensors")

    with pytest.raises(OSError, match="No space") as caught:
        fail()
    assert caught.value.filename == "model.safetensors"
    assert "Traceback" not in capfd.readouterr().err
