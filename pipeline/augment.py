"""More or other training pairs, made after every split; `binary-label` follows the label.

    python run.py stage=sts sts.head=cross sts.swap=true sts.copies=0.1 sts.zeros=0.5

Each function takes a frame of labelled pairs and gives a new one; the ids of added rows say where
they come from.
"""

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from pipeline.audit import binary_threshold
from pipeline.data import HIGHEST, LOWEST, SENTENCES


def swapped(frame: pd.DataFrame) -> pd.DataFrame:
    """The pairs, and each again with its sentences in the other order."""
    other = frame.rename(columns=dict(zip(SENTENCES, reversed(SENTENCES), strict=True)))
    return pd.concat([frame, other.assign(id=frame["id"] + "-swapped")[frame.columns]],
                     ignore_index=True)


def with_copies(frame: pd.DataFrame, share: float, seed: int) -> pd.DataFrame:
    """The pairs and `share` times as many of a sentence with itself, label 5.

    The sentences are drawn from pairs with label 0 (as far as there are enough): what a model saw
    only as unlike, it then also sees as alike.
    """
    zeros = frame[frame["label"] == LOWEST]
    sentences = zeros[SENTENCES].to_numpy().ravel()
    rows = pd.DataFrame({"sentence": sentences}, index=np.repeat(zeros.index, 2))
    rows = rows.drop_duplicates("sentence")
    rows = rows.sample(min(len(rows), round(share * len(frame))), random_state=seed)
    added = frame.loc[rows.index].assign(label=HIGHEST)
    for column in SENTENCES:
        added[column] = rows["sentence"].to_numpy()
    added["id"] = [f"{name}-copy-{place}" for place, name in enumerate(added["id"])]
    if "binary-label" in frame:
        added["binary-label"] = float(binary_threshold(frame)[0] <= HIGHEST)
    return pd.concat([frame, added], ignore_index=True)


def with_fewer_zeros(frame: pd.DataFrame, share: float, seed: int) -> pd.DataFrame:
    """The pairs without a random part of those with label 0: `share` of these stay."""
    zeros = np.flatnonzero(frame["label"] == LOWEST)
    dropped = np.random.default_rng(seed).permutation(zeros)[round(share * len(zeros)):]
    return frame.drop(frame.index[dropped]).reset_index(drop=True)


def flattening(labels: np.ndarray, power: float) -> np.ndarray:
    """Weights (n,), mean 1, for drawing rows: frequency of a label's bin to the power of −power.

    Bins are half a label wide, with 0 alone in the first. power 0 leaves the labels as they are, 1
    makes every bin equally likely.
    """
    bins = np.ceil(labels * 2).astype(int)
    weights = np.bincount(bins)[bins].astype(float) ** -power
    return weights / weights.mean()


def noisy(labels: Tensor, sd: float) -> Tensor:
    """Labels with Gaussian noise from torch's generator, kept between 0 and 5."""
    return (labels + sd * torch.randn(labels.shape)).clamp(LOWEST, HIGHEST)
