"""Which scores a test set may give by chance alone, when the model is as good as dev says."""

import numpy as np

from pipeline.comparison import blocks
from pipeline.metrics import RESAMPLES, interval, pearson

CELLS = 4_000_000  # of a block of resamples


def expected_score(labels: np.ndarray, predictions: np.ndarray, rows: int,
                   seed: int = 0) -> dict[str, float]:
    """The 95% predictive interval of the Pearson of `rows` new pairs like dev's.

    Twice resampled: a population is drawn from dev, because dev is itself a sample, and from it a
    test set of that size. labels and predictions (n,).
    """
    random, n = np.random.default_rng(seed), len(labels)
    scores = []
    for size in blocks(RESAMPLES, max(1, CELLS // max(n, rows))):
        population = random.integers(0, n, (size, n))
        taken = np.take_along_axis(population, random.integers(0, n, (size, rows)), axis=1)
        scores.append(pearson(predictions[taken], labels[taken]))
    found = np.concatenate(scores)
    found = found[np.isfinite(found)]
    low, high = np.percentile(found, [2.5, 97.5]) if len(found) else (np.nan, np.nan)
    return {"n": rows, "low": float(low), "high": float(high)}


def weighted_pearson(x: np.ndarray, y: np.ndarray, weights: np.ndarray,
                     axis: int = -1) -> np.ndarray | float:
    """Pearson correlation in which every row counts by its weight."""
    share = weights / weights.sum(axis=axis, keepdims=True)
    x = x - (share * x).sum(axis=axis, keepdims=True)
    y = y - (share * y).sum(axis=axis, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        return (share * x * y).sum(axis=axis) / np.sqrt(
            (share * x * x).sum(axis=axis) * (share * y * y).sum(axis=axis))


def reweighted(labels: np.ndarray, predictions: np.ndarray, weights: np.ndarray) -> dict:
    """Dev's Pearson if its rows came in the proportions of test.

    weights (n,); effective is the number of equally weighted rows that would be as informative
    (Kish 1965).
    """
    return {"pearson": interval(weighted_pearson, predictions, labels, weights),
            "effective": float(weights.sum() ** 2 / (weights**2).sum())}
