"""The geometry of an embedding space during training, on a fixed sample of dev.

Alignment and uniformity after Wang & Isola (2020), and the mean cosine of random pairs, which
shows in one number whether the space has collapsed.
"""

import numpy as np
import torch

from pipeline.batching import Tokens
from pipeline.encoder import Encoder, embed
from pipeline.metrics import alignment, mean_cosine, normalised, uniformity
from pipeline.splits import components

SENTENCES = 256  # measured at every call: under a tenth of ten steps of 64 x 2 sentences
COLLAPSED = 0.9


class Geometry:
    """Measures the same sentences at every call: positive pairs first, then others."""

    def __init__(self, tokens: Tokens, left: np.ndarray, right: np.ndarray, labels: np.ndarray,
                 seed: int, positive_above: float) -> None:
        """tokens: each sentence once; left, right: (n,) rows of the pairs; labels: (n,).

        Pairs with a label above positive_above are the positives of alignment.
        """
        random = np.random.default_rng(seed)
        positive = np.flatnonzero(labels > positive_above)
        chosen = random.permutation(positive)[:SENTENCES // 4]
        used = np.unique(np.concatenate([left[chosen], right[chosen]]))
        others = np.setdiff1d(np.arange(len(tokens)), used)
        rows = np.concatenate([used, random.permutation(others)[:SENTENCES - len(used)]])
        place = {row: at for at, row in enumerate(rows)}
        self.left = np.array([place[row] for row in left[chosen]], int)
        self.right = np.array([place[row] for row in right[chosen]], int)
        self.tokens = tokens.subset(rows)
        same = labels >= positive_above
        self.groups = components(len(tokens), left[same], right[same])[rows]  # (n,)

    def vectors(self, encoder: Encoder, device: torch.device) -> np.ndarray:
        """The sample's unit vectors (n, d), float32."""
        return normalised(embed(encoder, self.tokens, device))

    def numbers(self, vectors: np.ndarray) -> dict[str, float]:
        """Alignment of the positive pairs, uniformity and mean cosine of all sentences."""
        return {"alignment": alignment(vectors[self.left], vectors[self.right]),
                "uniformity": uniformity(vectors), "mean_cosine": mean_cosine(vectors)}

    def measure(self, encoder: Encoder, device: torch.device) -> dict[str, float]:
        """What the encoder makes of the sample, in numbers."""
        return self.numbers(self.vectors(encoder, device))


def collapse_warning(cosine: float) -> str:
    """Plain words for a collapsed space, or nothing."""
    if not cosine > COLLAPSED:
        return ""
    return (f"random pairs have mean cosine {cosine:.2f}: the space is collapsed, every sentence "
            "looks alike; raise the number of steps, lower simcse.temperature or change "
            "encoder.pooling")
