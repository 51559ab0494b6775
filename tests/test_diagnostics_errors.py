"""Errors of parts, calibration and chance against plain loops, scikit-learn and simulation.

python -m pytest tests/test_diagnostics_errors.py
"""

import math

import numpy as np
import pytest
from scipy import stats
from sklearn.isotonic import IsotonicRegression
from sklearn.model_selection import KFold

from pipeline import metrics
from pipeline.diagnostics import chance
from pipeline.diagnostics.calibration import calibration, curve, recalibrated
from pipeline.diagnostics.chance import expected_score, reweighted, weighted_pearson
from pipeline.diagnostics.parts import FEW, part, ranges, split, whole


def test_part_by_hand():
    """Two runs on four rows: errors +1, −1, 0, +2 and all 0."""
    labels = np.array([1.0, 2, 3, 2])
    found = part(labels, np.array([[2.0, 1, 3, 4], labels]))
    first, other = found["runs"]
    assert found["n"] == 4
    assert found["few"]
    assert first["mae"]["value"] == 1
    assert first["bias"]["value"] == 0.5
    assert first["rmse"]["value"] == pytest.approx(math.sqrt(6 / 4))
    assert first["pearson"]["value"] == pytest.approx(stats.pearsonr([2, 1, 3, 4], labels)[0])
    assert other["mae"] == {"value": 0, "low": 0, "high": 0}
    assert found["difference"]["value"] == -1
    assert -2 <= found["difference"]["low"] <= -1 <= found["difference"]["high"] <= 0


def test_part_without_rows():
    """No rows: everything is NaN and nothing fails; one run has no difference."""
    found = part(np.zeros(0), np.zeros((1, 0)))
    assert found["n"] == 0
    assert found["few"]
    assert "difference" not in found
    assert all(math.isnan(value) for name in ("mae", "bias", "rmse", "pearson")
               for value in found["runs"][0][name].values())


def test_paired_difference_is_narrower():
    """Runs that err on the same rows: the difference is far surer than either error."""
    random = np.random.default_rng(0)
    labels, noise = random.random(200) * 5, random.normal(0, 1, 200)
    found = part(labels, np.stack([labels + noise, labels + 1.1 * noise]))
    difference, error = found["difference"], found["runs"][0]["mae"]
    assert difference["low"] > 0
    assert difference["high"] - difference["low"] < 0.2 * (error["high"] - error["low"])
    expected = np.abs(1.1 * noise).mean() - np.abs(noise).mean()
    assert difference["value"] == pytest.approx(expected)


def test_ranges():
    """The ranges hold every row once, 5 in the last; fewer than 20 rows are marked."""
    labels = np.repeat([0.0, 1, 2.5, 4, 5], [FEW, FEW - 1, 1, 10, 10])
    found = ranges(labels, labels[None] + 0.5)
    assert [row["n"] for row in found] == [FEW, FEW - 1, 1, 0, 20]
    assert [row["few"] for row in found] == [False, True, True, True, False]
    assert [row["name"] for row in found] == ["0–1", "1–2", "2–3", "3–4", "4–5"]
    assert found[0]["runs"][0]["bias"] == {"value": 0.5, "low": 0.5, "high": 0.5}


def test_whole_and_split():
    """The whole has Spearman and the paired Pearson; a split keeps the order that is asked for."""
    random = np.random.default_rng(1)
    labels = random.random(60) * 5
    predictions = labels + random.normal(0, 1, (2, 60))
    found = whole(labels, predictions)
    assert found["runs"][1]["spearman"]["value"] == pytest.approx(
        stats.spearmanr(predictions[1], labels).statistic)
    assert found["pearson_difference"]["value"] == pytest.approx(
        stats.pearsonr(predictions[1], labels)[0] - stats.pearsonr(predictions[0], labels)[0])
    names = np.where(np.arange(60) < 25, "b", "a")
    parts = split(labels, predictions, names, ["b", "none of these", "a"])
    assert [(row["name"], row["n"]) for row in parts] == [("b", 25), ("a", 35)]
    assert parts[0]["runs"][0]["mae"]["value"] == pytest.approx(
        np.abs(predictions[0] - labels)[:25].mean())


