"""Submission files: `id,target` in the required order, checked before and after writing."""

import json
from pathlib import Path

import numpy as np
import pandas as pd

from pipeline.data import HIGHEST, LOWEST, check_ids, numbers
from pipeline.files import write_json, write_text
from pipeline.tables import read_table, require


def read_origin(file: Path) -> dict:
    """A submission's record; empty where there is none that can be read."""
    try:
        origin = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return origin if isinstance(origin, dict) else {}


def write_submission(path: Path, ids: list[str], predictions: np.ndarray, order: list[str],
                     origin: dict) -> None:
    """Writes predictions (n,) of ids in the given order, and beside it a JSON of their origin."""
    if set(ids) != set(order) or len(ids) != len(order):
        raise ValueError("expected a prediction for every id of the order, each once")
    text = lines(order, pd.Series(predictions, index=ids)[order].to_numpy())
    write_origin(path, origin)
    write_text(path, text)


def lines(ids: list[str], predictions: np.ndarray, header: bool = True) -> str:
    """Predictions (n,) as the text of a submission; raises ValueError unless they are finite."""
    if not np.isfinite(predictions).all():
        raise ValueError("expected finite predictions, got NaN or infinity")
    table = pd.DataFrame({"id": ids, "target": np.clip(predictions, LOWEST, HIGHEST)})
    return table.to_csv(index=False, header=header, float_format="%.6f", lineterminator="\n")


def write_origin(path: Path, origin: dict) -> None:
    """Writes the record beside a submission; a leaderboard score of the same run stays."""
    before = read_origin(path.with_suffix(".json"))
    if ("leaderboard" in before and "identity" in origin
            and before.get("identity") == origin["identity"]):
        origin = origin | {"leaderboard": before["leaderboard"]}
    write_json(path.with_suffix(".json"), origin)


def check_submission(path: Path, ids: list[str]) -> pd.DataFrame:
    """Reads a submission; raises UserError with the row of the first fault."""
    table = read_table(path)
    require(table, path, ["id", "target"])
    check_ids(path, table, ids)
    table["target"] = numbers(table, path, "target")
    return table
