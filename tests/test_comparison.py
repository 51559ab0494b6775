"""Paired bootstrap against scipy, by simulation and by hand; Holm's correction; the sentences.

python -m pytest tests/test_comparison.py
"""

import numpy as np
import pytest
from scipy import stats

from pipeline import comparison
from pipeline.comparison import blocks, holm, paired_difference, scores, sentence
from pipeline.metrics import interval, pearson


def simulated(random: np.random.Generator, n: int, noises: tuple[float, float], seeds: int = 1):
    """Labels (n,) and two arms' predictions (seeds, n): labels with that much noise."""
    labels = random.normal(size=n)
    return labels, *(labels + noise * random.normal(size=(seeds, n)) for noise in noises)


def test_against_scipy():
    """One seed each: the same interval as scipy's paired percentile bootstrap."""
    labels, first, other = simulated(np.random.default_rng(0), 120, (1.0, 0.6))

    def statistic(y, a, b, axis=-1):
        def r(x):
            x, z = x - x.mean(axis, keepdims=True), y - y.mean(axis, keepdims=True)
            return (x * z).sum(axis) / np.sqrt((x * x).sum(axis) * (z * z).sum(axis))
        return r(b) - r(a)

    oracle = stats.bootstrap((labels, first[0], other[0]), statistic, paired=True, vectorized=True,
                             n_resamples=20_000, method="percentile",
                             rng=np.random.default_rng(1)).confidence_interval
    found = paired_difference(labels, first, other)
    expected = (stats.pearsonr(other[0], labels).statistic
                - stats.pearsonr(first[0], labels).statistic)
    assert found["value"] == pytest.approx(expected, rel=1e-12)
    width = oracle.high - oracle.low
    assert found["low"] == pytest.approx(oracle.low, abs=0.07 * width)
    assert found["high"] == pytest.approx(oracle.high, abs=0.07 * width)


def test_mean_over_seeds_by_loops():
    """Several seeds: the mean of their correlations, not that of their predictions."""
    labels, first, other = simulated(np.random.default_rng(2), 40, (1.0, 0.9), seeds=3)

    def mean(arm, rows):
        return np.mean([np.corrcoef(part[rows], labels[rows])[0, 1] for part in arm])

    random, drawn = np.random.default_rng(5), []
    for _ in range(3000):
        rows = random.integers(0, 40, 40)
        drawn.append(mean(other, rows) - mean(first, rows))
    found = paired_difference(labels, first, other)
    every = np.arange(40)
    assert found["value"] == pytest.approx(mean(other, every) - mean(first, every), rel=1e-12)
    low, high = np.percentile(drawn, [2.5, 97.5])
    assert [found["low"], found["high"]] == pytest.approx([low, high], abs=0.08 * (high - low))
    p = 2 * min(np.mean(np.array(drawn) <= 0), np.mean(np.array(drawn) >= 0))
    assert found["p"] == pytest.approx(p, abs=0.06)
    back = paired_difference(labels, other, first)
    assert back["value"] == -found["value"]
    assert [back["low"], back["high"]] == pytest.approx([-found["high"], -found["low"]])
    assert back["p"] == found["p"]


def test_no_difference():
    """An arm against itself: exactly 0 and p 1; against one as good: 0 inside, p large."""
    labels, first, other = simulated(np.random.default_rng(3), 200, (0.8, 0.8), seeds=2)
    assert paired_difference(labels, first, first) == {"value": 0, "low": 0, "high": 0, "p": 1}
    found = paired_difference(labels, first, other)
    assert found["low"] < 0 < found["high"]
    assert found["p"] > 0.1


def test_clear_difference():
    """p is at its least, 2 / (resamples + 1), and never 0; better and worse by sign."""
    labels, first, other = simulated(np.random.default_rng(4), 200, (1.5, 0.3))
    better, worse = paired_difference(labels, first, other), paired_difference(labels, other, first)
    assert better["low"] > 0 > worse["high"]
    assert better["p"] == worse["p"] == pytest.approx(2 / (comparison.RESAMPLES + 1))


def test_deterministic(monkeypatch):
    """The same numbers again; another seed gives nearly the same interval."""
    labels, first, other = simulated(np.random.default_rng(5), 150, (1.0, 0.9))
    one, again, third = (paired_difference(labels, first, other, seed) for seed in (0, 0, 1))
    assert one == again
    assert one != third
    assert one["low"] == pytest.approx(third["low"], abs=0.01)
    assert one["value"] == third["value"]


