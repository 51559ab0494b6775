"""Phases: few false alarms on series without any, known change points found.

python -m pytest tests/test_phases.py
"""

import numpy as np
import pytest

from pipeline.diagnostics.phases import FEWEST, agreed, change_points, jumps, trend

N = 60
T = np.linspace(0, 1, N)


def white(random):
    """Standard normal noise."""
    return random.standard_normal(N)


def autoregressive(random, rho=0.7):
    """AR(1) noise."""
    y = random.standard_normal(N + 50)
    for place in range(1, len(y)):
        y[place] += rho * y[place - 1]
    return y[50:]


def warmed(random):
    """An exponential decay whose rate rises in warm-up and falls to 0, as the schedule's does."""
    rate = np.minimum(T / 0.1, 1) * np.minimum(1, (1 - T) / 0.9)
    return 500 * np.exp(-8 * np.cumsum(rate) / N) + white(random)


SMOOTH = {
    "white": white, "ar": autoregressive, "warmed": warmed,
    "decay": lambda random: 10 * np.exp(-T / 0.1) + white(random),
    "steep": lambda random: 1000 * np.exp(-T / 0.05) + white(random),
    "exact": lambda random: np.exp(-T / random.uniform(0.05, 1)),
    "decay, ar": lambda random: 20 * np.exp(-T / 0.2) + autoregressive(random),
    "power": lambda random: 100 / (1 + T / 0.05) + white(random),
    "quadratic": lambda random: 100 * (1 - T) ** 2 + white(random),
}


@pytest.mark.parametrize("kind", SMOOTH)
def test_few_false_alarms(kind):
    """At most two of 15 series without phases are said to have some; of smooth ones none."""
    random = np.random.default_rng(3)
    alarms = sum(bool(change_points(SMOOTH[kind](random))) for _ in range(15))
    assert alarms <= (0 if kind in ("steep", "exact", "quadratic") else 2)


STEPPED = {
    "one": ([0.5], lambda random: 6 * (T >= 0.5) + white(random)),
    "early": ([0.25], lambda random: -6 * (T >= 0.25) + white(random)),
    "two": ([0.3, 0.7], lambda random: 9 * (T >= 0.3) + 9 * (T >= 0.7) + white(random)),
    "on a decay": ([0.6], lambda random: (10 * np.exp(-T / 0.1) - 7 * (T >= 0.6)
                                          + white(random))),
    "within three measurements": ([0.5], lambda random: (20 * np.clip((T - 0.47) / 0.06, 0, 1)
                                                         + white(random))),
    "sigmoid": ([0.4], lambda random: 20 / (1 + np.exp(-(T - 0.4) / 0.015)) + white(random)),
}


@pytest.mark.parametrize("kind", STEPPED)
def test_known_change_points(kind):
    """In five of six series every change point is found within 5% of the length."""
    places, make = STEPPED[kind]
    random, right = np.random.default_rng(4), 0
    for _ in range(12):
        found = np.array(change_points(make(random)))
        right += (len(found) == len(places)
                  and all(abs(found - place * N).min() <= 0.05 * N + 0.5 for place in places))
    assert right >= 10


def test_scale_and_shift_do_not_count():
    """The same places, whatever the unit; a constant series has none."""
    y = 6 * (T >= 0.5) + white(np.random.default_rng(0))
    assert change_points(y) == change_points(1e-3 * y - 7) != []
    assert change_points(np.full(N, 0.3)) == []


def test_undefined_values():
    """Left out at the ends, without moving the places; in the middle nothing can be said."""
    y = 9 * (T >= 0.5) + white(np.random.default_rng(0))
    found = change_points(np.concatenate([[np.nan], y, [np.nan]]))
    assert found == [place + 1 for place in change_points(y)]
    y[10] = np.nan
    assert change_points(y) is None
    assert change_points(np.arange(FEWEST - 1.0)) is None
    assert change_points(np.full(N, np.nan)) is None


def test_jumps_by_hand():
    """Difference of window means; undefined where a window would leave the series."""
    assert jumps(np.array([1.0, 3, 5, 9, 1]), 2) == pytest.approx(
        [np.nan, np.nan, 5, 1, np.nan], nan_ok=True)


def test_trend_fits_its_own_kind():
    """A line plus an exponential is met exactly when its τ is on the grid."""
    y = 3 - 2 * T + 5 * np.exp(-T / 0.02)
    np.testing.assert_allclose(trend(y), y, atol=1e-9)


def test_agreed():
    """Two series at one place agree; one series twice or far away does not."""
    assert agreed({"a": [30], "b": [32], "c": [50]}, 60) == [31]
    assert agreed({"a": [30, 32], "b": [40]}, 60) == []
    assert agreed({"a": [10, 50], "b": [11, 50]}, 60) == [10, 50]
    assert agreed({"a": [10, 50], "b": [11, 50]}, 60, least=3) == []
    assert agreed({}, 60) == []


def test_counted_measures():
    """A flip by one unit is no phase, though nothing moves between flips; many units are one."""
    y = np.where((T > 0.2) & (T < 0.5), 1.0, 0.86)
    assert change_points(y) == []
    assert change_points(y + 1e-16 * white(np.random.default_rng(1))) == []
    y = np.round(12 * (T >= 0.5) + white(np.random.default_rng(0)))
    assert change_points(y) == [30]
