"""Near-duplicate sentences and pairs by their characters, without comparing everything.

Sentences are TF-IDF vectors of character n-grams; the product of two sparse matrices, taken in
blocks, gives the cosines. Memory grows with the number of near-duplicates, not with n².
"""

import numpy as np
import pandas as pd
from scipy import sparse
from sklearn.feature_extraction.text import TfidfVectorizer
from tqdm import tqdm

from pipeline.corpus import sentence_table

BLOCK = 512
COMMON = 1000  # an n-gram of more sentences than this says nothing of duplicates and costs n²
LEAST = 0.8


def similarities(sentences: list[str], wanted: np.ndarray,
                 least: float = LEAST) -> sparse.csr_array:
    """Cosines from `least` on between all sentences, in the rows of the wanted ones only (m, m).

    wanted (m,) is a mask. A sentence has similarity 1 with itself.
    """
    count = len(sentences)
    try:
        vectors = TfidfVectorizer(analyzer="char", ngram_range=(2, 4), dtype=np.float32,
                                  max_df=max(COMMON, 2)).fit_transform(sentences).tocsr()
    except ValueError:  # no n-gram left: only equal sentences are near
        vectors = sparse.csr_array((count, 1), dtype=np.float32)
    turned, rows = vectors.T.tocsr(), np.flatnonzero(wanted)
    found = []
    for start in tqdm(range(0, len(rows), BLOCK), desc="near-duplicates", unit="block",
                      disable=len(rows) < 20 * BLOCK):
        block = sparse.coo_array(vectors[rows[start:start + BLOCK]] @ turned)
        kept = block.data >= least
        found.append((rows[start + block.row[kept]], block.col[kept], block.data[kept]))
    row, column, value = (np.concatenate(parts) for parts in zip(
        *found, (rows, rows, np.ones(len(rows), np.float32)), strict=True))
    # Every sentence with itself came twice: the larger of the two counts, as 1.
    near = pd.DataFrame({"row": row, "column": column, "value": value.clip(max=1)})
    near = near.groupby(["row", "column"], sort=False)["value"].max().reset_index()
    return sparse.csr_array((near["value"], (near["row"], near["column"])), shape=(count, count))


def near_pairs(frame: pd.DataFrame, known: pd.DataFrame, least: float = LEAST) -> pd.DataFrame:
    """Pairs of `known` that say nearly the same as a pair of `frame`, in either order.

    Columns: row and other (places in the two frames), similarity (the smaller of its two
    sentences'; 1: the same text), swapped.
    """
    both = pd.concat([frame, known], ignore_index=True)
    sentences, left, right = sentence_table(both)
    n = len(frame)
    wanted = np.zeros(len(sentences), bool)
    wanted[left[:n]] = wanted[right[:n]] = True
    cosines = similarities(sentences, wanted, least).tocsc()
    found = []
    for swapped, (one, two) in enumerate(((left[n:], right[n:]), (right[n:], left[n:]))):
        # (n, k): each pair's similarity of first sentences, then of second ones
        pair = cosines[:, one].tocsr()[left[:n]].minimum(cosines[:, two].tocsr()[right[:n]])
        pair = sparse.coo_array(pair)
        found.append(pd.DataFrame({"row": pair.row, "other": pair.col,
                                   "similarity": pair.data.astype(float),
                                   "swapped": bool(swapped)}))
    every = pd.concat(found).query("similarity > 0")
    every = every.sort_values(["similarity", "swapped"], ascending=[False, True], kind="stable")
    return every.drop_duplicates(["row", "other"]).reset_index(drop=True)
