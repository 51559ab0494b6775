"""Which texts came before: 64-bit hashes, 8 bytes each, where sets of texts would not fit.

Two of 10 million texts share a hash with a probability of 3 in a million.
"""

import numpy as np
import pandas as pd


def hashes(texts: list[str]) -> np.ndarray:
    """A hash of each text (n,) uint64, the same in every process."""
    return pd.util.hash_array(np.array(texts, object), categorize=False)


def known(seen: np.ndarray, marks: np.ndarray) -> np.ndarray:
    """Which of the marks (n,) are among the ascending hashes seen (m,)."""
    return np.searchsorted(seen, marks, "right") > np.searchsorted(seen, marks)


def merged(seen: np.ndarray, marks: np.ndarray) -> np.ndarray:
    """The ascending hashes seen and the marks, ascending."""
    both = np.concatenate([seen, marks])
    both.sort(kind="stable")  # which merges what is sorted already
    return both
