"""An encoder's space in numbers, its verdict and its calibration.

python -m pytest tests/test_spaces.py
"""

import math

import numpy as np
import pytest
from scipy import stats

from pipeline.diagnostics.spaces import calibration, cosines, gap, measures, on_scale, verdict
from pipeline.metrics import normalised

RANDOM = np.random.default_rng(0)
LEFT, RIGHT = np.arange(100), np.arange(100, 200)
LABELS = np.tile([0.0, 1.5, 3.0, 4.0, 5.0], 20)


def space(share: float = 0.0, width: int = 32) -> np.ndarray:
    """Unit vectors of 200 sentences: pairs the closer the higher their label; `share` in common."""
    left, noise = RANDOM.standard_normal((2, 100, width))
    weight = (LABELS / 5)[:, None]
    vectors = np.concatenate([left, weight * left + (1 - weight) * noise])
    return normalised((vectors + share * math.sqrt(width) * np.eye(width)[0]).astype(np.float32))


def test_measures():
    """Against scipy, and alignment over the labels above the threshold alone."""
    vectors = space()
    found = measures(vectors, LEFT, RIGHT, LABELS, 3.5)
    scores = [float(x @ y) for x, y in zip(vectors[:100], vectors[100:], strict=True)]
    assert cosines(vectors, LEFT, RIGHT) == pytest.approx(scores, abs=1e-6)
    assert found["pearson"]["value"] == pytest.approx(stats.pearsonr(scores, LABELS).statistic)
    assert found["spearman"]["value"] == pytest.approx(
        stats.spearmanr(scores, LABELS).statistic, abs=1e-3)  # equal cosines differ by rounding
    apart = 2 - 2 * np.array(scores)
    assert found["alignment"] == pytest.approx(apart[LABELS > 3.5].mean(), rel=1e-5)
    assert found["alignment"] > measures(vectors, LEFT, RIGHT, LABELS, 4)["alignment"]
    assert found["gap"] == pytest.approx(np.mean(np.array(scores)[LABELS >= 4])
                                         - np.mean(np.array(scores)[LABELS < 1]))
    assert (found["pairs"], found["sentences"], found["width"]) == (100, 200, 32)


def test_gap_needs_both_ends():
    """Undefined without high or without low labels."""
    assert math.isnan(gap(np.ones(3), np.array([1.0, 2, 3])))
    assert gap(np.array([0.2, 0.9, 0.7]), np.array([0.5, 5, 4])) == pytest.approx(0.6)


@pytest.mark.parametrize(("vectors", "words"), [
    (space(), "not collapsed: random pairs have mean cosine 0.0"),
    (space(share=10), "collapsed, every sentence looks alike (mean cosine above 0.9)"),
    (normalised(np.pad(space(width=2), ((0, 0), (0, 62)))), "collapsed into few directions"),
    (normalised(np.ones((200, 8), np.float32)), "collapsed, every sentence looks alike"),
    (np.zeros((200, 8), np.float32), "undefined")])
def test_verdict(vectors, words):
    """Sound, in a cone, in a plane, in a point, zero: by the numbers that are named."""
    found = measures(vectors, LEFT, RIGHT, LABELS, 4)
    assert verdict(found).startswith(words)
    assert words == "undefined" or f"effective rank is {found['effective_rank']:.0f} of " in (
        verdict(found))


def test_calibration():
    """Exact on a line, scipy's on noise, the mean label where all scores are equal."""
    scores = RANDOM.random(50).astype(np.float32)
    assert calibration(scores, 3 * scores.astype(float) + 1) == pytest.approx((3, 1))
    noisy = 2 * scores + RANDOM.standard_normal(50)
    line = stats.linregress(scores.astype(float), noisy)
    assert calibration(scores, noisy) == pytest.approx((line.slope, line.intercept))
    assert calibration(np.ones(4), np.array([0.0, 1, 2, 5])) == (0, 2)


def test_on_scale():
    """Clipped to the labels' range."""
    assert on_scale(np.array([-1, 0.5, 0.9]), 10, -4).tolist() == [0, 1, 5]
