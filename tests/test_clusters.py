"""Agreement of clusters and groups.

python -m pytest tests/test_clusters.py
"""

import math

import numpy as np
import pytest

from pipeline.diagnostics.clusters import agreement


def test_groups_that_lie_together():
    """Well parted groups agree wholly, whatever their numbers; single sentences do not count."""
    random = np.random.default_rng(0)
    groups = np.array([7, 7, 7, 3, 3, 9, 9, 1, 2])
    vectors = np.eye(10)[groups] + 0.01 * random.standard_normal((9, 10))
    assert agreement(vectors, groups, 0) == pytest.approx(
        {"adjusted_rand": 1, "adjusted_mutual_information": 1})


def test_chance():
    """Vectors that know nothing of the groups agree with them about 0."""
    random = np.random.default_rng(1)
    found = agreement(random.standard_normal((300, 16)), np.repeat(np.arange(100), 3), 0)
    assert all(abs(value) < 0.05 for value in found.values())


def test_fixed_by_the_seed():
    """The same numbers again."""
    random = np.random.default_rng(2)
    vectors, groups = random.standard_normal((60, 4)), np.repeat(np.arange(20), 3)
    assert agreement(vectors, groups, 5) == agreement(vectors, groups, 5)


def test_collapsed_and_too_few():
    """All vectors equal: no more than chance; fewer than two groups: undefined."""
    found = agreement(np.ones((8, 3)), np.repeat(np.arange(4), 2), 0)
    assert found["adjusted_rand"] == pytest.approx(0, abs=1e-9)
    assert all(map(math.isnan, agreement(np.eye(4), np.array([0, 0, 1, 2]), 0).values()))
