"""The encoders of a comparison: what their names mean, and loading them.

A name is a run's folder, any Hugging Face folder or a Hub id, with `:POOLING` where the encoder is
not to be used as its folder records it; `encoder` is the configured one.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline import hub
from pipeline.encoder import Encoder, load_encoder
from pipeline.errors import UserError
from pipeline.heads import RECORD as HEAD
from pipeline.reading import POOLINGS, RECORD
from pipeline.runs import finished

KEY = "compare.encoders"
OWN = "encoder"


@dataclass(frozen=True)
class Contestant:
    """An encoder under a short label, and how it is to be read ("auto", 0: as recorded)."""

    label: str
    path: str
    pooling: str = "auto"
    prefix: str = "auto"
    max_length: int = 0

    @property
    def is_local(self) -> bool:
        """Whether it is a folder, not a model of the Hub."""
        return Path(self.path).is_dir()

    def load(self, is_hub_open: bool) -> Encoder:
        """The encoder; a Hub model comes from the cache where the Hub cannot be reached."""
        path = self.path
        if not self.is_local and not is_hub_open:
            if (folder := hub.cached(path)) is None:
                raise UserError(f"{path}: the Hub cannot be reached and the cache has no copy")
            path = str(folder)
        return load_encoder(path, self.pooling, self.prefix, self.max_length)


def contestants(names: list[str], own: Contestant) -> list[Contestant]:
    """What the names mean, each checked as far as it can be without loading.

    own is the configured encoder; its max_length holds for all that record none.
    """
    if not names or len(set(names)) < len(names):
        raise UserError(f"{KEY}: expected one or more different encoders, got [{','.join(names)}]")
    found = [own if name == OWN else contestant(name, own.max_length) for name in names]
    labels = [one.label for one in found]
    return [replace(one, label=name) if labels.count(one.label) > 1 else one
            for one, name in zip(found, names, strict=True)]


def contestant(name: str, max_length: int) -> Contestant:
    """One name's meaning."""
    path, _, pooling = name.rpartition(":")
    if not path or Path(name).is_dir():
        path, pooling = name, "auto"
    if pooling not in ("auto", *POOLINGS):
        raise UserError(f"{KEY}: expected PATH:POOLING with one of {', '.join(POOLINGS)}, "
                        f"got {name!r}")
    folder = Path(path).expanduser()
    if path.startswith((".", "/", "~")) and not folder.is_dir():
        raise UserError(f"{KEY}: expected a run, a folder or a Hub id, got no folder {path}")
    ending = "" if pooling == "auto" else f":{pooling}"
    label = (folder.resolve().name if folder.is_dir() else path.rpartition("/")[2]) + ending
    if (folder / "manifest.json").exists():
        folder = finished(str(folder)) / "model"
        if not folder.is_dir():
            raise UserError(f"{KEY}: expected a run with one model, got {path}; of a run with "
                            "folds, one of its folds/")
    if (folder / HEAD).exists() and json.loads((folder / HEAD).read_text())["head"] == "cross":
        raise UserError(f"{KEY}: expected an encoder of sentences, got {path}, a cross-encoder, "
                        "which reads pairs only; stage=diagnose shows it")
    return Contestant(label, str(folder) if folder.is_dir() else path, pooling,
                      max_length=0 if (folder / RECORD).exists() else max_length)
