"""Augmented training pairs: how many, which, with which labels and ids.

python -m pytest tests/test_augment.py
"""

import numpy as np
import pandas as pd
import pytest
import torch

from pipeline import augment
from pipeline.batching import shuffled
from pipeline.data import SENTENCES
from pipeline.splits import groups

COLUMNS = ["id", "source", "sentence_1", "sentence_2", "label", "row", "binary-label"]


@pytest.fixture
def frame() -> pd.DataFrame:
    """Forty pairs: ten with label 0 (one sentence of theirs twice), thirty from 0.1 to 5."""
    labels = np.concatenate([np.zeros(10), np.linspace(0.1, 5, 30).round(1)])
    order = np.random.default_rng(0).permutation(40)
    table = pd.DataFrame({
        "id": [f"train-{place}" for place in range(40)],
        "source": [("nsmc", "slack", "petition")[place % 3] for place in range(40)],
        "sentence_1": [f"왼쪽 {place}" for place in range(40)],
        "sentence_2": [f"오른쪽 {max(place, 1)}" for place in range(40)], "label": labels,
        "row": range(2, 42), "binary-label": (labels >= 2.5).astype(float)})
    return table.iloc[order].reset_index(drop=True)


def test_swapped(frame):
    """Every pair twice, in both orders, with new ids; all else is the pair's own."""
    before = frame.copy()
    found = augment.swapped(frame)
    assert len(found) == 80
    assert found["id"].is_unique
    assert list(found.columns) == COLUMNS
    pd.testing.assert_frame_equal(found.head(40), before)
    other = found.tail(40).reset_index(drop=True)
    assert other["id"].tolist() == [f"{name}-swapped" for name in before["id"]]
    assert other["sentence_1"].tolist() == before["sentence_2"].tolist()
    assert other["sentence_2"].tolist() == before["sentence_1"].tolist()
    rest = ["source", "label", "row", "binary-label"]
    pd.testing.assert_frame_equal(other[rest], before[rest])
    pd.testing.assert_frame_equal(frame, before)


def test_copies(frame):
    """A quarter as many pairs of a sentence with itself, label 5, from pairs with label 0."""
    found = augment.with_copies(frame, 0.25, seed=1)
    pd.testing.assert_frame_equal(found.head(40), frame)
    added = found.tail(len(found) - 40)
    assert len(added) == 10
    assert found["id"].is_unique
    assert list(found.columns) == COLUMNS
    assert (added["sentence_1"] == added["sentence_2"]).all()
    assert added["sentence_1"].is_unique
    zeros = frame[frame["label"] == 0]
    assert set(added["sentence_1"]) <= set(zeros[SENTENCES].to_numpy().ravel())
    assert set(added["label"]) == {5.0}
    assert set(added["binary-label"]) == {1.0}
    origin = zeros.set_index("id")
    for copy in added.to_dict("records"):
        pair = origin.loc[copy["id"].split("-copy-")[0]]
        assert copy["sentence_1"] in pair[SENTENCES].tolist()
        assert copy["source"] == pair["source"]


def test_copies_follow_the_datas_threshold(frame):
    """binary-label of a copy is what the data say of label 5: 0 where no label reaches it."""
    found = augment.with_copies(frame.assign(**{"binary-label": 0.0}), 0.1, seed=1)
    assert set(found.tail(4)["binary-label"]) == {0.0}
    plain = augment.with_copies(frame.drop(columns="binary-label"), 0.1, seed=1)
    assert "binary-label" not in plain
    assert len(plain) == 44


def test_copies_end_with_the_sentences(frame):
    """At most each distinct sentence of a pair with label 0 once: 10 left, 9 right."""
    found = augment.with_copies(frame, 1.0, seed=1)
    assert len(found) == 40 + 19
    assert found["id"].is_unique


def test_copies_are_seeded(frame):
    """The same seed draws the same, another seed another."""
    once, again, other = (augment.with_copies(frame, 0.2, seed) for seed in (1, 1, 2))
    pd.testing.assert_frame_equal(once, again)
    assert once["sentence_1"].tolist() != other["sentence_1"].tolist()


