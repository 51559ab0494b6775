"""Measurements as pure functions of arrays: correlations with intervals, errors, geometry.

scipy.stats is imported where it is used: it takes a second, which stage=check can do without.
"""

import warnings

import numpy as np

RANGES = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]  # of labels; the last one is closed
RESAMPLES = 2000


def pearson(x: np.ndarray, y: np.ndarray, axis: int = -1) -> np.ndarray | float:
    """Pearson correlation along an axis; NaN where either side is constant."""
    constant = (np.ptp(x, axis=axis) == 0) | (np.ptp(y, axis=axis) == 0)
    x = x - x.mean(axis=axis, keepdims=True)
    y = y - y.mean(axis=axis, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        r = (x * y).sum(axis=axis) / np.sqrt((x * x).sum(axis=axis) * (y * y).sum(axis=axis))
    return np.where(constant, np.nan, r)[()]  # centring leaves rounding errors of a constant


def spearman(x: np.ndarray, y: np.ndarray, axis: int = -1) -> np.ndarray | float:
    """Spearman's rank correlation along an axis; ties take their mean rank."""
    from scipy import stats

    return pearson(stats.rankdata(x, axis=axis), stats.rankdata(y, axis=axis), axis=axis)


def interval(statistic, *samples: np.ndarray, seed: int = 0) -> dict[str, float]:
    """The statistic with its 95% percentile bootstrap interval over paired rows.

    statistic takes as many arrays as samples and an axis.  With fewer than two rows, or where
    the statistic is undefined, the bounds are NaN.
    """
    from scipy import stats

    value = float(statistic(*samples))
    n = len(samples[0])
    if n < 2 or not np.isfinite(value):
        return {"value": value, "low": float("nan"), "high": float("nan")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        found = stats.bootstrap(samples, statistic, paired=True, vectorized=True,
                                n_resamples=RESAMPLES, method="percentile",
                                batch=max(1, 4_000_000 // n), rng=np.random.default_rng(seed))
    low, high = np.nanpercentile(found.bootstrap_distribution, [2.5, 97.5])
    return {"value": value, "low": float(low), "high": float(high)}


def regression(labels: np.ndarray, predictions: np.ndarray) -> dict:
    """Correlations with intervals over the whole set, and errors in label units."""
    errors = predictions - labels
    return {
        "n": len(labels),
        "pearson": interval(pearson, predictions, labels),
        "spearman": interval(spearman, predictions, labels),
        "mae": float(np.abs(errors).mean()),
        "rmse": float(np.sqrt((errors**2).mean())),
    }


def in_range(labels: np.ndarray, low: float, high: float) -> np.ndarray:
    """A mask (n,) of the labels in [low, high); the last of the ranges holds its upper end too."""
    return (labels >= low) & ((labels < high) | (high == RANGES[-1][1]))


def by_range(labels: np.ndarray, predictions: np.ndarray) -> list[dict]:
    """Count, mean |prediction − label| and signed bias in each label range."""
    rows = []
    for low, high in RANGES:
        inside = in_range(labels, low, high)
        errors = predictions[inside] - labels[inside]
        some = len(errors) > 0
        rows.append({"low": low, "high": high, "n": len(errors),
                     "mae": float(np.abs(errors).mean()) if some else float("nan"),
                     "bias": float(errors.mean()) if some else float("nan")})
    return rows


def normalised(vectors: np.ndarray) -> np.ndarray:
    """Rows (n, d) of length one, float32."""
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-12)


def alignment(x: np.ndarray, y: np.ndarray, alpha: float = 2.0) -> float:
    """E ‖x − y‖^α over positive pairs of unit vectors (n, d) (Wang & Isola 2020, eq. 2)."""
    return float((np.linalg.norm(x - y, axis=1) ** alpha).mean()) if len(x) else float("nan")


def uniformity(x: np.ndarray, t: float = 2.0, block: int = 1024) -> float:
    """log E exp(−t‖x − y‖²) over distinct pairs of unit vectors (n, d) (Wang & Isola, eq. 3).

    Square block by square block, so that memory grows with n and not with n². x may be float32:
    the products and exponentials are, their sum is float64.
    """
    n, total = len(x), 0.0
    if n < 2:
        return float("nan")
    for start in range(0, n, block):
        part = x[start:start + block]
        for other in range(start, n, block):
            squared = (2 - 2 * (part @ x[other:other + block].T)).clip(0)  # (block, block)
            if other == start:
                squared = squared[np.triu_indices(len(part), k=1)]
            total += float(np.exp(-t * squared).sum(dtype=np.float64))
    return float(np.log(total / (n * (n - 1) / 2)))


def mean_cosine(x: np.ndarray) -> float:
    """Mean cosine of all distinct pairs of unit vectors (n, d): near 1 when the space collapsed."""
    n = len(x)
    total = float(np.square(x.sum(axis=0, dtype=np.float64)).sum())
    return (total - n) / (n * (n - 1)) if n > 1 else float("nan")


def effective_rank(x: np.ndarray, block: int = 8192) -> float:
    """exp of the entropy of the normalised singular values of (n, d) (Roy & Vetterli 2007).

    The number of directions that the vectors use: 1 when all lie on one line, at most min(n, d).
    The singular values come from the float64 Gram matrix (d, d), added up block by block.
    """
    from scipy import stats

    n, d = x.shape
    if n == 0:
        return float("nan")
    if n <= d:
        wide = x.astype(np.float64)
        gram = wide @ wide.T
    else:
        gram = np.zeros((d, d))
        for start in range(0, n, block):
            part = x[start:start + block].astype(np.float64)
            gram += part.T @ part
    values = np.sqrt(np.linalg.eigvalsh(gram).clip(0))
    return float(np.exp(stats.entropy(values))) if values.any() else float("nan")
