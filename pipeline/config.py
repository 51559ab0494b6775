"""The whole configuration: the sections, the keys above them, and the reference of all keys.

    python run.py help
    python -m pipeline.config > configs/base.yaml    # write the commented reference anew
"""

import re
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from pipeline.sections import (
    Ablate,
    Board,
    Compare,
    Data,
    Distill,
    Dynamics,
    Encoder,
    Ensemble,
    Export,
    Fetch,
    Nli,
    Simcse,
    Sts,
    Tune,
    key,
)

SAMPLE = Path(__file__).resolve().parent.parent / "data" / "sample"


@dataclass
class Config:
    """Everything; the order is the order of `python run.py help`."""

    stage: str = key("help", "what to do; `python run.py help` lists the stages")
    chain: list[str] = key(["simcse", "sts"], "the training stages in order, each starting from "
                                              "the one before it")
    preset: str = key("", "a file of configs/presets, or the path of any .yaml file; empty: "
                          "roberta-large, or none where encoder.path is given")
    trial: str = key("auto", "run on data/sample; auto: when data/ holds no CSV",
                     choices=["auto", "always", "never"])
    seed: int = key(42, "of every random choice", at_least=0, at_most=2**32 - 1)
    name: str = key("", "first part of run folders and submissions; empty: trial, the preset, "
                        "the encoder or the runs looked at")
    device: str = key("auto", "auto: cuda, then mps, then cpu",
                      choices=["auto", "cuda", "mps", "cpu"])
    precision: str = key("auto", "auto: bf16 where the processor computes it natively, fp16 on "
                                 "older cuda cards, else fp32",
                         choices=["auto", "fp32", "bf16", "fp16"])
    deterministic: bool = key(False, "only kernels that give the same bits again (slower on cuda)")
    tracker: str = key("none", "shows the history elsewhere too; wandb: offline unless logged in",
                       choices=["none", "tensorboard", "wandb"])
    force: bool = key(False, "run the stage anew though a finished run could be reused")
    runs_dir: str = key("runs", "where run folders go", is_path=True)
    submissions_dir: str = key("submissions", "where submissions go", is_path=True)
    run: str = key("", "a finished run's folder (predict, diagnose, export)", is_path=True)
    runs: list[str] = key([], "finished runs' folders (ensemble; diagnose: two side by side)",
                          is_path=True)
    pairs: str = key("", "a CSV of pairs to be scored (predict, compare)", is_path=True)
    submission: str = key("", "a submission to be checked (check) or scored (board)", is_path=True)
    data: Data = field(default_factory=Data)
    encoder: Encoder = field(default_factory=Encoder)
    simcse: Simcse = field(default_factory=Simcse)
    nli: Nli = field(default_factory=Nli)
    distill: Distill = field(default_factory=Distill)
    sts: Sts = field(default_factory=Sts)
    fetch: Fetch = field(default_factory=Fetch)
    ablate: Ablate = field(default_factory=Ablate)
    ensemble: Ensemble = field(default_factory=Ensemble)
    compare: Compare = field(default_factory=Compare)
    dynamics: Dynamics = field(default_factory=Dynamics)
    board: Board = field(default_factory=Board)
    tune: Tune = field(default_factory=Tune)
    export: Export = field(default_factory=Export)


def keys(schema: type = Config, before: str = "") -> dict[str, tuple[Any, dict]]:
    """Every dotted key with its default and its metadata."""
    found: dict[str, tuple[Any, dict]] = {}
    for item in fields(schema):
        default = item.default if item.default is not MISSING else item.default_factory()
        if is_dataclass(default):
            found |= keys(type(default), f"{before}{item.name}.")
        else:
            found[before + item.name] = default, dict(item.metadata)
    return found


KEYS = keys()


def recorded(config: Config) -> dict[str, Any]:
    """The configuration as run folders keep it: the password of a database is not told."""
    found = asdict(config)
    found["tune"]["storage"] = without_password(config.tune.storage)
    return found


def without_password(url: str) -> str:
    """A database's URL with its user's password, and any query, left out."""
    return re.sub(r"(?<=://)([^/@]*?):.*@", r"\1:***@", url.partition("?")[0])


def shown(value: Any) -> str:
    """A default as one would type it on the command line."""
    if isinstance(value, list):
        return "[" + ",".join(value) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def reference() -> str:
    """The text of configs/base.yaml: every key commented out, with its default and meaning."""
    lines = ["# Settings for every run of yours: take away the # of a line and change its value.",
             "# Presets and the command line go above this file. Written by",
             "# python -m pipeline.config > configs/base.yaml", ""]
    section = ""
    for name, (default, metadata) in KEYS.items():
        head, dot, leaf = name.rpartition(".")
        if head != section:
            section = head
            lines += ["", f"# {section}:"]
        choices = f" ({' | '.join(metadata['choices'])})" if "choices" in metadata else ""
        value = f'"{default}"' if default == "" else shown(default)
        lines += [f"# {'  ' if dot else ''}{leaf}: {value}  # {metadata['help']}{choices}"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(reference(), end="")
