"""Files and folders that are whole or not there at all, and their checksums.

python -m pytest tests/test_files.py
"""

import errno
import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest

from pipeline.files import checksums, plain, sha256, write_json, write_text, written_aside


def left(folder) -> set[str]:
    """Everything below the folder, hidden files included."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def fill(path, text: str) -> None:
    """A folder with two files in two levels."""
    (path / "inner").mkdir(parents=True)
    (path / "a.txt").write_text(text)
    (path / "inner" / "b.txt").write_text(text)


FOLDER = {"x", "x/a.txt", "x/inner", "x/inner/b.txt"}


def broken_off(path, write, error: BaseException) -> None:
    """Begins to write a file or folder and fails."""
    with written_aside(path) as aside:
        write(aside, "half")
        raise error


def test_file_appears_at_the_end(tmp_path):
    """Until the block ends the old content stands; afterwards nothing but the new one."""
    path = tmp_path / "deep" / "x.txt"
    with written_aside(path) as aside:
        aside.write_text("old")
        assert not path.exists()
        assert aside.parent == path.parent  # one file system: the renaming is atomic
    with written_aside(path) as aside:
        aside.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert left(tmp_path) == {"deep", "deep/x.txt"}


def test_folder_appears_at_the_end(tmp_path):
    """A folder replaces the folder before it, whose other files are gone."""
    path = tmp_path / "x"
    fill(path, "old")
    (path / "stale.txt").write_text("old")
    with written_aside(path) as aside:
        fill(aside, "new")
        assert (path / "a.txt").read_text() == (path / "stale.txt").read_text() == "old"
    assert left(tmp_path) == FOLDER
    assert (path / "inner" / "b.txt").read_text() == "new"


@pytest.mark.parametrize("error", [ValueError("x"), OSError(errno.ENOSPC, "full"),
                                   KeyboardInterrupt()])
@pytest.mark.parametrize("before", [True, False])
def test_exception_leaves_the_old_file(tmp_path, error, before):
    """Half a file is never seen, and nothing lies beside it."""
    path = tmp_path / "x.txt"
    if before:
        path.write_text("old")
    with pytest.raises(type(error)):
        broken_off(path, Path.write_text, error)
    assert left(tmp_path) == ({"x.txt"} if before else set())
    assert not before or path.read_text() == "old"


@pytest.mark.parametrize("error", [ValueError("x"), OSError(errno.ENOSPC, "full"),
                                   KeyboardInterrupt()])
@pytest.mark.parametrize("before", [True, False])
def test_exception_leaves_the_old_folder(tmp_path, error, before):
    """The same with folders."""
    path = tmp_path / "x"
    if before:
        fill(path, "old")
    with pytest.raises(type(error)):
        broken_off(path, fill, error)
    assert left(tmp_path) == (FOLDER if before else set())
    assert not before or (path / "inner" / "b.txt").read_text() == "old"


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_full_disk_at_the_end_leaves_the_old_content(tmp_path, monkeypatch, call, kind):
    """Flushing or renaming fails: what stood there still stands there, whole."""
    path, original, failed = tmp_path / "x", getattr(os, call), []
    fill(path, "old") if kind == "folder" else path.write_text("old")

    def full(*arguments) -> None:
        if failed or (call == "replace" and arguments[1] != path):
            return original(*arguments)
        failed.append(call)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match="No space"), written_aside(path) as aside:
        fill(aside, "new") if kind == "folder" else aside.write_text("new")
    assert failed
    assert left(tmp_path) == (FOLDER if kind == "folder" else {"x"})
    assert (path / "a.txt" if kind == "folder" else path).read_text() == "old"


def test_writing_nothing_leaves_the_old_folder(tmp_path):
    """A block that writes nothing is an error, and not one that costs the old content."""
    fill(tmp_path / "x", "old")
    with pytest.raises(FileNotFoundError), written_aside(tmp_path / "x"):
        pass
    assert left(tmp_path) == FOLDER


def test_a_failed_write_names_its_file(tmp_path, monkeypatch):
    """The system's word for a full disk comes without a file: which one it was is said."""
    def full(*_) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space") as caught:
        write_text(tmp_path / "x.txt", "text")
    assert "x.txt" in str(caught.value.filename)


def test_everything_is_flushed_before_the_renaming(tmp_path, monkeypatch):
    """Every file of a folder, then the rename, then the folder above it."""
    seen = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (
        seen.append(os.fstat(handle).st_ino), fsync(handle)))
    monkeypatch.setattr(os, "replace", lambda *pair: (seen.append("rename"), replace(*pair)))
    with written_aside(tmp_path / "x") as aside:
        fill(aside, "new")
    for name in ("a.txt", "inner/b.txt"):
        assert seen.index((tmp_path / "x" / name).stat().st_ino) < seen.index("rename")
    assert seen[-1] == tmp_path.stat().st_ino


def test_write_text(tmp_path):
    """UTF-8 with Unix line ends."""
    write_text(tmp_path / "x.txt", "한글\n😀\n")
    assert (tmp_path / "x.txt").read_bytes() == "한글\n😀\n".encode()


def test_write_json(tmp_path):
    """Readable Hangul, and null for numbers that JSON does not have."""
    write_json(tmp_path / "x.json", {"이름": [1.5, float("nan")], "b": {"c": float("-inf")},
                                     "d": (True, None, "NaN")})
    text = (tmp_path / "x.json").read_text(encoding="utf-8")
    assert "이름" in text
    assert json.loads(text, parse_constant=pytest.fail) == {
        "이름": [1.5, None], "b": {"c": None}, "d": [True, None, "NaN"]}


def test_failed_json_leaves_the_old_file(tmp_path):
    """What cannot be written does not truncate what was."""
    write_json(tmp_path / "x.json", [1])
    with pytest.raises(TypeError):
        write_json(tmp_path / "x.json", [object()])
    assert left(tmp_path) == {"x.json"}
    assert json.loads((tmp_path / "x.json").read_text()) == [1]


def test_plain():
    """numpy's own NaN too; everything finite stays as it is."""
    assert plain({"a": np.float64("nan"), "b": np.float64(0.1)}) == {"a": None, "b": 0.1}
    assert plain([0, "", False]) == [0, "", False]


def test_checksums(tmp_path):
    """Of files of any depth, by content alone."""
    fill(tmp_path / "x", "abc")
    mark = hashlib.sha256(b"abc").hexdigest()
    assert sha256(tmp_path / "x" / "a.txt") == mark
    assert checksums(tmp_path / "x") == {"a.txt": mark, "inner/b.txt": mark}
    (tmp_path / "x" / "inner" / "b.txt").write_text("abd")
    assert checksums(tmp_path / "x")["inner/b.txt"] != mark
    assert checksums(tmp_path / "none") == {}


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_a_killed_write_left_goes_with_the_next(tmp_path, kind):
    """Of the same name and of a process that is no more; another's work is left alone."""
    dead, living = 2**22 + 1, os.getppid()
    for name in (f".x.{dead}.tmp", f".x.{living}.tmp", f".y.{dead}.tmp"):
        (tmp_path / name).mkdir() if kind == "folder" else (tmp_path / name).write_text("half")
    write_text(tmp_path / "x", "whole")
    assert {path.name for path in tmp_path.iterdir()} == {"x", f".x.{living}.tmp",
                                                         f".y.{dead}.tmp"}
