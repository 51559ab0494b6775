"""The finished sts runs that a blend is made of: found, checked, their predictions side by side.

    python run.py stage=ensemble runs=[runs/sts/A,runs/sts/B]
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipeline.data import Competition, content_hash
from pipeline.errors import UserError
from pipeline.files import sha256
from pipeline.runs import finished, read_manifest
from pipeline.tables import first, read_table, require


@dataclass
class Rows:
    """Rows with labels and what every member predicted of them without having seen their label."""

    frame: pd.DataFrame
    labels: np.ndarray  # (n,)
    predictions: np.ndarray  # (members, n)


def hashes(competition: Competition) -> dict[str, str]:
    """What the content of the three sets is recognised by, as in a run's manifest."""
    return {name: content_hash(getattr(competition, name)) for name in ("train", "dev", "test")}


def read_members(paths: list[str], data: dict[str, str], is_trial: bool) -> dict[Path, dict]:
    """The manifests of two or more different finished sts runs on this data, by folder."""
    members: dict[Path, dict[str, Any]] = {}
    for path in paths:
        folder = finished(path, "runs")
        manifest = read_manifest(folder)
        if manifest["stage"] != "sts":
            raise UserError(f"runs: expected runs of stage sts, got {folder} of stage "
                            f"{manifest['stage']}")
        if manifest["identity"] in [other["identity"] for other in members.values()]:
            raise UserError(f"runs: expected different runs, got {folder} twice")
        if manifest["shape"]["trial"] != is_trial:
            wanted, got = ("trial runs", "none") if is_trial else ("no trial run", "one")
            raise UserError(f"runs: expected {wanted}, got {folder}, which is {got}; trial runs "
                            "are blended by trial=always, and with each other only")
        for name, mark in data.items():
            if manifest["shape"]["data"].get(name) != mark:
                raise UserError(f"runs: expected runs on the {name}.csv of data.dir, got {folder} "
                                "on another")
        members[folder] = manifest
    if len(members) < 2:
        raise UserError(f"runs: expected two or more finished sts runs, got {len(members)}")
    return members


def read_predictions(folder: Path, name: str, frame: pd.DataFrame) -> np.ndarray:
    """What the run predicted of the frame's rows (n,), which must be the file's, in that order."""
    file = folder / "predictions" / f"{name}.csv"
    table = read_table(file)
    require(table, file, ["id", "prediction", *(["label"] if "label" in frame else [])])
    if sha256(file) != read_manifest(folder).get("files", {}).get(f"predictions/{name}.csv"):
        raise UserError(f"{file}: expected the file that the run wrote, got one changed since")
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


def rows_of(name: str, members: list[Path], frame: pd.DataFrame) -> Rows:
    """Every member's predictions of a labelled frame; name: dev or oof."""
    return Rows(frame, frame["label"].to_numpy(float),
                np.stack([read_predictions(folder, name, frame) for folder in members]))


def out_of_fold(members: list[Path], competition: Competition) -> tuple[Rows, bool] | None:
    """Out-of-fold predictions where all members have them, and whether dev's rows are among them.

    The rows are those of train, or of train and then dev where dev was trained on too.
    """
    files = [folder / "predictions" / "oof.csv" for folder in members]
    if not all(file.exists() for file in files):
        return None
    kept = ["id", "sentence_1", "sentence_2", "label"]
    both = pd.concat([competition.train[kept], competition.dev[kept]], ignore_index=True)
    has_dev = len(read_table(files[0])) == len(both)
    frame = both if has_dev else competition.train[kept]
    return rows_of("oof", members, frame), has_dev
