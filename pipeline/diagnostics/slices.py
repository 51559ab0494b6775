"""Errors by what can be seen of a pair, and the two corners of overlap against label."""

import numpy as np
import pandas as pd

from pipeline.diagnostics.parts import part, split
from pipeline.features import OVERLAP_EDGES, banded
from pipeline.metrics import RANGES, in_range

MOST_SOURCES = 20
# overlap from, to, label from, to (both closed), and what such a pair asks of a model
CORNERS = {"much overlap, low label": (0.5, 1.0, 0.0, 2.0, "an opposite stance in similar words"),
           "little overlap, high label": (0.0, 0.2, 3.0, 5.0, "one thing in different words")}
WORDS = {"numbers": ["none", "the same", "different"],
         "negation": ["in none", "in one", "in both"],
         "English": ["in none", "in one", "in both"],
         "emoji and ㅋㅋ": ["in none", "in one", "in both"],
         "unknown pieces": ["none", "some"]}


def slices(frame: pd.DataFrame, table: pd.DataFrame, labels: np.ndarray,
           predictions: np.ndarray) -> dict[str, list[dict]]:
    """For every feature its parts.

    frame: the pairs; table: their `features`; labels (n,); predictions (runs, n).
    """
    quartiles = np.unique(np.percentile(table["length"], [25, 50, 75])).tolist()
    named = {"overlap": banded(table["overlap"].to_numpy(), OVERLAP_EDGES),
             "length (characters of both)": banded(table["length"].to_numpy(), quartiles)}
    if frame["source"].any():
        sources = frame["source"].value_counts().index[:MOST_SOURCES].tolist()
        named = {"source": (frame["source"].to_numpy(), sources)} | named
    named |= {name: (table[name].to_numpy(), order) for name, order in WORDS.items()
              if name in table}
    return {name: split(labels, predictions, *parts) for name, parts in named.items()}


def grid(overlaps: np.ndarray, labels: np.ndarray, predictions: np.ndarray) -> dict:
    """Count, mae and bias by overlap (rows) and label range (columns), for every run."""
    bands, names = banded(overlaps, OVERLAP_EDGES)
    errors = predictions - labels
    cells: dict = {"overlap": names, "label": [f"{low}–{high}" for low, high in RANGES],
                   "n": [], "mae": [[] for _ in errors], "bias": [[] for _ in errors]}
    for name in names:
        masks = [(bands == name) & in_range(labels, low, high) for low, high in RANGES]
        cells["n"].append([int(mask.sum()) for mask in masks])
        for run, row in enumerate(errors):
            parts = [row[mask] if mask.any() else np.array([np.nan]) for mask in masks]
            cells["mae"][run].append([float(np.abs(values).mean()) for values in parts])
            cells["bias"][run].append([float(values.mean()) for values in parts])
    return cells


def corners(overlaps: np.ndarray, labels: np.ndarray, predictions: np.ndarray,
            most: int = 30) -> dict[str, dict]:
    """The two corners: how wrong each run is there, and the worst rows (numbers into the frame)."""
    found = {}
    for name, (least, top, low, high, meaning) in CORNERS.items():
        inside = (overlaps >= least) & (overlaps <= top) & (labels >= low) & (labels <= high)
        rows = np.flatnonzero(inside)
        worst = rows[np.argsort(-np.abs(predictions[:, rows] - labels[rows]).mean(axis=0),
                                kind="stable")]
        found[name] = {"overlap": [least, top], "label": [low, high], "meaning": meaning,
                       **part(labels[rows], predictions[:, rows]), "rows": worst[:most].tolist()}
    return found
