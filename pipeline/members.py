"""The finished sts runs that a blend is made of: found, checked, their predictions side by side.

    python run.py stage=ensemble runs=[runs/sts/A,runs/sts/B]
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipeline.data import Competition
from pipeline.errors import UserError
from pipeline.runs import finished, read_manifest
from pipeline.tables import first, read_table, require


@dataclass
class Rows:
    """Rows with labels and what every member predicted of them without having seen their label."""

    frame: pd.DataFrame
    labels: np.ndarray  # (n,)
    predictions: np.ndarray  # (members, n)


def read_members(paths: list[str], data: dict[str, str], is_trial: bool, key: str = "runs",
                 least: int = 2) -> dict[Path, dict]:
    """The manifests of `least` or more different finished sts runs on this data, by folder."""
    members: dict[Path, dict[str, Any]] = {}
    for path in paths:
        folder = finished(path, key)
        manifest = read_manifest(folder)
        if manifest["stage"] != "sts":
            raise UserError(f"{key}: expected runs of stage sts, got {folder} of stage "
                            f"{manifest['stage']}")
        if manifest["identity"] in [other["identity"] for other in members.values()]:
            raise UserError(f"{key}: expected different runs, got {folder} twice")
        if manifest["shape"]["trial"] != is_trial:
            wanted, got = ("trial runs", "none") if is_trial else ("no trial run", "one")
            raise UserError(f"{key}: expected {wanted}, got {folder}, which is {got}; trial runs "
                            "go together by trial=always, and with each other only")
        for name, mark in data.items():
            if manifest["shape"]["data"].get(name) != mark:
                raise UserError(f"{key}: expected runs on the {name}.csv of data.dir, got {folder} "
                                "on another")
        members[folder] = manifest
    if len(members) < least:
        raise UserError(f"{key}: expected {least} or more finished sts runs, got {len(members)}")
    return members


def read_predictions(folder: Path, name: str, frame: pd.DataFrame) -> np.ndarray:
    """What the run predicted of the frame's rows (n,), which must be the file's, in that order."""
    file = folder / "predictions" / f"{name}.csv"
    if f"predictions/{name}.csv" not in read_manifest(folder)["files"]:
        raise UserError(f"{file}: expected a file that the run wrote, got none")
    table = read_table(file)
    require(table, file, ["id", "prediction", *(["label"] if "label" in frame else [])])
    if len(table) != len(frame):
        raise UserError(f"{file}: expected {len(frame)} rows, got {len(table)}")
    wrong = table["id"] != frame["id"].to_numpy()
    if wrong.any():
        raise UserError(f"{file}: row {first(table, wrong)}: expected id "
                        f"{frame['id'].to_numpy()[wrong][0]!r}, got {table['id'][wrong].iloc[0]!r}")
    values = pd.to_numeric(table["prediction"], errors="coerce")
    if not np.isfinite(values).all():
        bad = ~np.isfinite(values)
        raise UserError(f"{file}: row {first(table, bad)}: expected prediction to be a number, got "
                        f"{table['prediction'][bad].iloc[0]!r}")
    if np.ptp(values) == 0:
        raise UserError(f"{file}: expected predictions that differ, got {values.iloc[0]:g} in "
                        "every row")
    return values.to_numpy(float)


def rows_of(name: str, members: list[Path], frames: list[pd.DataFrame]) -> Rows:
    """Every member's predictions of a labelled frame; name: dev or oof.

    frames: of each member, the rows in its file; the shortest, which the others begin with, counts.
    """
    frame = min(frames, key=len)
    labels = frame["label"].to_numpy(float)
    if np.ptp(labels) == 0:
        raise UserError(f"{name}: expected labels that differ, got {labels[0]:g} in every row")
    return Rows(frame, labels,
                np.stack([read_predictions(folder, name, own)[:len(frame)]
                          for folder, own in zip(members, frames, strict=True)]))


def labelled_rows(members: list[Path], competition: Competition) -> dict[str, Rows]:
    """`dev`, and before it `oof` where all members have out-of-fold predictions.

    The rows of oof are those of train, and then dev's where every member was trained on dev too;
    its frame's column `part` says which.
    """
    dev = rows_of("dev", members, [competition.dev] * len(members))
    files = [folder / "predictions" / "oof.csv" for folder in members]
    if not all(file.exists() for file in files):
        return {"dev": dev}
    kept = ["id", "sentence_1", "sentence_2", "label", "part"]
    train = competition.train.assign(part="train")[kept]
    both = pd.concat([train, competition.dev.assign(part="dev")[kept]], ignore_index=True)
    frames = [both if len(read_table(file)) > len(train) else train for file in files]
    return {"oof": rows_of("oof", members, frames), "dev": dev}
