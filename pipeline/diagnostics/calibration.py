"""Whether predictions are right on average at every level, and what a monotone map would gain."""

import numpy as np
from sklearn.model_selection import KFold

from pipeline.calibration import monotone
from pipeline.comparison import paired_difference
from pipeline.diagnostics.parts import absolute_difference, mean
from pipeline.metrics import interval

BINS = 10
FOLDS = 5


def curve(labels: np.ndarray, predictions: np.ndarray, bins: int = BINS) -> list[dict]:
    """Mean prediction against mean label, with interval, in bins of equally many rows.

    labels and predictions (n,). Perfect calibration has the two equal in every bin.
    """
    order = np.argsort(predictions, kind="stable")
    return [{"n": len(rows), "prediction": float(predictions[rows].mean()),
             "label": interval(mean, labels[rows])}
            for rows in np.array_split(order, bins) if len(rows)]


def recalibrated(labels: np.ndarray, predictions: np.ndarray, folds: int = FOLDS) -> np.ndarray:
    """Predictions (n,) mapped by isotonic regressions that did not see the row's own fold."""
    found = np.empty(len(labels))
    for fitted, held in KFold(folds, shuffle=True, random_state=0).split(predictions):
        found[held] = monotone(predictions[fitted], labels[fitted])(predictions[held])
    return found


def calibration(labels: np.ndarray, predictions: np.ndarray) -> dict:
    """A run's calibration curve and the cross-validated gain of isotonic recalibration."""
    gain = None
    if len(labels) >= 2 * FOLDS:
        mapped = recalibrated(labels, predictions)
        gain = {"pearson": paired_difference(labels, predictions[None], mapped[None]),
                "mae": interval(absolute_difference, predictions - labels, mapped - labels)}
    return {"curve": curve(labels, predictions), "gain": gain, "folds": FOLDS}