@pytest.mark.parametrize(("share", "left"), [(0.5, 5), (0.3, 3), (0.0, 0), (1.0, 10), (0.04, 0)])
def test_fewer_zeros(frame, share, left):
    """Exactly the share of pairs with label 0 stays; all the others do, in their order."""
    found = augment.with_fewer_zeros(frame, share, seed=1)
    assert (found["label"] == 0).sum() == left
    assert found.index.tolist() == list(range(30 + left))
    pd.testing.assert_frame_equal(found[found["label"] > 0].reset_index(drop=True),
                                  frame[frame["label"] > 0].reset_index(drop=True))
    places = [frame["id"].tolist().index(name) for name in found["id"]]
    assert places == sorted(places)


def test_fewer_zeros_are_seeded(frame):
    """The same seed leaves the same, another seed others."""
    once, again, other = (augment.with_fewer_zeros(frame, 0.5, seed)["id"].tolist()
                          for seed in (1, 1, 2))
    assert once == again
    assert once != other


def test_twins_stay_in_their_group(frame):
    """Swapped twins and copies are of the group of the pairs that they come from."""
    found = augment.swapped(augment.with_copies(frame, 0.25, seed=1))
    numbers = pd.Series(groups(found), index=found["id"])
    for name in found["id"]:
        assert numbers[name] == numbers[name.removesuffix("-swapped").split("-copy-")[0]]


LABELS = np.repeat([0.0, 0.1, 0.5, 0.6, 2.5, 2.6, 5.0], [600, 20, 30, 10, 40, 80, 120])
BINS = [[0.0], [0.1, 0.5], [0.6], [2.5], [2.6], [5.0]]  # half a label wide, 0 alone
COUNTS = np.array([600, 50, 10, 40, 80, 120])


@pytest.mark.parametrize("power", [0.0, 0.3, 1.0])
def test_flattening_weights(power):
    """A bin's weight is its count to the power of −power, all of mean 1."""
    weights = augment.flattening(LABELS, power)
    assert weights.shape == LABELS.shape
    assert weights.mean() == pytest.approx(1)
    sums = np.array([weights[np.isin(LABELS, labels)].sum() for labels in BINS])
    expected = COUNTS ** (1 - power)
    assert sums / sums.sum() == pytest.approx(expected / expected.sum())


@pytest.mark.parametrize("power", [0.5, 1.0])
def test_drawn_frequencies(power):
    """Bins are drawn in proportion to count ** (1 − power), about in an epoch, closely in thirty.

    A row's draws differ from its weight by less than 1, in another way every epoch.
    """
    weights, n = augment.flattening(LABELS, power), len(LABELS)
    expected = COUNTS ** (1 - power) / (COUNTS ** (1 - power)).sum() * n
    drawn = np.zeros(n)
    for epoch in range(30):
        rows = np.concatenate(shuffled(n, 32, 7, epoch, drop_last=False, weights=weights))
        counts = np.bincount(rows, minlength=n)
        assert (np.abs(counts - weights) < 1).all()
        drawn += counts / 30
        found = np.array([counts[np.isin(LABELS, labels)].sum() for labels in BINS])
        assert found.sum() == n
        assert found == pytest.approx(expected, abs=35)
    found = np.array([drawn[np.isin(LABELS, labels)].sum() for labels in BINS])
    assert found == pytest.approx(expected, rel=0.1)


def test_noise_is_gaussian_clipped_and_seeded():
    """SD as asked, mean 0; at 0 and 5 one half is cut off; the generator is torch's."""
    labels = torch.tensor([2.5, 0.0, 5.0]).repeat_interleave(40_000)
    torch.manual_seed(1)
    found = augment.noisy(labels, 0.3)
    middle, low, high = found.view(3, -1)
    assert middle.mean().item() == pytest.approx(2.5, abs=0.006)
    assert middle.std().item() == pytest.approx(0.3, rel=0.02)
    assert (found.min().item(), found.max().item()) == (0.0, 5.0)
    for edge, value in ((low, 0.0), (high, 5.0)):
        assert (edge == value).float().mean().item() == pytest.approx(0.5, abs=0.01)
        assert (edge - value).abs().mean().item() == pytest.approx(0.3 * 0.3989, rel=0.03)
    torch.manual_seed(1)
    assert torch.equal(augment.noisy(labels, 0.3), found)
    assert not torch.equal(augment.noisy(labels, 0.3), found)
