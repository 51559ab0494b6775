"""Whether two ways of training differ: paired bootstrap over rows, corrected for many arms."""

from dataclasses import dataclass

import numpy as np

from pipeline.metrics import RESAMPLES, pearson


def paired_difference(labels: np.ndarray, first: np.ndarray, other: np.ndarray,
                      seed: int = 0) -> dict[str, float]:
    """Mean Pearson of `other` minus that of `first`, with 95% interval and two-sided p-value.

    labels (n,); first and other (seeds, n): predictions of the same rows. Rows are resampled, the
    same ones for both (Koehn 2004); the p-value counts resamples beyond zero, at least one.
    """
    random, n = np.random.default_rng(seed), len(labels)

    def difference(rows: np.ndarray) -> np.ndarray:
        taken = labels[rows]
        scores = [np.mean([pearson(part[rows], taken) for part in arm], axis=0)
                  for arm in (first, other)]
        return scores[1] - scores[0]

    value = float(difference(np.arange(n)))
    return with_p(value, np.concatenate([difference(random.integers(0, n, (size, n)))
                                         for size in blocks(RESAMPLES, max(1, 4_000_000 // n))]))


@dataclass
class Scores:
    """Pearson of many predictions of the same rows: over all of them and in shared resamples."""

    values: np.ndarray  # (k,)
    drawn: np.ndarray  # (RESAMPLES, k)

    def interval(self, one: int) -> dict[str, float]:
        """The score with its 95% interval; NaN where it is undefined."""
        drawn = self.drawn[np.isfinite(self.drawn[:, one]), one]
        value = float(self.values[one])
        if not len(drawn) or not np.isfinite(value):
            return {"value": value, "low": float("nan"), "high": float("nan")}
        low, high = np.percentile(drawn, [2.5, 97.5])
        return {"value": value, "low": float(low), "high": float(high)}

    def difference(self, first: int, other: int) -> dict[str, float]:
        """The other's score minus the first's, as `paired_difference` has it."""
        return with_p(float(self.values[other] - self.values[first]),
                      self.drawn[:, other] - self.drawn[:, first])


def scores(labels: np.ndarray, predictions: np.ndarray, seed: int = 0) -> Scores:
    """Scores of predictions (k, n) in one bootstrap, so that any two of them can be compared.

    A resample is how often each row was drawn, so that the sums of all predictions in all
    resamples are one matrix product: dozens of predictions of 10,000 rows take two seconds.
    """
    random, (k, n) = np.random.default_rng(seed), predictions.shape
    x = predictions - predictions.mean(axis=1, keepdims=True)
    x = x / np.sqrt((x * x).mean(axis=1, keepdims=True)).clip(1e-12)
    y = labels - labels.mean()
    y = y / np.sqrt((y * y).mean()).clip(1e-12)
    columns = np.concatenate([x, x * x, x * y, [y, y * y]]).T / n  # (n, 3k + 2)
    drawn = []
    for size in blocks(RESAMPLES, max(1, 4_000_000 // n)):
        rows = random.integers(0, n, (size, n)) + n * np.arange(size)[:, None]
        counts = np.bincount(rows.ravel(), minlength=size * n).reshape(size, n)
        sums = counts.astype(np.float64) @ columns  # (size, 3k + 2)
        mean, square, product = sums[:, :k], sums[:, k:2 * k], sums[:, 2 * k:3 * k]
        level, spread = sums[:, -2:-1], sums[:, -1:]
        variances = (square - mean**2) * (spread - level**2)
        with np.errstate(invalid="ignore", divide="ignore"):
            found = (product - mean * level) / np.sqrt(variances)
        drawn.append(np.where(variances > 1e-12, found, np.nan))
    return Scores(pearson(predictions, labels[None]), np.concatenate(drawn))


def with_p(value: float, drawn: np.ndarray) -> dict[str, float]:
    """A difference with the 95% interval of its resamples and its two-sided p-value."""
    drawn = drawn[np.isfinite(drawn)]
    if not len(drawn) or not np.isfinite(value):
        return {"value": value, "low": float("nan"), "high": float("nan"), "p": float("nan")}
    low, high = np.percentile(drawn, [2.5, 97.5])
    beyond = min((drawn <= 0).sum(), (drawn >= 0).sum())
    p = min(1.0, 2 * (beyond + 1) / (len(drawn) + 1))
    return {"value": value, "low": float(low), "high": float(high), "p": float(p)}


def blocks(total: int, size: int) -> list[int]:
    """`total` cut into parts of at most `size`."""
    return [min(size, total - start) for start in range(0, total, size)]


def holm(p_values: list[float]) -> list[float]:
    """Holm's correction (1979) for that many tests: each p-value as if it were the only one."""
    order = np.argsort(p_values)
    scaled = [p_values[place] * (len(p_values) - rank) for rank, place in enumerate(order)]
    corrected = np.empty(len(p_values))
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(scaled))
    return [float(value) for value in corrected]


def sentence(arm: str, first: str, found: dict[str, float], p: float) -> str:
    """One sentence that a newcomer understands; differences in points (Pearson × 100)."""
    points = (f"{100 * found['value']:+.1f} [{100 * found['low']:+.1f}, "
              f"{100 * found['high']:+.1f}] points of Pearson, corrected p {p:.3f}")
    if not p < 0.05:
        return f"{arm} is not distinguishable from {first}: {points}"
    return f"{arm} is {'better' if found['value'] > 0 else 'worse'} than {first}: {points}"
