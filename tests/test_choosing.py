"""The recommendation on constructed predictions: best, alike, worse, and public scores' noise.

python -m pytest tests/test_choosing.py
"""

import re

import numpy as np
import pytest

from pipeline.choosing import Candidate, recommendation
from pipeline.comparison import holm, paired_difference, scores

RANDOM = np.random.default_rng(0)
LABELS = RANDOM.uniform(0, 5, 400)
GOOD = LABELS + 0.6 * RANDOM.normal(size=400)
NEAR = GOOD + 0.05 * RANDOM.normal(size=400)  # nearly the same predictions
WORSE = LABELS + 1.2 * RANDOM.normal(size=400)


def test_best_alike_and_worse():
    """The highest score is recommended; what is within the noise is named; what is not, counted."""
    candidates = [Candidate("worse", WORSE), Candidate("near", NEAR), Candidate("good", GOOD)]
    lines = recommendation(candidates, LABELS, "dev", 200)
    scored = scores(LABELS, np.stack([WORSE, NEAR, GOOD]))
    best, other = ("good", "near") if scored.values[2] > scored.values[1] else ("near", "good")
    at = [candidate.name for candidate in candidates].index(best)
    score = scored.interval(at)
    assert lines[0] == (f"submit {best}: dev Pearson {score['value']:.4f} [{score['low']:.4f}, "
                        f"{score['high']:.4f}] (400 pairs), the highest of 3 candidates")
    assert lines[1] == ("not distinguishable from it (paired bootstrap on the same rows, "
                        "Holm-corrected):")
    differences = [paired_difference(LABELS, candidates[at].predictions[None],
                                     candidate.predictions[None])
                   for candidate in candidates if candidate.name != best]
    part, p = differences[-1], holm([part["p"] for part in differences])[-1]
    assert lines[2] == (f"  {other}: {100 * part['value']:+.2f} [{100 * part['low']:+.2f}, "
                        f"{100 * part['high']:+.2f}] points of Pearson, corrected p {p:.3f}")
    assert lines[3:] == ["worse than it: 1 of the other 2"]


def test_one_and_none():
    """A single candidate is named as such; without a score there is nothing to recommend."""
    assert recommendation([Candidate("one", GOOD)], LABELS, "oof", 200) == [
        recommendation([Candidate("one", GOOD), Candidate("flat", np.ones(400))], LABELS, "oof",
                       200)[0]]
    assert recommendation([Candidate("one", GOOD)], LABELS, "oof", 200)[0].endswith(
        "(400 pairs), the only candidate")
    assert recommendation([Candidate("flat", np.ones(400))], LABELS, "dev", 200) == []
    assert recommendation([Candidate("one", GOOD)], np.ones(400), "dev", 200) == []


def spoken(public: list[float], rows: int = 100) -> list[str]:
    """What is said of GOOD's and WORSE's public scores."""
    candidates = [Candidate(name, part, score) for name, part, score
                  in zip(("good", "worse"), (GOOD, WORSE), public, strict=True)]
    lines = recommendation(candidates, LABELS, "dev", rows)
    assert lines[0].startswith("submit good: ")
    return [line for line in lines if "public" in line]


@pytest.mark.parametrize("public", [[0.9, 0.8], [0.9, 0.9], [float("nan"), 0.99],
                                    [0.9, float("nan")]])
def test_no_disagreement(public):
    """Nothing is said where public agrees or is known of one only."""
    assert spoken(public) == []


def test_disagreement():
    """A public score never changes the choice; its SD is that of resamples of so many rows."""
    line, = spoken([0.90, 0.99])
    assert line.startswith("public ranks worse first (0.9900, and 0.9000 for good), dev does not: ")
    alone, both = map(float, re.search(r"SD of about (\d\.\d+), the difference of these two "
                                       r"(\d\.\d+);", line).groups())
    rows = np.random.default_rng(1).integers(0, 400, (4000, 100))
    drawn = np.array([[np.corrcoef(part[some], LABELS[some])[0, 1] for part in (GOOD, WORSE)]
                      for some in rows])
    assert alone == pytest.approx(drawn[:, 1].std(), rel=0.15)
    assert both == pytest.approx((drawn[:, 1] - drawn[:, 0]).std(), rel=0.15)
    assert "more than chance explains" in line
    expected = np.subtract(*scores(LABELS, np.stack([WORSE, GOOD])).values)
    assert f"dev foretells {expected:+.4f}, public says +0.0900" in line


def test_disagreement_within_chance():
    """Two that are alike on dev: a small public gap is no reason."""
    candidates = [Candidate("good", GOOD, 0.93), Candidate("near", NEAR, 0.93)]
    best = recommendation(candidates, LABELS, "dev", 200)[0].split()[1].rstrip(":")
    for candidate in candidates:
        candidate.public = 0.93 if candidate.name == best else 0.9305
    line = recommendation(candidates, LABELS, "dev", 200)[-1]
    assert line.startswith("public ranks ")
    assert line.endswith("within chance, no reason to change the choice")
    assert recommendation(candidates, LABELS, "dev", 0)[-1] != line
