"""How wrong a run is on a part of the rows, and by how much two runs differ there.

Every figure has a 95% bootstrap interval; a part of fewer than FEW rows says so.
"""

import numpy as np

from pipeline.comparison import paired_difference
from pipeline.metrics import RANGES, in_range, interval, pearson, spearman

FEW = 20


def mean(values: np.ndarray, axis: int = -1) -> np.ndarray:
    """The mean along an axis; of errors: the signed bias."""
    return values.mean(axis=axis)


def mean_absolute(errors: np.ndarray, axis: int = -1) -> np.ndarray:
    """Mean |prediction − label| along an axis."""
    return np.abs(errors).mean(axis=axis)


def root_mean_square(errors: np.ndarray, axis: int = -1) -> np.ndarray:
    """Root of the mean squared error along an axis."""
    return np.sqrt(np.square(errors).mean(axis=axis))


def absolute_difference(first: np.ndarray, other: np.ndarray, axis: int = -1) -> np.ndarray:
    """By how much the other's mean absolute error is larger."""
    return mean_absolute(other, axis) - mean_absolute(first, axis)


ERRORS = {"mae": mean_absolute, "bias": mean, "rmse": root_mean_square}
UNKNOWN = {"value": float("nan"), "low": float("nan"), "high": float("nan")}


def part(labels: np.ndarray, predictions: np.ndarray) -> dict:
    """Count and, for every run, mae, bias, rmse and Pearson; for two, the difference in mae.

    labels (n,); predictions (runs, n). The difference is the second run's mae minus the first's.
    """
    n, errors = len(labels), predictions - labels
    found = {"n": n, "few": n < FEW, "runs": [
        {**{name: interval(statistic, row) if n else UNKNOWN for name, statistic in ERRORS.items()},
         "pearson": interval(pearson, values, labels) if n > 2 else UNKNOWN}
        for row, values in zip(errors, predictions, strict=True)]}
    if len(predictions) == 2:
        found["difference"] = interval(absolute_difference, *errors) if n else UNKNOWN
    return found


def whole(labels: np.ndarray, predictions: np.ndarray) -> dict:
    """All rows as one part, with Spearman, and for two runs their paired difference in Pearson."""
    found = part(labels, predictions)
    for row, values in zip(found["runs"], predictions, strict=True):
        row["spearman"] = interval(spearman, values, labels)
    if len(predictions) == 2:
        found["pearson_difference"] = paired_difference(labels, predictions[:1], predictions[1:])
    return found


def ranges(labels: np.ndarray, predictions: np.ndarray) -> list[dict]:
    """Each label range as a part."""
    return [{"low": low, "high": high, "name": f"{low}–{high}",
             **part(labels[inside], predictions[:, inside])}
            for low, high in RANGES for inside in [in_range(labels, low, high)]]


def split(labels: np.ndarray, predictions: np.ndarray, names: np.ndarray,
          order: list[str]) -> list[dict]:
    """A part for each name of `order` that is among the rows' names (n,)."""
    return [{"name": name, **part(labels[names == name], predictions[:, names == name])}
            for name in order if (names == name).any()]
