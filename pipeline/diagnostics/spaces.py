"""An encoder's space: how it orders pairs, how it is shaped, and has it collapsed?"""

import numpy as np

from pipeline.data import HIGHEST, LOWEST
from pipeline.geometry import COLLAPSED
from pipeline.metrics import (
    RANGES,
    alignment,
    effective_rank,
    interval,
    mean_cosine,
    pearson,
    spearman,
    uniformity,
)

FEW_DIRECTIONS = 0.1  # share of the possible effective rank


def cosines(vectors: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Cosines (n,) of the pairs of unit vectors (sentences, d)."""
    return (vectors[left] * vectors[right]).sum(axis=1)


def measures(vectors: np.ndarray, left: np.ndarray, right: np.ndarray, labels: np.ndarray,
             positive_above: float) -> dict:
    """Correlations of the pairs' cosines with their labels, and the geometry of all sentences.

    vectors (sentences, d) of length one; left, right, labels (n,).
    """
    scores, positive = cosines(vectors, left, right), labels > positive_above
    return {"pairs": len(labels), "sentences": len(vectors), "width": vectors.shape[1],
            "pearson": interval(pearson, scores, labels),
            "spearman": interval(spearman, scores, labels),
            "alignment": alignment(vectors[left[positive]], vectors[right[positive]]),
            "uniformity": uniformity(vectors), "mean_cosine": mean_cosine(vectors),
            "effective_rank": effective_rank(vectors), "gap": gap(scores, labels)}


def gap(scores: np.ndarray, labels: np.ndarray) -> float:
    """Mean score of the highest label range minus that of the lowest; NaN if one is empty."""
    low, high = labels < RANGES[0][1], labels >= RANGES[-1][0]
    if not (low.any() and high.any()):
        return float("nan")
    return float(scores[high].mean() - scores[low].mean())


def verdict(found: dict) -> str:
    """Plain words: collapsed or not, and by what numbers. found: of `measures`."""
    cosine, rank = found["mean_cosine"], found["effective_rank"]
    if not (np.isfinite(cosine) and np.isfinite(rank)):
        return "undefined: the vectors are zero or no numbers"
    most = min(found["width"], found["sentences"])
    numbers = (f"random pairs have mean cosine {cosine:.2f}, the effective rank is {rank:.0f} of "
               f"{most}, pairs with labels 4-5 lie {found['gap']:.2f} of cosine above those with "
               "0-1")
    if cosine > COLLAPSED:
        return f"collapsed, every sentence looks alike (mean cosine above {COLLAPSED}): {numbers}"
    if rank < FEW_DIRECTIONS * most:
        return (f"collapsed into few directions (effective rank below {FEW_DIRECTIONS:.0%} of "
                f"what is possible): {numbers}")
    return f"not collapsed: {numbers}"


def calibration(scores: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """Slope and intercept that turn a cosine into a label, by least squares on labelled pairs."""
    scores = scores.astype(np.float64)
    if np.ptp(scores) == 0:
        return 0.0, float(labels.mean())
    slope, intercept = np.polyfit(scores, labels, 1)
    return float(slope), float(intercept)


def on_scale(scores: np.ndarray, slope: float, intercept: float) -> np.ndarray:
    """Scores on the label scale, clipped to 0–5."""
    return np.clip(slope * scores.astype(np.float64) + intercept, LOWEST, HIGHEST)
