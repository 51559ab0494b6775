"""Silver pairs: sentences put together anew, for trained models to label (Thakur et al. 2021).

The competition's pairs are few, its sentences many: a sentence and one of its neighbours, near or
far, make a pair as good as its own. They are drawn so that all labels are about as frequent.
"""

import numpy as np
import pandas as pd

from pipeline.corpus import sentence_table
from pipeline.data import HIGHEST, LOWEST, SENTENCES

FILE = "silver.csv"  # in a distill run's folder
NEAREST = 3  # neighbours that every sentence is paired with
NEAR = [(3, 10, 2), (10, 60, 2)]  # and so many drawn from here to there, counted from 0
BLOCK = 1024  # sentences compared with all others at a time
BINS = 10  # of the labels


def own_pairs(frames: list[pd.DataFrame]) -> pd.DataFrame:
    """The frames' different pairs with their source, without those of equal sentences."""
    rows = pd.concat(frames)[["source", *SENTENCES]]
    _, left, right = sentence_table(rows)
    return rows.iloc[first_of(np.stack([left, right], axis=1))].reset_index(drop=True)


def first_of(pairs: np.ndarray) -> np.ndarray:
    """Where each pair (n, 2) stands first, whichever way round; none of equal numbers."""
    rows = np.flatnonzero(pairs[:, 0] != pairs[:, 1])
    _, first = np.unique(np.sort(pairs[rows], axis=1), axis=0, return_index=True)
    return rows[np.sort(first)]


def candidates(vectors: np.ndarray, own: np.ndarray, count: int, seed: int) -> np.ndarray:
    """New pairs (m, 2) of n sentences' unit vectors (n, d); own: the different ones there are.

    Every sentence is paired with its nearest neighbours, some of the near ones and one at random;
    of many sentences as many are drawn as make `count` pairs about ten times over.
    """
    n, random, found = len(vectors), np.random.default_rng(seed), [own]
    anchors = np.sort(random.permutation(n)[:2 * count])
    reach = min(n - 1, NEAR[-1][1])
    for rows in np.array_split(anchors, -(-len(anchors) // BLOCK)):
        cosines = vectors[rows] @ vectors.T  # (B, n)
        cosines[np.arange(len(rows)), rows] = -2  # itself comes last
        nearest = np.argpartition(-cosines, reach - 1, axis=1)[:, :reach]
        order = np.argsort(-np.take_along_axis(cosines, nearest, axis=1), axis=1, kind="stable")
        ranks = np.concatenate([np.tile(np.arange(NEAREST), (len(rows), 1)), *(
            random.integers(low, high, (len(rows), drawn)) for low, high, drawn in NEAR)], axis=1)
        places = np.take_along_axis(order, np.minimum(ranks, reach - 1), axis=1)
        others = np.concatenate([np.take_along_axis(nearest, places, axis=1),
                                 random.integers(0, n, (len(rows), 1))], axis=1)  # (B, 8)
        found.append(np.stack([np.repeat(rows, others.shape[1]), others.ravel()], axis=1))
    pairs = np.concatenate(found)
    return pairs[first_of(pairs)][len(own):]


def balanced(labels: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Which `count` of the rows are drawn, ascending, so that labels (n,) are spread evenly."""
    if len(labels) <= count:
        return np.arange(len(labels))
    width = (HIGHEST - LOWEST) / BINS
    bins = np.clip((labels - LOWEST) // width, 0, BINS - 1).astype(int)
    weights = 1 / np.bincount(bins, minlength=BINS)[bins]
    drawn = np.random.default_rng(seed).choice(
        len(labels), count, replace=False, p=weights / weights.sum())
    return np.sort(drawn)
