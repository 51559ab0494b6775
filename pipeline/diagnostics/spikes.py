"""Steps whose loss leaps out of the curve, and the sentences that were in the batch.

The loss over its running median is compared with its own typical spread: a robust z-score
(median absolute deviation), which the leaps themselves do not inflate. Ratios, that is differences
of logarithms, because a loss's noise shrinks with the loss.
"""

import hashlib
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.ndimage import median_filter

from pipeline.batching import shuffled
from pipeline.corpus import unlabelled
from pipeline.data import SENTENCES, Competition, content_hash
from pipeline.nli import read_nli, triplets
from pipeline.silver import FILE as SILVER

THRESHOLD = 7.0
FEWEST = 20  # steps below which a curve has no spikes worth the name
PLAIN = {"folds": 0, "swap": False, "copies": 0, "zeros": 1, "flatten": 0}  # rows as in train.csv
NORMAL = 1.4826  # a normal distribution's standard deviation over its median absolute deviation


def trend(losses: np.ndarray) -> np.ndarray:
    """The running median (n,) over a tenth of the steps, at least 11 and at most 51.

    A narrow median often equals the loss itself, which makes the noise look small. Before the first
    step the loss counts as constant, or every steep start would be a leap; after the last it is
    mirrored, so that a last step's leap is seen.
    """
    half = min(51, max(11, len(losses) // 10)) // 2
    longer = np.pad(np.pad(losses, (half, 0), mode="edge"), (0, half), mode="reflect")
    return median_filter(longer, 2 * half + 1)[half:half + len(losses)]


def robust_z(losses: np.ndarray) -> np.ndarray:
    """How many robust standard deviations each loss (n,) lies above its trend.

    On a logarithmic scale, unless some losses are not positive (that of correlation may be so).
    """
    values = np.log(losses) if (losses > 0).all() else losses
    rest = values - trend(values)
    rest = rest - np.median(rest)
    spread = NORMAL * np.median(np.abs(rest))
    if spread == 0:
        return np.where(rest == 0, 0.0, np.copysign(np.inf, rest))
    return rest / spread


def spikes(steps: np.ndarray, losses: np.ndarray, most: int = 10,
           threshold: float = THRESHOLD) -> list[dict]:
    """The steps whose loss is `threshold` robust deviations above the trend, largest first."""
    if len(losses) < FEWEST:
        return []
    scores, expected = robust_z(losses), trend(losses)
    rows = [row for row in np.argsort(-scores, kind="stable")[:most] if scores[row] > threshold]
    return [{"step": int(steps[row]), "loss": float(losses[row]), "trend": float(expected[row]),
             "z": float(scores[row])} for row in rows]


class Batches:
    """The batches of a finished run made anew: they are a function of its seed and the epoch."""

    def __init__(self, manifest: dict, texts: list[tuple], drop_last: bool) -> None:
        """texts: what the rows of the training set read, each a tuple of cells."""
        shape = manifest["shape"]
        self.texts, self.drop_last = texts, drop_last
        self.size, self.seed = shape["settings"]["batch_size"], shape["seed"]
        self.made: dict[int, list[np.ndarray]] = {}

    def rows(self, step: int) -> np.ndarray:
        """The row numbers of a step, counted from 1 as in the history."""
        first = self.epoch(0)
        epoch, place = divmod(step - 1, len(first))
        return self.epoch(epoch)[place]

    def epoch(self, number: int) -> list[np.ndarray]:
        """An epoch's batches."""
        if number not in self.made:
            self.made[number] = shuffled(len(self.texts), self.size, self.seed, number,
                                         self.drop_last)
        return self.made[number]

    def batch(self, step: int) -> list[tuple]:
        """What the batch of a step read."""
        return [self.texts[row] for row in self.rows(step)]


def batches(folder: Path, manifest: dict, settings: dict,
            competition: Competition) -> Batches | None:
    """A run's batches, or None where they cannot be made anew: the data are not those any more, or
    settings of sts (folds, augmentation) made other rows of them.

    settings: the run's config.yaml. The cells are (sentence_1, sentence_2, label) for sts and
    distill, (sentence,) for simcse, (premise, entailment, contradiction) or (premise, hypothesis,
    class) for nli.
    """
    shape = manifest["shape"]
    stage, own = shape["stage"], shape["settings"]
    columns = [*SENTENCES, "label"]
    if stage == "distill":
        if not (folder / SILVER).exists():
            return None
        pairs = pd.read_csv(folder / SILVER, keep_default_na=False)[columns]
        return Batches(manifest, list(pairs.itertuples(index=False, name=None)), False)
    if stage == "sts":
        known = shape["data"]["train"] == content_hash(competition.train)
        if not known or any(own.get(name, plain) != plain for name, plain in PLAIN.items()):
            return None
        pairs = competition.train[columns].itertuples(index=False, name=None)
        return Batches(manifest, list(pairs), False)
    if stage == "simcse":
        extra = [Path(name) for name in settings["data"]["extra"]]
        if not all(path.exists() for path in extra):
            return None
        frames = [competition.train, competition.dev, competition.test]
        mark, texts = hashlib.sha256(), []
        for text in unlabelled(frames, extra):
            mark.update(text.encode() + b"\n")
            texts.append((text,))
        if mark.hexdigest() != shape["data"]["sentences"]:
            return None
        return Batches(manifest, texts, own["drop_last"])
    nli_dir = Path(settings["data"]["nli_dir"])
    if not (nli_dir / "train.csv").exists() and not any(nli_dir.glob("*")):
        return None
    pairs = read_nli(nli_dir)[0]
    if hashlib.sha256(pairs.to_csv(index=False).encode()).hexdigest() != shape["data"]["nli_train"]:
        return None
    if own["objective"] == "contrastive":
        return Batches(manifest, triplet_texts(pairs), True)
    return Batches(manifest, list(pairs[["premise", "hypothesis", "label"]].itertuples(
        index=False, name=None)), False)


def triplet_texts(pairs: pd.DataFrame) -> list[tuple]:
    """The triplets' sentences; no contradiction is an empty text."""
    sentences, table = triplets(pairs)
    return [tuple(sentences[place] if place >= 0 else "" for place in row) for row in table]
