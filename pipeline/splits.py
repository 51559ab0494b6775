"""Splits that keep together what belongs together: pairs that share a sentence."""

import warnings

import numpy as np
import pandas as pd
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from sklearn.model_selection import StratifiedGroupKFold

from pipeline.corpus import sentence_table


def groups(frame: pd.DataFrame) -> np.ndarray:
    """A group number for every pair (n,): pairs that share a sentence, even over others, agree.

    Swapped twins, copies and pairs with one sentence in common thus never part.
    """
    texts, left, right = sentence_table(frame)
    return components(len(texts), left, right)[left]


def components(n: int, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """A group number for each of n sentences: those that these pairs join, even over others."""
    edges = coo_matrix((np.ones(len(left)), (left, right)), shape=(n, n))
    return connected_components(edges, directed=False)[1]


def held_out(frame: pd.DataFrame, rows: int, seed: int) -> np.ndarray:
    """A mask (n,) of about `rows` pairs in whole groups, drawn at random."""
    numbers = groups(frame)
    sizes, taken = np.bincount(numbers), []
    for group in np.random.default_rng(seed).permutation(len(sizes)):
        if 0 < sizes[group] <= rows:
            taken.append(group)
            rows -= sizes[group]
    return np.isin(numbers, taken)


def folds(frame: pd.DataFrame, k: int, seed: int) -> np.ndarray:
    """A fold number 0 … k − 1 for every pair (n,): whole groups, alike in labels and sources.

    Kinds of pairs that are too rare for every fold to have one count as one kind.
    """
    kinds = frame["source"] + np.floor(frame["label"]).clip(upper=4).astype(int).astype(str)
    kinds = kinds.where(kinds.map(kinds.value_counts()) >= k, "rare")
    found = np.empty(len(frame), int)
    splitter = StratifiedGroupKFold(k, shuffle=True, random_state=seed)
    with warnings.catch_warnings():  # all the rare ones may still be fewer than k: no harm
        warnings.filterwarnings("ignore", "The least populated class", UserWarning)
        for number, (_, held) in enumerate(splitter.split(kinds, kinds, groups(frame))):
            found[held] = number
    return found
