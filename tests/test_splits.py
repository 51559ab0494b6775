"""Groups of pairs that share a sentence, and parts held out in whole groups.

python -m pytest tests/test_splits.py
"""

import numpy as np
import pandas as pd
import pytest

from pipeline.splits import folds, groups, held_out


def pairs(*rows: str) -> pd.DataFrame:
    """`pairs("a b", …)`: a frame of those pairs."""
    return pd.DataFrame([row.split() for row in rows], columns=["sentence_1", "sentence_2"])


def together(frame: pd.DataFrame) -> set[tuple[int, ...]]:
    """The groups as tuples of row numbers."""
    numbers = groups(frame)
    assert len(numbers) == len(frame)
    return {tuple(np.flatnonzero(numbers == number)) for number in numbers}


@pytest.mark.parametrize(("frame", "expected"), [
    (pairs("a b", "c d"), {(0,), (1,)}),
    (pairs("a b", "b a", "c d"), {(0, 1), (2,)}),
    (pairs("a b", "a b"), {(0, 1)}),
    (pairs("a b", "x y", "b c", "c d", "y z"), {(0, 2, 3), (1, 4)}),
    (pairs("a b", "c d", "e f", "d a", "g g"), {(0, 1, 3), (2,), (4,)}),
    (pairs("a b", "c d", "e f", "g h", "h c", "b g"), {(0, 1, 3, 4, 5), (2,)})])
def test_groups(frame, expected):
    """Pairs that share a sentence, on either side and over any number of others, agree."""
    assert together(frame) == expected
    frame.index = frame.index[::-1] + 7  # the index does not matter
    assert together(frame) == expected


def many(seed: int = 0) -> pd.DataFrame:
    """500 pairs of 700 sentences: chains of many sizes, among many single pairs."""
    random = np.random.default_rng(seed)
    left, right = random.integers(0, 700, 300), random.integers(0, 700, 300)
    lone = [f"x{place} y{place}" for place in range(200)]
    return pairs(*[f"s{a} s{b}" for a, b in zip(left, right, strict=True)], *lone)


@pytest.mark.parametrize("seed", range(5))
def test_held_out_keeps_groups_whole(seed):
    """No sentence stands on both sides."""
    frame = many()
    out = held_out(frame, 50, seed)
    assert out.dtype == bool
    inside, outside = (set(part.to_numpy().ravel()) for part in (frame[out], frame[~out]))
    assert inside
    assert outside
    assert not inside & outside


def test_held_out_has_the_size():
    """Exactly as many where all pairs are alone; other seeds take other pairs."""
    frame = pairs(*[f"a{place} b{place}" for place in range(100)])
    parts = [held_out(frame, 10, seed) for seed in range(4)]
    assert [part.sum() for part in parts] == [10] * 4
    assert len({tuple(np.flatnonzero(part)) for part in parts}) == 4
    assert (held_out(frame, 10, 0) == parts[0]).all()


def test_held_out_beside_a_large_group():
    """A group larger than the part does not empty it, wherever the draw puts it."""
    frame = pairs(*[f"hub c{place}" for place in range(60)],
                  *[f"a{place} b{place}" for place in range(40)])
    sizes = [int(held_out(frame, 10, seed).sum()) for seed in range(40)]
    assert all(5 <= size <= 15 for size in sizes), sizes


def labelled(frame: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """The pairs with labels, mostly low, and sources of unequal size."""
    random = np.random.default_rng(seed)
    return frame.assign(
        label=np.minimum(random.exponential(1.5, len(frame)), 5).round(1),
        source=random.choice(["nsmc", "slack", "petition"], len(frame), p=[0.6, 0.3, 0.1]))


@pytest.mark.parametrize("k", [2, 5])
def test_folds_hold_every_pair_once_in_whole_groups(k):
    """Folds 0 … k − 1 of about the same size; no sentence stands in two."""
    frame = labelled(many())
    numbers = folds(frame, k, 42)
    sizes = np.bincount(numbers, minlength=k)
    assert len(numbers) == sizes.sum() == 500
    assert len(sizes) == k
    assert sizes == pytest.approx(500 / k, rel=0.1)
    assert (pd.Series(numbers).groupby(groups(frame)).nunique() == 1).all()
    assert pd.Series(groups(frame)).duplicated().any()


@pytest.mark.parametrize("seed", range(3))
def test_folds_are_alike_in_labels_and_sources(seed):
    """The share of every label range and every source is the whole's to within 4 points."""
    frame = labelled(many())
    numbers = folds(frame, 5, seed)
    for kind in (np.floor(frame["label"]).clip(upper=4), frame["source"]):
        whole = kind.value_counts(normalize=True)
        for number in range(5):
            part = kind[numbers == number].value_counts(normalize=True)
            assert (part.reindex(whole.index, fill_value=0) - whole).abs().max() < 0.04


def test_folds_are_seeded():
    """The seed fixes the folds; the index does not matter."""
    frame = labelled(many())
    once = folds(frame, 5, 42)
    assert (folds(frame.set_axis(frame.index[::-1] + 7), 5, 42) == once).all()
    assert not (folds(frame, 5, 43) == once).all()


@pytest.mark.parametrize("k", [2, 7, 20, 60])
def test_folds_of_rare_kinds(k):
    """Fewer pairs of every label and source than folds: still k folds, each with a pair."""
    frame = labelled(pairs(*[f"a{place} b{place}" for place in range(60)]))
    assert frame.groupby(["source", np.floor(frame["label"])]).size().max() < 20
    assert np.bincount(folds(frame, k, 0), minlength=k).min() >= 60 // k - 1 + (k == 60)
