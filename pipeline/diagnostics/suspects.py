"""Pairs to read: the worst, those on which two runs differ most, likely wrong labels."""

import numpy as np
import pandas as pd

from pipeline.diagnostics.neighbours import near_pairs

FAR = 1.5  # label points between a label and a prediction, or a near-duplicate's label
CLOSE = 0.9  # similarity of a near-duplicate whose label counts


def worst(labels: np.ndarray, predictions: np.ndarray, most: int = 50) -> np.ndarray:
    """The rows with the largest |prediction − label|, of two runs the mean of both."""
    errors = np.abs(predictions - labels).mean(axis=0)
    return np.argsort(-errors, kind="stable")[:most]


def most_different(predictions: np.ndarray, most: int = 50) -> np.ndarray:
    """The rows on which two runs' predictions (2, n) are farthest apart."""
    return np.argsort(-np.abs(predictions[1] - predictions[0]), kind="stable")[:most]


def wrong_labels(frame: pd.DataFrame, predictions: np.ndarray, known: pd.DataFrame,
                 far: float = FAR) -> pd.DataFrame:
    """Rows whose label is far from every prediction and not backed by a near-duplicate pair.

    predictions (runs, n) must not have been fitted on these rows; known: all labelled pairs. A row
    is left out when near-duplicate pairs of other ids agree with its label. Columns: row, gap (to
    the nearest prediction, label minus prediction), twins (how many), twin_label (their median)
    and twin (place in known of the nearest); rows that near-duplicates speak against come first.
    """
    labels = frame["label"].to_numpy()
    gaps = labels - predictions  # (runs, n)
    one_sided = (np.sign(gaps) == np.sign(gaps[0])).all(axis=0)
    nearest = np.take_along_axis(gaps, np.abs(gaps).argmin(axis=0)[None], axis=0)[0]
    rows = np.flatnonzero(one_sided & (np.abs(nearest) >= far))
    near = near_pairs(frame.iloc[rows], known, CLOSE)
    itself = frame["id"].to_numpy()[rows[near["row"]]] == known["id"].to_numpy()[near["other"]]
    near = near[~itself]
    near["label"] = known["label"].to_numpy()[near["other"]]
    twins = near.groupby("row").agg(twins=("label", "size"), twin_label=("label", "median"),
                                    twin=("other", "first"))
    found = pd.DataFrame({"row": rows, "gap": nearest[rows]}).join(twins)
    found["twins"] = found["twins"].fillna(0).astype(int)
    backed = (found["twin_label"] - labels[found["row"]]).abs() < far
    found = found[~backed]
    order = np.lexsort((-found["gap"].abs(), found["twins"] == 0))
    return found.iloc[order].reset_index(drop=True)