def test_undefined():
    """Constant predictions have no correlation: everything is NaN, nothing fails."""
    labels, first, _ = simulated(np.random.default_rng(6), 30, (1.0, 1.0))
    found = paired_difference(labels, first, np.ones((1, 30)))
    assert all(np.isnan(value) for value in found.values())


def test_coverage(monkeypatch):
    """About 95 of 100 intervals hold the true difference of the correlations."""
    monkeypatch.setattr(comparison, "RESAMPLES", 400)
    random = np.random.default_rng(7)
    truth = 1 / np.sqrt(1 + 0.7**2) - 1 / np.sqrt(1 + 1.0**2)
    inside = 0
    for _ in range(150):
        found = paired_difference(*simulated(random, 100, (1.0, 0.7)))
        inside += found["low"] <= truth <= found["high"]
    assert 0.89 <= inside / 150 <= 0.99  # ± 3 standard errors, a little less for percentiles


def test_blocks():
    """Parts that add up, none larger than the size."""
    assert blocks(10, 4) == [4, 4, 2]
    assert blocks(8, 4) == [4, 4]
    assert blocks(3, 4) == [3]


@pytest.mark.parametrize(("values", "expected"), [
    ([0.01, 0.04, 0.03], [0.03, 0.06, 0.06]),  # 3·0.01, max(2·0.03, 1·0.04), 2·0.03
    ([0.2], [0.2]),
    ([0.5, 0.4, 0.9], [1.0, 1.0, 1.0]),
    ([0.03, 0.03], [0.06, 0.06]),
    ([0.04, 0.001, 0.02, 0.03], [0.06, 0.004, 0.06, 0.06])])
def test_holm_by_hand(values, expected):
    """The smallest times their number, the next times one less, never below one before it."""
    assert holm(values) == pytest.approx(expected)


def test_holm_keeps_the_order():
    """Corrected values are no smaller, at most 1 and in the order of the given ones."""
    values = np.random.default_rng(8).random(30) ** 3
    corrected = np.array(holm(list(values)))
    assert (corrected >= values).all()
    assert corrected.max() <= 1
    assert (np.diff(corrected[np.argsort(values)]) >= 0).all()


@pytest.mark.parametrize(("value", "p", "words"), [
    (0.0123, 0.012, "simcse>sts is better than sts: +1.2 [+0.4, +2.0]"),
    (-0.0123, 0.049, "simcse>sts is worse than sts: -1.2 [+0.4, +2.0]"),
    (0.0123, 0.05, "simcse>sts is not distinguishable from sts: +1.2 [+0.4, +2.0]"),
    (0.0123, float("nan"), "simcse>sts is not distinguishable from sts: +1.2 [+0.4, +2.0]")])
def test_sentence(value, p, words):
    """Better, worse, or neither when the corrected p is 0.05 or more or undefined."""
    found = {"value": value, "low": 0.004, "high": 0.02, "p": 0.001}
    assert sentence("simcse>sts", "sts", found, p) == (
        f"{words} points of Pearson, corrected p {p:.3f}")


def test_scores_are_paired_differences():
    """Many predictions in one bootstrap: the same resamples and numbers as two at a time."""
    labels, first, other = simulated(np.random.default_rng(9), 150, (1.0, 0.8), seeds=2)
    members = np.concatenate([first, other])
    found = scores(labels, members)
    assert found.values == pytest.approx([stats.pearsonr(part, labels).statistic
                                          for part in members])
    for i, j in ((0, 1), (2, 0), (1, 1)):
        assert found.difference(i, j) == pytest.approx(
            paired_difference(labels, members[i:i + 1], members[j:j + 1]))
    expected = interval(pearson, members[3], labels)
    width = expected["high"] - expected["low"]
    assert found.interval(3)["value"] == pytest.approx(expected["value"])
    for bound in ("low", "high"):
        assert found.interval(3)[bound] == pytest.approx(expected[bound], abs=0.08 * width)


def test_scores_of_constants():
    """Constant predictions have no score, and the others keep theirs; far off zero as well."""
    labels, first, _ = simulated(np.random.default_rng(10), 40, (1.0, 1.0))
    found = scores(labels + 1e4, np.stack([np.full(40, 2.5), first[0] + 1e4]))
    assert all(np.isnan(value) for value in found.interval(0).values())
    assert np.isnan(found.difference(0, 1)["p"])
    assert found.interval(1) == pytest.approx(scores(labels, first).interval(0), abs=1e-6)
