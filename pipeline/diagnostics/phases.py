"""Phases of a series: stretches of slow change that are parted by bursts of fast change.

A smooth decay, however steep, has no phases. Three things must hold at a change point: PELT with a
linear cost (Killick et al. 2012, from `ruptures`) cuts the series there though every stretch may
follow the series' own smooth trend; the series moves faster there than on either side; and the
jump stands out from what the detrended series does elsewhere. The constants were set on series
without phases (white noise, AR(1), exponential, power-law and quadratic decays, warm-up): about
one in fifty has a false alarm, and no kind has more than one in ten. A step of five standard
deviations of the noise is found nearly always in 100 measurements, half of the time in 20.
"""

import numpy as np
from scipy.stats import median_abs_deviation

FEWEST = 20  # measurements: with fewer nothing can be told from noise
WINDOW = 0.05  # of the length: levels are means over such windows
PENALTY = 2.0  # of PELT, times the noise's variance times log n
RATIO = 2.0  # how much faster than on either side
STANDS_OUT = 4.0  # in robust standard deviations of the jumps elsewhere


def change_points(series: np.ndarray) -> list[int] | None:
    """The places in the series (n,) at which a new phase begins.

    Undefined values at either end are left out; None where fewer than FEWEST are left, or one in
    the middle is undefined.
    """
    defined = np.flatnonzero(np.isfinite(series))
    if len(defined) < FEWEST or defined[-1] - defined[0] >= len(defined):
        return None
    y, first = series[defined].astype(float), int(defined[0])
    spread = y.std()
    if spread <= 1e-12 * np.abs(y).max():
        return []
    y = (y - y.mean()) / spread
    n, smooth = len(y), trend(y)
    width = max(2, round(WINDOW * n))
    speed, rest = jumps(y, width), jumps(y - smooth, width)
    middle = np.nanmedian(rest)
    # A measure that counts (clusters of few sentences) moves by whole units, between which it is
    # still: half a unit is the least of its noise. For others the smallest difference is next to 0.
    unit = float(np.diff(np.unique(y.round(9))).min())
    scale = max(median_abs_deviation(rest, scale="normal", nan_policy="omit"), unit / 2)
    found = set()
    for place in cuts(y, smooth, width, penalty=PENALTY * scale**2 * width / 2 * np.log(n)):
        near = np.arange(max(width, place - width), min(n - width, place + width) + 1)
        place = int(near[np.argmax(np.abs(speed[near]))])
        if (abs(rest[place] - middle) > STANDS_OUT * scale
                and abs(speed[place]) > RATIO * around(y, place, width)):
            found.add(first + place)
    return sorted(found)


def trend(y: np.ndarray) -> np.ndarray:
    """The best a + b·t + c·exp(−t/τ) through the series (n,), over a grid of τ."""
    t = np.linspace(0, 1, len(y))
    fits = []
    for tau in np.geomspace(0.02, 2, 25):
        terms = np.stack([np.ones_like(t), t, np.exp(-t / tau)], axis=1)  # (n, 3)
        fits.append(terms @ np.linalg.lstsq(terms, y, rcond=None)[0])
    return min(fits, key=lambda fit: float(((y - fit)**2).sum()))


def jumps(y: np.ndarray, width: int) -> np.ndarray:
    """At each place the mean of the window from there on minus that before it; NaN at the ends."""
    n, total = len(y), np.concatenate([[0], np.cumsum(y)])
    place, found = np.arange(width, n - width + 1), np.full(n, np.nan)
    found[place] = (total[place + width] - 2 * total[place] + total[place - width]) / width
    return found


def cuts(y: np.ndarray, smooth: np.ndarray, width: int, penalty: float) -> list[int]:
    """Where PELT parts the series into stretches that each follow α + β · the smooth trend."""
    import ruptures

    signal = np.stack([y, np.ones_like(y), smooth], axis=1)
    search = ruptures.Pelt(model="linear", min_size=max(3, width), jump=max(1, len(y) // 100))
    return search.fit(signal).predict(pen=penalty)[:-1]


def around(y: np.ndarray, place: int, width: int) -> float:
    """The faster of the mean speeds in up to three windows before and after the jump's own."""
    before, after = min(3, place // width - 1), min(3, (len(y) - place) // width - 1)
    if min(before, after) < 1:
        return float("inf")  # no telling what it came from or led to

    def level(start: int) -> float:
        return float(y[start:start + width].mean())

    return max(abs(level(place - width) - level(place - (before + 1) * width)) / before,
               abs(level(place + after * width) - level(place)) / after)


def agreed(points: dict[str, list[int]], length: int, least: int = 2) -> list[int]:
    """Places at which at least so many kinds of series change together, within WINDOW · length.

    points: every kind's change points.
    """
    marks = sorted((place, name) for name, places in points.items() for place in places)
    found, group = [], []
    for place, name in [*marks, (10 * length, "")]:
        if group and place - group[0][0] > max(1, WINDOW * length):
            if len({name for _, name in group}) >= least:
                found.append(int(np.median([place for place, _ in group])))
            group = []
        group.append((place, name))
    return found
