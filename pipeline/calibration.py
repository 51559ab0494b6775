"""From raw predictions to labels: fitted on dev's pairs, predicted by models that did not see them.

    python run.py stage=sts sts.folds=5 sts.calibrate=surface

`monotone` bends the scale (isotonic regression): Pearson wants predictions that are linear in the
label, cosines are not. `surface` also looks at what the pair's letters say, which small encoders
make too little of: shared characters weighted by rarity, length, and negation on one side alone.
How a source's pairs were drawn decides what shared characters mean (round-trip translations, say,
against pairs searched for by their words), so they count for the sources it is fitted on alone.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from safetensors.numpy import load_file, save_file
from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import SplineTransformer

from pipeline.corpus import sentence_table
from pipeline.data import HIGHEST, LOWEST, SENTENCES
from pipeline.errors import UserError
from pipeline.features import NEGATION, sides
from pipeline.files import write_text, written_aside
from pipeline.splits import groups

FITTED_ON = "calibration.csv"  # raw, surface and label of the pairs it is fitted on
RARITY = "rarity.safetensors"
SURFACE = ["overlap", "length", "negation"]
PARTS = 10  # of a cross-fitting
KNOTS = 5


class Surface:
    """What can be seen of pairs without a model, in numbers: the columns SURFACE."""

    def __init__(self, idf: np.ndarray, sources: set[str]) -> None:
        self.weights, self.sources = TfidfTransformer(), sources
        self.weights.idf_ = idf  # (2^18,)

    @classmethod
    def of(cls, frame: pd.DataFrame) -> "Surface":
        """Weights after the frame's distinct sentences, and its sources."""
        counts = ngrams().transform(sentence_table(frame)[0])
        return cls(TfidfTransformer().fit(counts).idf_, set(frame["source"]))

    def __call__(self, frame: pd.DataFrame) -> np.ndarray:
        """Every pair's overlap, log length and whether one side alone is negated: (n, 3).

        Overlap is NaN for sources that are not known.
        """
        pairs = list(zip(frame["sentence_1"], frame["sentence_2"], strict=True))
        overlap = np.where(frame["source"].isin(self.sources), self.overlap(frame), np.nan)
        return np.column_stack([
            overlap, np.log([max(1, len(one) + len(two)) for one, two in pairs]),
            [sides(NEGATION, one, two) == "in one" for one, two in pairs]])

    def overlap(self, frame: pd.DataFrame) -> np.ndarray:
        """Cosine (n,) of two sentences' character 1- and 2-grams, weighted by idf: 0 to 1."""
        left, right = (self.weights.transform(ngrams().transform(frame[column]))
                       for column in SENTENCES)
        return np.asarray(left.multiply(right).sum(axis=1)).ravel()


def ngrams() -> HashingVectorizer:
    """Texts to the sets of their character n-grams, hashed: nothing but weights must be kept."""
    return HashingVectorizer(analyzer="char_wb", ngram_range=(1, 2), n_features=2**18,
                             alternate_sign=False, norm=None, binary=True)


