"""From raw predictions to labels: fitted on pairs that the model was not trained on.

    python run.py stage=sts sts.folds=5 sts.calibrate=overlap

`monotone` bends the scale (isotonic regression): Pearson wants predictions that are linear in the
label, cosines are not. `overlap` also looks at how many characters the two sentences share,
weighted by rarity, which small encoders make too little of.
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
from pipeline.files import write_text, written_aside
from pipeline.splits import groups

FITTED_ON = "calibration.csv"  # raw, overlap and label of the pairs it is fitted on
RARITY = "overlap.safetensors"
PARTS = 10  # of a cross-fitting
KNOTS = 5


class Overlap:
    """Cosine of two sentences' character 1- and 2-grams, weighted by inverse document frequency."""

    def __init__(self, idf: np.ndarray) -> None:
        self.weights = TfidfTransformer()
        self.weights.idf_ = idf  # (2^18,)

    @classmethod
    def of(cls, frame: pd.DataFrame) -> "Overlap":
        """Weights after the frame's distinct sentences."""
        counts = ngrams().transform(sentence_table(frame)[0])
        return cls(TfidfTransformer().fit(counts).idf_)

    def __call__(self, frame: pd.DataFrame) -> np.ndarray:
        """The overlap (n,) of every pair, 0 to 1."""
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


def calibrator(kind: str, raw: np.ndarray, overlap: np.ndarray, labels: np.ndarray,
               ) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """The map from raw predictions and overlaps to labels that fits these; all are (n,)."""
    if kind == "monotone":
        bent = monotone(raw, labels)
        return lambda raw, overlap: bent(raw)
    model = make_pipeline(SplineTransformer(KNOTS), RidgeCV(np.logspace(-3, 3, 13)))
    model.fit(np.column_stack([raw, overlap]), labels)
    return lambda raw, overlap: np.clip(model.predict(np.column_stack([raw, overlap])),
                                        LOWEST, HIGHEST)


def cross_fitted(kind: str, raw: np.ndarray, overlap: np.ndarray,
                 frame: pd.DataFrame) -> np.ndarray:
    """The frame's predictions (n,), each from a calibration that did not see its group of pairs."""
    labels, numbers = frame["label"].to_numpy(), groups(frame)
    found = np.empty(len(frame))
    parts = min(PARTS, len(np.unique(numbers)))
    for seen, unseen in GroupKFold(parts).split(raw, groups=numbers):
        fitted = calibrator(kind, raw[seen], overlap[seen], labels[seen])
        found[unseen] = fitted(raw[unseen], overlap[unseen])
    return found


def save(folder: Path, overlap: Overlap, raw: np.ndarray, overlaps: np.ndarray,
         labels: np.ndarray) -> None:
    """Keeps what the calibration is fitted on, from which it is made again in a moment."""
    table = pd.DataFrame({"raw": raw, "overlap": overlaps, "label": labels})
    write_text(folder / FITTED_ON, table.to_csv(index=False, lineterminator="\n"))
    with written_aside(folder / RARITY) as aside:
        save_file({"idf": overlap.weights.idf_}, aside)


def recalled(folder: Path, kind: str) -> Callable[[np.ndarray, pd.DataFrame], np.ndarray]:
    """A saved calibration: raw predictions (n,) and the pairs' frame to labels."""
    if kind == "none":
        return lambda raw, frame: raw
    table = pd.read_csv(folder / FITTED_ON)
    overlap = Overlap(load_file(folder / RARITY)["idf"])
    fitted = calibrator(kind, *(table[name].to_numpy() for name in ("raw", "overlap", "label")))
    return lambda raw, frame: fitted(raw, overlap(frame))
