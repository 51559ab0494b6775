"""A run: one folder whose name ends in a hash of everything that shapes its result.

Two commands that would give the same result share one folder, so that finished work is found by
what it is and never by when it was made. Name, device, logging and paths do not count.
"""

import hashlib
import json
import logging
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from pipeline import __version__, processes
from pipeline.errors import UserError
from pipeline.files import checksums, mend, plain, sha256, write_json, write_text
from pipeline.trackers import TRACKERS

log = logging.getLogger(__name__)
UNCHECKED = {"manifest.json", "log.txt"}
READ = {"config.yaml", "history.jsonl", "metrics.json"}  # of a run that led to another
RECORD = UNCHECKED | READ | {"predictions"}


def identity(shape: dict[str, Any]) -> str:
    """Ten hexadecimal digits of the SHA-256 of everything that shapes a result."""
    text = json.dumps(shape, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


class Run:
    """One run's folder."""

    def __init__(self, folder: Path, shape: dict[str, Any]) -> None:
        self.folder, self.shape = folder, shape

    @property
    def identity(self) -> str:
        """The hash that the folder's name ends in."""
        return identity(self.shape)

    @property
    def model(self) -> Path:
        """The folder of the trained model."""
        return self.folder / "model"

    def manifest(self) -> dict[str, Any]:
        """What was recorded of the run; empty before it began or when unreadable."""
        return read_manifest(self.folder)

    def is_complete(self) -> bool:
        """Whether it finished and every file is still as it was written; says so when not."""
        manifest = self.manifest()
        if manifest.get("status") != "complete":
            return False
        if wrong := changed(self.folder, manifest["files"]):
            file = self.folder / wrong[0]
            log.warning("warning: %s is missing or changed: the stage runs anew", file)
        return not wrong

    def begin(self, config: str, encoder: str, machine: dict[str, Any]) -> None:
        """Writes config.yaml and a manifest that says the run is under way."""
        self.folder.mkdir(parents=True, exist_ok=True)
        mend(self.folder)
        write_text(self.folder / "config.yaml", config)
        write_manifest(self.folder, {
            "stage": self.shape["stage"], "identity": self.identity, "status": "running",
            "started": now(), "encoder": encoder, "machine": machine, "versions": versions(),
            "shape": self.shape})

    def finish(self, seconds: float) -> None:
        """Records that it is complete, with a checksum of every file; drops the checkpoints.

        Logs, manifests, locks and what trackers keep have none, nor those of runs inside it.
        seconds: what all the commands that worked on it spent training.
        """
        files = {name: mark for name, mark in checksums(self.folder).items()
                 if Path(name).name not in UNCHECKED and not name.endswith(".lock")
                 and not name.startswith("checkpoints/")
                 and not {*Path(name).parts} & {*TRACKERS}}
        write_manifest(self.folder, self.manifest() | {
            "status": "complete", "finished": now(), "seconds": round(seconds, 1), "files": files})
        shutil.rmtree(self.folder / "checkpoints", ignore_errors=True)

    def clear(self, kept: tuple[str, ...] = ()) -> None:
        """Removes what an earlier attempt left, but for its log and what is to be kept."""
        for path in self.folder.iterdir() if self.folder.exists() else ():
            if path.name not in ("log.txt", *kept):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def keep_record(folder: Path, status: str) -> None:
    """Leaves of a run its record, history, scores and predictions: its model is not needed.

    A later command that wants the model trains it anew. A run that another command works on is
    left alone.
    """
    manifest = read_manifest(folder)
    if not manifest:
        return
    lock = FileLock(folder.parent / f".{manifest['identity']}.lock", timeout=0)
    with suppress(Timeout), lock:
        write_manifest(folder, manifest | {"status": status})
        for path in folder.iterdir():
            if path.name not in RECORD:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def write_manifest(folder: Path, content: dict[str, Any]) -> None:
    """Writes a run folder's manifest with a checksum of its own content."""
    write_json(folder / "manifest.json", content | {"checksum": content_mark(content)})


def content_mark(manifest: dict[str, Any]) -> str:
    """SHA-256 of a manifest but for its checksum."""
    rest = {name: value for name, value in manifest.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(plain(rest), sort_keys=True).encode()).hexdigest()


def read_manifest(folder: Path) -> dict[str, Any]:
    """A run folder's manifest; empty when there is none, or it is damaged, which is said."""
    file = folder / "manifest.json"
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
        # Without a checksum: written before manifests had one.
        if manifest.get("checksum", content_mark(manifest)) == content_mark(manifest):
            return manifest
    except OSError:
        return {}
    except (ValueError, AttributeError):
        pass
    log.warning("warning: %s is damaged and is not used", file)
    return {}


def changed(folder: Path, files: dict[str, str]) -> list[str]:
    """Which of a run's files, given with checksums, are missing or not as it wrote them."""
    return [name for name, mark in files.items()
            if not (folder / name).is_file() or sha256(folder / name) != mark]


def finished(path: str, key: str = "run") -> Path:
    """The folder of a finished run that the user named with this key, whole as it was written."""
    folder = Path(path)
    if not path or not (folder / "manifest.json").is_file():
        raise UserError(f"{key}: expected the folder of a finished run, got {path!r}")
    if not (manifest := read_manifest(folder)):
        raise damaged(folder / "manifest.json")
    if (status := manifest.get("status")) != "complete":
        hint = "; the command that began it goes on with it" if status == "running" else ""
        raise UserError(f"{key}: expected a finished run, got {folder} with status {status!r}"
                        f"{hint}")
    if wrong := changed(folder, manifest["files"]):
        raise damaged(folder / wrong[0])
    for model in models(folder):  # the manifests of folds are in no list of checksums
        if not read_manifest(model.parent):
            raise damaged(model.parent / "manifest.json")
    return folder


def refuse_damaged_record(folder: Path) -> None:
    """Refuses a run that led to another when what is read of it is not as the run wrote it."""
    files = read_manifest(folder).get("files", {})
    if wrong := changed(folder, {name: files[name] for name in READ & set(files)}):
        raise damaged(folder / wrong[0])


def damaged(file: Path) -> UserError:
    """What is said of a finished run's file that is gone or another."""
    return UserError(f"{file}: expected the file that the run wrote, got one that is missing or "
                     "changed since; the command that made the run repairs it")


def models(folder: Path) -> list[Path]:
    """The folders of a finished run's models: its own, or those of its folds."""
    own = folder / "model"
    return [own] if own.is_dir() else sorted(
        folder.glob("folds/sts/fold*/model"),
        key=lambda model: int(model.parent.name.removeprefix("fold").partition("-")[0]))


@contextmanager
def claimed(runs_dir: Path, name: str, shape: dict[str, Any]) -> Iterator[Run]:
    """The run of this shape, under any name, with no other command in it: a second one waits.

    Of several processes of one command the first claims it for all.
    """
    if (not re.fullmatch(r"[\w.-]{1,80}", name) or name.startswith(".")
            or len(name.encode()) > 200):  # file names have 255 bytes
        raise UserError(f"name: expected letters, digits, '-', '_' and '.', got {name!r}")
    if processes.rank() > 0:
        yield Run(Path(processes.from_first("")), shape)
        return
    stage_dir, mark = runs_dir / shape["stage"], identity(shape)
    stage_dir.mkdir(parents=True, exist_ok=True)
    lock = FileLock(stage_dir / f".{mark}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        log.info("another process runs this %s: waiting for it", shape["stage"])
        lock.acquire()
    try:
        there = sorted(stage_dir.glob(f"*-{mark}"))
        run = Run(there[0] if there else stage_dir / f"{name}-{mark}", shape)
        processes.from_first(str(run.folder))
        with logged_to(run.folder):
            yield run
    finally:
        lock.release()


@contextmanager
def logged_to(folder: Path) -> Iterator[None]:
    """Appends the pipeline's log to the folder's log.txt, tracebacks included."""
    folder.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(folder / "log.txt", encoding="utf-8")
    handler.handleError = lambda record: None  # a full disk: the log is not what matters then
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    root = logging.getLogger("pipeline")
    root.addHandler(handler)
    try:
        yield
    except Exception:
        handler.emit(root.makeRecord(root.name, logging.ERROR, __file__, 0, "failed", (),
                                     sys.exc_info()))
        raise
    finally:
        root.removeHandler(handler)
        with suppress(OSError):
            handler.close()


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def versions() -> dict[str, str]:
    """Versions that a result may depend on."""
    names = ("torch", "transformers", "tokenizers", "accelerate", "datasets", "numpy", "pandas")
    return {"pipeline": __version__, "python": platform.python_version(),
            **{name: version(name) for name in names}}

