"""Files that are never half-written: written aside, flushed, renamed; and their checksums."""

import errno
import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from safetensors import SafetensorError


@contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """Yields a path beside `path` to write a file or folder to; renames it when all went well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_dead(path)
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield aside
        for file in [aside] if aside.is_file() else sorted(aside.rglob("*")):
            if file.is_file():
                flush(file)
        old = path.with_name(f".{path.name}.old")
        if path.is_dir():
            os.rename(path, old)  # a folder cannot be renamed onto another; see `mend`
        try:
            os.replace(aside, path)
        except BaseException:
            if old.is_dir():
                os.rename(old, path)
            raise
        flush(path.parent)
        if old.is_dir():
            shutil.rmtree(old)
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
    except SafetensorError as error:
        if "os error 28" not in str(error):
            raise
        raise OSError(errno.ENOSPC, "No space left on device", str(path)) from error
    finally:
        if aside.is_dir():
            shutil.rmtree(aside)
        else:
            aside.unlink(missing_ok=True)


def remove_dead(path: Path) -> None:
    """Removes what killed processes left beside `path` when they were writing it."""
    pattern = re.compile(rf"\.{re.escape(path.name)}\.(\d+)\.tmp")
    for aside in path.parent.iterdir():
        found = pattern.fullmatch(aside.name)
        if found and not psutil.pid_exists(int(found[1])):
            shutil.rmtree(aside) if aside.is_dir() else aside.unlink(missing_ok=True)


def mend(folder: Path) -> None:
    """Puts back a folder whose replacement was broken off, removes what killed writes left."""
    for old in folder.glob(".*.old"):
        target = folder / old.name[1:-len(".old")]
        if target.exists():
            shutil.rmtree(old)
        else:
            os.replace(old, target)
    for aside in folder.glob(".*.tmp"):
        shutil.rmtree(aside) if aside.is_dir() else aside.unlink()


def flush(path: Path) -> None:
    """Forces a file or a folder's entries to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_text(path: Path, text: str) -> None:
    """Writes a UTF-8 file whole or not at all."""
    with written_aside(path) as aside:
        aside.write_text(text, encoding="utf-8", newline="\n")


def write_json(path: Path, content: Any) -> None:
    """Writes JSON whole or not at all; NaN and infinities become null, which every reader knows."""
    write_text(path, json.dumps(plain(content), ensure_ascii=False, indent=2) + "\n")


def plain(value: Any) -> Any:
    """The value with NaN and infinities as None, through dicts and lists."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def sha256(path: Path) -> str:
    """A file's SHA-256, hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksums(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below the folder, by relative path."""
    return {path.relative_to(folder).as_posix(): sha256(path)
            for path in sorted(folder.rglob("*")) if path.is_file()}
