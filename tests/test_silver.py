"""Silver pairs: which sentences meet, and which of the pairs are drawn.

python -m pytest tests/test_silver.py
"""

import numpy as np
import pandas as pd
import pytest

from pipeline.silver import NEAR, NEAREST, balanced, candidates, first_of, own_pairs


def unit(n: int, d: int = 6, seed: int = 0) -> np.ndarray:
    """n unit vectors."""
    vectors = np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def keys(pairs: np.ndarray) -> set[frozenset[int]]:
    """The pairs whichever way round."""
    return {frozenset(map(int, pair)) for pair in pairs}


def test_first_of():
    """The first of equal pairs counts, swapped ones are equal, and none is of equal sentences."""
    pairs = np.array([[2, 2], [3, 1], [1, 3], [0, 1], [3, 1], [1, 0]])
    assert first_of(pairs).tolist() == [1, 3]


def test_own_pairs():
    """Every set's pairs once, with the source of the first, in the order of the files."""
    frames = [pd.DataFrame({"source": "x", "sentence_1": list("abc"), "sentence_2": list("bcc")}),
              pd.DataFrame({"source": "y", "sentence_1": list("bd"), "sentence_2": list("aa")})]
    assert own_pairs(frames).to_numpy().tolist() == [
        ["x", "a", "b"], ["x", "b", "c"], ["y", "d", "a"]]


@pytest.mark.parametrize("n", [2, 5, 400])
def test_candidates(n):
    """New pairs only, each once; everyone with its nearest, and with those near and far."""
    vectors, own = unit(n), np.array([[0, 1]])
    found = candidates(vectors, own, 1000, 3)
    if n == 2:  # the one pair there is is known
        assert len(found) == 0
        return
    assert len(keys(found)) == len(found)
    assert not keys(found) & keys(own)
    assert all(len(pair) == 2 for pair in keys(found))
    ranks = np.argsort(np.argsort(-(vectors @ vectors.T), axis=1), axis=1) - 1  # itself: −1
    nearest = {frozenset((i, int(j))) for i in range(n) for j in np.flatnonzero(
        (ranks[i] >= 0) & (ranks[i] < min(NEAREST, n - 1)))}
    assert nearest <= keys(found) | keys(own)
    if n == 400:
        share = np.minimum(ranks[found[:, 0], found[:, 1]], ranks[found[:, 1], found[:, 0]])
        for low, high, drawn in NEAR:
            assert ((share >= low) & (share < high)).sum() > drawn * n / 4
        assert (share >= NEAR[-1][1]).sum() > n / 2  # at random


def test_candidates_are_seeded_and_limited():
    """The seed fixes them; of many sentences only some are anchors."""
    vectors, own = unit(3000), np.zeros((0, 2), int)
    first, again, other = (candidates(vectors, own, 100, seed) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert len(np.unique(first[:, 0])) == 200
    assert len(first) > 1000


def test_balanced():
    """Rare labels are drawn as often as common ones, without repeats, at most all."""
    labels = np.concatenate([np.full(9000, 0.7), np.full(900, 4.9), np.full(800, 5.0),
                             np.linspace(2.5, 2.99, 700)])
    rows = balanced(labels, 1200, 0)
    assert len(rows) == len(set(rows.tolist())) == 1200
    assert (np.diff(rows) > 0).all()
    parts = [(labels[rows] < 1).sum(), (labels[rows] >= 4.5).sum(), (labels[rows] == 5).sum()]
    assert 350 < parts[0] < 450  # three kinds: 4.9 and 5 are one
    assert 350 < parts[1] < 450
    assert parts[2] > 140
    assert np.array_equal(balanced(labels, 1200, 0), rows)
    assert not np.array_equal(balanced(labels, 1200, 1), rows)
    assert balanced(labels, 10**6, 0).tolist() == list(range(len(labels)))
    assert balanced(labels[:0], 5, 0).tolist() == []