def test_calibration_curve():
    """Bins of equally many rows in the order of the predictions."""
    predictions = np.array([3.0, 1, 2, 4])
    found = curve(np.array([30.0, 10, 20, 40]), predictions, bins=2)
    assert [(row["n"], row["prediction"], row["label"]["value"]) for row in found] == [
        (2, 1.5, 15), (2, 3.5, 35)]


def test_recalibration_is_of_unseen_rows():
    """Every row's value is that of the isotonic regression of the other folds."""
    random = np.random.default_rng(2)
    labels = random.random(50) * 5
    predictions = labels**2 / 5 + random.normal(0, 0.3, 50)
    found = recalibrated(labels, predictions, folds=5)
    for fitted, held in KFold(5, shuffle=True, random_state=0).split(labels):
        mapping = IsotonicRegression(y_min=0, y_max=5, out_of_bounds="clip").fit(
            predictions[fitted], labels[fitted])
        assert found[held] == pytest.approx(mapping.predict(predictions[held]))


def test_calibration_gain():
    """A bent scale gains; labels without any connection gain nothing; ten rows are needed."""
    random = np.random.default_rng(3)
    labels = random.random(400) * 5
    bent = calibration(labels, np.exp(labels) / 30 + random.normal(0, 0.05, 400))["gain"]
    assert bent["pearson"]["low"] > 0.01
    assert bent["mae"]["high"] < 0
    straight = calibration(labels, labels + random.normal(0, 0.5, 400))["gain"]
    assert straight["pearson"]["low"] < 0.001
    assert calibration(labels[:9], labels[:9])["gain"] is None


def test_expected_score_covers(monkeypatch):
    """About 95 of 100 test sets score inside what dev foretells, dev's own luck included."""
    monkeypatch.setattr(chance, "RESAMPLES", 400)
    inside, wide = 0, []
    for seed in range(150):
        x, noise = np.random.default_rng(seed).standard_normal((2, 100 + 60))
        y = 0.8 * x + 0.6 * noise
        found = expected_score(x[:100], y[:100], 60, seed)
        inside += found["low"] <= stats.pearsonr(x[100:], y[100:])[0] <= found["high"]
        wide.append(found["high"] - found["low"])
    assert 0.88 <= inside / 150 <= 0.99
    larger = expected_score(x[:100], y[:100], 6000)
    assert larger["high"] - larger["low"] < 0.9 * np.mean(wide)  # dev's own spread stays
    assert larger["high"] - larger["low"] > 0.4 * np.mean(wide)


def test_expected_score_undefined():
    """Constant predictions have no score to expect."""
    found = expected_score(np.arange(9.0), np.ones(9), 5)
    assert math.isnan(found["low"])
    assert math.isnan(found["high"])


def test_weighted_pearson():
    """Whole-number weights are repeated rows; equal weights are none."""
    x, y = np.random.default_rng(4).standard_normal((2, 12))
    times = np.arange(12) % 3
    assert weighted_pearson(x, y, times.astype(float)) == pytest.approx(
        stats.pearsonr(np.repeat(x, times), np.repeat(y, times))[0])
    assert weighted_pearson(x, y, np.full(12, 7.0)) == pytest.approx(metrics.pearson(x, y))
    both = weighted_pearson(np.stack([x, y]), np.stack([y, x]), np.ones((2, 12)))
    assert both == pytest.approx([metrics.pearson(x, y)] * 2)


def test_reweighted():
    """Kish's effective number of rows: (1 + 1 + 2)² / (1 + 1 + 4), and a value with interval."""
    labels = np.array([0.0, 2, 5])
    found = reweighted(labels, np.array([0.0, 3, 4]), np.array([1.0, 1, 2]))
    assert found["effective"] == pytest.approx(16 / 6)
    assert found["pearson"]["value"] == pytest.approx(
        stats.pearsonr([0, 3, 4, 4], [0, 2, 5, 5])[0])
