"""Pairs of dev that stand in train too, and what dev's score is without them."""

import numpy as np
import pandas as pd

from pipeline.diagnostics.neighbours import LEAST, near_pairs
from pipeline.metrics import interval, pearson


def leaks(train: pd.DataFrame, dev: pd.DataFrame) -> pd.DataFrame:
    """The dev rows with a twin in train: row, other, similarity, swapped, kind.

    Each dev row comes once, with its closest twin; kind is exact, swapped or near-duplicate.
    """
    found = near_pairs(dev, train).drop_duplicates("row").reset_index(drop=True)
    texts, twins = (frame[["sentence_1", "sentence_2"]].to_numpy()[found[place]]
                    for frame, place in ((dev, "row"), (train, "other")))
    # Equality is judged by the text: a cosine of 1 may be of two sentences with the same n-grams.
    exact = (texts == twins).all(axis=1)
    swapped = (texts == twins[:, ::-1]).all(axis=1)
    found["kind"] = np.select([exact, swapped], ["exact", "swapped"], "near-duplicate")
    return found


def without(found: pd.DataFrame, labels: np.ndarray, predictions: np.ndarray) -> dict:
    """How many rows leak, and every run's dev Pearson with and without them."""
    kept = np.ones(len(labels), bool)
    kept[found["row"]] = False
    counts = found["kind"].value_counts()
    return {"least_similarity": LEAST, "n": len(found),
            **{kind: int(counts.get(kind, 0)) for kind in ("exact", "swapped", "near-duplicate")},
            "left": int(kept.sum()),
            "runs": [{"all": interval(pearson, row, labels),
                      "without": interval(pearson, row[kept], labels[kept])
                      if kept.sum() > 2 else None} for row in predictions]}
