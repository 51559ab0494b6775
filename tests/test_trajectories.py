"""Trajectories of traced runs and what a grid of them says.

python -m pytest tests/test_trajectories.py
"""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from pipeline.diagnostics import answers
from pipeline.diagnostics.trajectories import (
    METRICS,
    movers,
    phases,
    prediction,
    rank_correlation,
    stopping,
)


def trajectory(steps: int = 31, seed: int = 0, **series: object) -> pd.DataFrame:
    """A table of noise with some series put in."""
    random = np.random.default_rng(seed)
    table = pd.DataFrame({name: random.standard_normal(steps) for name in METRICS})
    table.insert(0, "step", 2 * np.arange(steps))
    return table.assign(**series)


def stepped(steps: int, at: int, height: float = 30.0) -> np.ndarray:
    """A noisy level that jumps."""
    return height * (np.arange(steps) >= at) + np.random.default_rng(at).standard_normal(steps)


def test_phases():
    """Change points are steps, not places; two kinds of metrics that change together agree."""
    table = trajectory(61, alignment=stepped(61, 30), uniformity=-stepped(61, 31),
                       effective_rank=stepped(61, 12), mean_cosine=-stepped(61, 12),
                       adjusted_rand=np.full(61, np.nan))
    found = phases(table)
    assert found["points"]["alignment"] == [60]
    assert found["points"]["uniformity"] == [62]
    assert found["points"]["effective_rank"] == [24]
    assert found["points"]["adjusted_rand"] is None
    assert found["agreed"] == [60]
    said = " ".join(answers.on_phases([found]))
    assert "of 7 series have a change point" in said
    assert "8 series were recorded, 1 of them" in said
    assert "change together in 1 of 1 cells: step 60 (cell 1)" in said


def test_too_short_for_phases():
    """Nothing is claimed of a few measurements."""
    found = [phases(trajectory(8))]
    assert found[0]["agreed"] == []
    assert "no series could be examined" in answers.on_phases(found)[0]


def test_stopping():
    """The best step, what going on lost, and the words with the worst cell."""
    rising = trajectory(4, dev_spearman=[0.1, 0.2, 0.3, 0.4])
    falling = trajectory(4, dev_spearman=[0.1, 0.5, np.nan, 0.45])
    assert stopping(rising) == {"best_step": 6, "best": 0.4, "final": 0.4, "lost": 0.0}
    found = stopping(falling)
    assert found["best_step"] == 2
    assert found["lost"] == pytest.approx(0.05)
    assert math.isnan(stopping(trajectory(4, dev_spearman=np.nan))["best"])
    rows = pd.DataFrame([{"cell": 1, **stopping(rising)}, {"cell": 2, **found}])
    said = answers.on_stopping(rows)
    assert len(said) == 1
    assert "1 of 2 cells" in said[0]
    assert "0.0500 at most (cell 2, step 2)" in said[0]
    assert answers.on_stopping(rows[:1]) == [
        "Early stopping: every cell was best at its last step."]


def grid_of(count: int) -> list[pd.DataFrame]:
    """Cells whose uniformity at every step ranks them by their last score, and others do not."""
    return [trajectory(5, seed=cell, uniformity=np.full(5, -0.1 * cell),
                       mean_cosine=np.full(5, 0.5),
                       dev_spearman=[0.1, 0.1, 0.1, 0.1, 0.5 + 0.01 * cell])
            for cell in range(count)]


def test_prediction():
    """scipy's correlations; a metric that ranks the cells does so from the first step on."""
    tables = grid_of(9)
    found = prediction(tables)
    assert len(found) == 4 * len(METRICS)
    assert set(found["step"]) == {2, 4, 6, 8}
    final = [table["dev_spearman"].iloc[-1] for table in tables]
    row = found[(found["metric"] == "alignment") & (found["step"] == 4)].iloc[0]
    expected = stats.spearmanr([table["alignment"][2] for table in tables], final).statistic
    assert row["value"] == pytest.approx(expected)
    assert row["low"] < row["value"] < row["high"]
    assert (found[found["metric"] == "uniformity"]["value"] == -1).all()
    assert found[found["metric"] == "mean_cosine"]["value"].isna().all()
    said = answers.on_prediction(found)
    assert "uniformity: predicts from step 2 on: -1.00 [-1.00, -1.00]." in said
    assert not [line for line in said if line.startswith("mean cosine")]


def test_prediction_at_common_steps():
    """Cells of different lengths are compared where all were measured."""
    tables = grid_of(6)
    tables[2] = tables[2].iloc[::2]
    assert set(prediction(tables)["step"]) == {4, 8}


def test_too_few_cells():
    """No correlation over four cells, and the words say how many are needed."""
    assert math.isnan(rank_correlation(np.arange(4.0), np.arange(4.0))["value"])
    found = prediction(grid_of(4))
    assert found["value"].isna().all()
    assert answers.on_prediction(found) == [
        "Prediction: not defined; it takes 5 cells that differ at a common step."]


def test_movers():
    """Only settings that vary; the direction is right; too few cells with phases are said."""
    cells = pd.DataFrame({"temperature": [0.01, 0.02, 0.05, 0.1, 0.2, 0.4], "dropout": 0.1,
                          "changes": [3, 3, 2, 2, 1, 0],
                          "first_change": [5, 7, 9, 20, np.nan, np.nan]})
    found = movers(cells, ["temperature", "dropout"])
    assert [(row["setting"], row["what"], row["n"]) for row in found] == [
        ("temperature", "changes", 6), ("temperature", "first_change", 4)]
    assert found[0]["value"] == pytest.approx(
        stats.spearmanr(cells["temperature"], cells["changes"]).statistic)
    first, second = answers.on_movers(found)
    assert first.endswith("over 6 cells: it moves it.")
    assert second == ("temperature: only 4 cells have the step of the first change point; 5 are "
                      "needed to say what moves it.")
    constant = movers(cells.assign(changes=0, first_change=np.nan), ["temperature"])
    assert answers.on_movers(constant) == [
        "What moves the phases: no cell has any, so there is nothing to be moved by temperature."]
    constant = movers(cells.assign(changes=1, first_change=7), ["temperature"])
    assert answers.on_movers(constant)[0] == (
        "temperature: the number of change points is the same in all 6 cells.")
