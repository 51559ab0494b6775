"""Correlations, intervals, errors and geometry against scipy, hand-made numbers and brute force.

python -m pytest tests/test_metrics.py
"""

import math
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from pipeline.metrics import (
    alignment,
    by_range,
    effective_rank,
    interval,
    mean_cosine,
    normalised,
    pearson,
    regression,
    spearman,
    uniformity,
)

ORACLES = [(pearson, stats.pearsonr), (spearman, stats.spearmanr)]


def bivariate(rho, n, seed=0):
    """Normal samples (n,), (n,) whose true correlation is rho."""
    x, noise = np.random.default_rng(seed).standard_normal((2, n))
    return x, rho * x + math.sqrt(1 - rho**2) * noise


def unit_rows(n, d, seed=0):
    """Unit vectors (n, d), not spread evenly."""
    vectors = np.random.default_rng(seed).standard_normal((n, d)) + 0.5
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize(("found", "oracle"), ORACLES)
@pytest.mark.parametrize("decimals", [8, 1, 0])  # 1 and 0: many ties
def test_correlations_against_scipy(found, oracle, decimals):
    """The value of scipy, with and without ties, in both directions and precisions."""
    x, y = (np.round(part, decimals) for part in bivariate(0.5, 200))
    assert found(x, y) == pytest.approx(oracle(x, y).statistic, abs=1e-12)
    assert found(x, -y) == pytest.approx(-oracle(x, y).statistic, abs=1e-12)
    assert found(x.astype(np.float32), y) == pytest.approx(oracle(x, y).statistic, abs=1e-6)


@pytest.mark.parametrize(("found", "oracle"), ORACLES)
def test_correlations_along_axes(found, oracle):
    """Many samples at once give each one's value, along either axis."""
    x, y = np.random.default_rng(0).integers(0, 9, (2, 4, 30)).astype(float)
    expected = [oracle(one, other).statistic for one, other in zip(x, y, strict=True)]
    assert found(x, y) == pytest.approx(expected, abs=1e-12)
    assert found(x.T, y.T, axis=0) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("found", [pearson, spearman])
@pytest.mark.parametrize("value", [0.0, 2.5, 0.1, 4.2])
@pytest.mark.parametrize("n", [3, 10, 1001])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_constants_have_no_correlation(found, value, n, dtype):
    """NaN where a side is constant, also for numbers like 0.1 whose mean is rounded."""
    constant, other = np.full(n, value, dtype), bivariate(0.5, n)[0]
    assert math.isnan(found(constant, other))
    assert math.isnan(found(other, constant))
    both = found(np.stack([constant, other]), np.stack([other, 2 * other]))
    assert math.isnan(both[0])
    assert both[1] == pytest.approx(1)


def test_interval_covers_the_true_value():
    """In about 95 of 100 repetitions the interval holds the true correlation."""
    rho, repetitions = 0.6, 200
    found = [interval(pearson, *bivariate(rho, 80, seed)) for seed in range(repetitions)]
    covered = sum(one["low"] <= rho <= one["high"] for one in found) / repetitions
    assert 0.90 <= covered <= 0.985
    assert all(one["low"] < one["value"] < one["high"] for one in found)
    width = np.mean([one["high"] - one["low"] for one in found])
    fisher = 2 * 1.96 * (1 - rho**2) / math.sqrt(80)  # the width that large samples have
    assert width == pytest.approx(fisher, rel=0.1)


def test_interval_is_fixed_by_its_seed():
    """The same seed gives the same bounds, another seed nearly the same."""
    samples = bivariate(0.6, 50)
    one, again, other = (interval(spearman, *samples, seed=seed) for seed in (1, 1, 2))
    assert one == again
    assert one != other
    assert one["value"] == other["value"]
    assert one["low"] == pytest.approx(other["low"], abs=0.05)


def test_interval_resamples_rows_together():
    """A sample against itself is 1 in every resample."""
    found = interval(pearson, *[bivariate(0, 40)[0]] * 2)
    assert [found[name] for name in ("value", "low", "high")] == pytest.approx([1, 1, 1])


def test_interval_of_the_undefined():
    """One row, or a constant: bounds are NaN; a rare label that resamples lose does no harm."""
    one = interval(lambda x, axis=-1: x.mean(axis=axis), np.ones(1))
    assert one["value"] == 1
    constant = interval(pearson, np.full(9, 2.0), np.arange(9.0))
    assert all(math.isnan(bounds[name]) for bounds in (one, constant) for name in ("low", "high"))
    rare = interval(pearson, np.eye(6)[0], np.eye(6)[0] + np.arange(6) / 100)
    assert -1 <= rare["low"] <= rare["value"] <= rare["high"] <= 1 + 1e-9