def monotone(raw: np.ndarray, labels: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """The rising map of predictions that fits these labels best (isotonic regression)."""
    bent = IsotonicRegression(y_min=LOWEST, y_max=HIGHEST, out_of_bounds="clip")
    return bent.fit(raw, labels).predict


def calibrator(kind: str, raw: np.ndarray, surface: np.ndarray, labels: np.ndarray,
               ) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """The map from raw predictions (n,) and surfaces (n, 3) to labels (n,) that fits these.

    Where the overlap is NaN, the map does without it.
    """
    if kind == "monotone":
        bent = monotone(raw, labels)
        return lambda raw, surface: bent(raw)
    whole, part = (additive(np.column_stack([raw, seen]), labels)
                   for seen in (surface, surface[:, 1:]))

    def mapped(raw: np.ndarray, surface: np.ndarray) -> np.ndarray:
        known = ~np.isnan(surface[:, 0])
        found = part(np.column_stack([raw, surface[:, 1:]]))
        if known.any():
            found[known] = whole(np.column_stack([raw, surface])[known])
        return np.clip(found, LOWEST, HIGHEST)

    return mapped


def additive(features: np.ndarray, labels: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """A sum of smooth curves, one a column of features (n, f), fitted to labels (n,)."""
    model = make_pipeline(SplineTransformer(KNOTS), RidgeCV(np.logspace(-3, 3, 13)))
    return model.fit(features, labels).predict


def require_groups(key: str, kind: str, frame: pd.DataFrame) -> None:
    """Refuses a calibration on pairs of which none can be held out."""
    if kind != "none" and len(set(groups(frame))) < 2:
        raise UserError(f"{key}: expected none where all pairs of dev hang together by shared "
                        f"sentences, got {kind!r}")


def fitted(kind: str, raw: np.ndarray, frame: pd.DataFrame,
           ) -> tuple[np.ndarray, Callable[[np.ndarray, pd.DataFrame], np.ndarray]]:
    """The frame's labels (n,), cross-fitted, from raw predictions, and the map for other pairs.

    Without calibration nothing changes.
    """
    if kind == "none":
        return raw, lambda raw, frame: raw
    surface = Surface.of(frame)
    seen = surface(frame)
    mapped = calibrator(kind, raw, seen, frame["label"].to_numpy())
    return (cross_fitted(kind, raw, seen, frame),
            lambda raw, frame: mapped(raw, surface(frame)))


def cross_fitted(kind: str, raw: np.ndarray, surface: np.ndarray,
                 frame: pd.DataFrame) -> np.ndarray:
    """The frame's predictions (n,), each from a calibration that did not see its group of pairs."""
    labels, numbers = frame["label"].to_numpy(), groups(frame)
    found = np.empty(len(frame))
    parts = min(PARTS, len(np.unique(numbers)))
    for seen, unseen in GroupKFold(parts).split(raw, groups=numbers):
        mapped = calibrator(kind, raw[seen], surface[seen], labels[seen])
        found[unseen] = mapped(raw[unseen], surface[unseen])
    return found


def save(folder: Path, raw: np.ndarray, frame: pd.DataFrame) -> None:
    """Keeps what the calibration is fitted on, from which it is made again in a moment."""
    surface = Surface.of(frame)
    table = pd.DataFrame(surface(frame), columns=SURFACE).assign(
        raw=raw, label=frame["label"].to_numpy(), source=frame["source"].to_numpy())
    write_text(folder / FITTED_ON, table.to_csv(index=False, lineterminator="\n"))
    with written_aside(folder / RARITY) as aside:
        save_file({"idf": surface.weights.idf_}, aside)


def sources_of(folder: Path) -> set[str]:
    """The sources that a saved calibration is fitted on, "" for none."""
    table = pd.read_csv(folder / FITTED_ON, dtype={"source": str}, keep_default_na=False)
    return set(table["source"])


def recalled(folder: Path, kind: str) -> Callable[[np.ndarray, pd.DataFrame], np.ndarray]:
    """A saved calibration: raw predictions (n,) and the pairs' frame to labels."""
    if kind == "none":
        return lambda raw, frame: raw
    table = pd.read_csv(folder / FITTED_ON, dtype={"source": str}, keep_default_na=False)
    raw, labels = table["raw"].to_numpy(), table["label"].to_numpy()
    if kind == "monotone":
        bent = monotone(raw, labels)
        return lambda raw, frame: bent(raw)
    if kind != "surface":  # an older version's
        raise UserError(f"{folder}: expected a run with sts.calibrate none, monotone or surface, "
                        f"got {kind!r}, which is no more: train again")
    surface = Surface(load_file(folder / RARITY)["idf"], set(table["source"]))
    mapped = calibrator(kind, raw, table[SURFACE].to_numpy(), labels)
    return lambda raw, frame: mapped(raw, surface(frame))