def test_regression():
    """Correlations over the whole set; errors in label units."""
    labels, predictions = np.array([0, 1, 2, 5.0]), np.array([1, 1, 0, 4.0])
    found = regression(labels, predictions)
    assert found["n"] == 4
    assert found["mae"] == 1
    assert found["rmse"] == pytest.approx(math.sqrt(6 / 4))
    assert found["pearson"]["value"] == pytest.approx(stats.pearsonr(labels, predictions)[0])
    assert found["spearman"]["value"] == pytest.approx(stats.spearmanr(labels, predictions)[0])


def test_by_range_boundaries():
    """A label on a boundary belongs to the range above it, 5 to the last one."""
    labels = np.array([0, 0.9, 1, 1.9, 2, 4, 4.9, 5])
    rows = by_range(labels, labels + np.array([1, -2, 3, 1, -1, 0.5, -0.5, -3]))
    assert [(row["low"], row["high"], row["n"]) for row in rows] == [
        (0, 1, 2), (1, 2, 2), (2, 3, 1), (3, 4, 0), (4, 5, 3)]
    assert [row["mae"] for row in rows] == pytest.approx([1.5, 2, 1, math.nan, 4 / 3], nan_ok=True)
    assert [row["bias"] for row in rows] == pytest.approx([-0.5, 2, -1, math.nan, -1], nan_ok=True)


def test_normalised():
    """Rows of length one in their own direction; a zero row stays zero instead of NaN."""
    found = normalised(np.array([[3, 4], [0, 0], [0, -1e-3]], np.float32))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [[0.6, 0.8], [0, 0], [0, -1]], rtol=1e-6)


def test_alignment():
    """Mean distance to the power α: right angle 2, opposite 4, equal 0; NaN without pairs."""
    x = np.array([[1, 0], [1, 0], [0, 1]], np.float32)
    y = np.array([[0, 1], [-1, 0], [0, 1]], np.float32)
    assert alignment(x, y) == pytest.approx((2 + 4 + 0) / 3)
    assert alignment(x, y, alpha=1) == pytest.approx((math.sqrt(2) + 2) / 3)
    assert math.isnan(alignment(x[:0], y[:0]))
    x, y = unit_rows(50, 8), unit_rows(50, 8, seed=1)
    brute = np.mean([((a - b) ** 2).sum() for a, b in zip(*map(np.float64, (x, y)), strict=True)])
    assert alignment(x, y) == pytest.approx(brute, rel=1e-6)


def test_uniformity_by_hand():
    """Two at right angles: −4; three on a half circle: two distances of 2 and one of 4."""
    x = np.array([[1, 0], [0, 1], [-1, 0]], np.float32)
    assert uniformity(x[:2]) == pytest.approx(-4)
    assert uniformity(x[:2], t=0.5) == pytest.approx(-1)
    assert uniformity(x) == pytest.approx(math.log((2 * math.exp(-4) + math.exp(-8)) / 3))
    assert uniformity(np.repeat(x[:1], 3, axis=0)) == pytest.approx(0)
    assert math.isnan(uniformity(x[:1]))


@pytest.mark.parametrize("block", [1, 7, 4096])
def test_uniformity_against_brute_force(block):
    """A float64 sum over all pairs, whatever the block."""
    x = unit_rows(61, 8)
    terms = [math.exp(-2 * float(((a - b) ** 2).sum()))
             for a, b in combinations(x.astype(np.float64), 2)]
    assert uniformity(x, block=block) == pytest.approx(math.log(np.mean(terms)), rel=1e-6)


def test_mean_cosine():
    """The mean over all pairs, without a vector's cosine with itself."""
    x = unit_rows(61, 8)
    brute = np.mean([float(a @ b) for a, b in combinations(x.astype(np.float64), 2)])
    assert mean_cosine(x) == pytest.approx(brute, rel=1e-5)
    assert mean_cosine(np.eye(3, dtype=np.float32)) == pytest.approx(0, abs=1e-12)
    assert mean_cosine(np.repeat(x[:1], 5, axis=0)) == pytest.approx(1, rel=1e-6)
    assert math.isnan(mean_cosine(x[:1]))


def test_effective_rank_by_hand():
    """Two equal directions count as two; one line as one; values 3 and 1 by the formula."""
    assert effective_rank(np.eye(2)) == pytest.approx(2)
    assert effective_rank(np.tile([[3.0, 4.0]], (7, 1))) == pytest.approx(1, abs=1e-6)
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert effective_rank(np.diag([3.0, 1.0])) == pytest.approx(math.exp(entropy))
    assert math.isnan(effective_rank(np.zeros((3, 2))))
    assert math.isnan(effective_rank(np.zeros((0, 2))))


@pytest.mark.parametrize(("shape", "block"), [((61, 8), 7), ((5, 8), 7), ((61, 8), 8192)])
def test_effective_rank_against_singular_values(shape, block):
    """numpy's singular values in float64, for more rows than columns and for fewer."""
    x = unit_rows(*shape)
    values = np.linalg.svd(x.astype(np.float64), compute_uv=False)
    share = values / values.sum()
    expected = math.exp(-(share * np.log(share)).sum())
    assert effective_rank(x, block=block) == pytest.approx(expected, rel=1e-9)
