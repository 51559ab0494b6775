"""Calibration on pairs not trained on: monotone, with the surface, cross-fitted, and kept.

python -m pytest tests/test_calibration.py
"""

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.feature_extraction.text import CountVectorizer

from pipeline import calibration
from pipeline.calibration import (
    SURFACE,
    Surface,
    calibrator,
    cross_fitted,
    monotone,
    recalled,
)
from pipeline.errors import UserError
from pipeline.metrics import pearson

WORDS = ["바람", "하늘", "강물", "나무", "구름", "바다", "노을", "새벽", "들판", "산길", "골목",
         "시장", "우산", "편지", "창문", "의자"]


def many(n: int = 600, seed: int = 0) -> pd.DataFrame:
    """Pairs of four words each with labels: 0 to 4 words in common, and noise."""
    random = np.random.default_rng(seed)
    rows = []
    for row in range(n):
        order = list(random.permutation(WORDS))
        shared = int(random.integers(0, 5))
        rows.append((f"{row} " + " ".join(order[:4]),
                     f"{row + n} " + " ".join(order[:shared] + order[4:8 - shared]), shared))
    frame = pd.DataFrame(rows, columns=["sentence_1", "sentence_2", "shared"])
    labels = np.clip(frame["shared"] * 1.25 + random.normal(0, 0.3, n), 0, 5)
    return frame.assign(source="words", label=labels)


def test_overlap_is_the_cosine_of_weighted_ngrams():
    """Against a computation by hand with scikit-learn's counts in place of hashes."""
    frame = pd.DataFrame({"sentence_1": ["가나 다", "가나", "마바사", "가 가 가"],
                          "sentence_2": ["가나", "가나", "하하", "가"], "source": ""})
    texts = sorted(set(frame["sentence_1"]) | set(frame["sentence_2"]))
    counter = CountVectorizer(analyzer="char_wb", ngram_range=(1, 2), binary=True).fit(texts)
    counts = counter.transform(texts).toarray()
    idf = np.log((1 + len(texts)) / (1 + counts.sum(axis=0))) + 1
    vectors = dict(zip(texts, counts * idf, strict=True))
    expected = [a @ b / np.sqrt((a @ a) * (b @ b)) for a, b in (
        (vectors[left], vectors[right])
        for left, right in zip(frame["sentence_1"], frame["sentence_2"], strict=True))]
    found = Surface.of(frame).overlap(frame)
    assert found == pytest.approx(expected, abs=1e-9)
    assert found[1] == pytest.approx(1)
    # A text of separate words has a blank at both ends of each: only that is in common.
    assert found[2] < 0.2


@pytest.mark.parametrize("kind", ["monotone", "surface"])
def test_a_bent_scale_becomes_straight(kind):
    """Predictions that grow with the label but not in a line: Pearson reaches its bound."""
    random = np.random.default_rng(1)
    labels = random.uniform(0, 5, 3000)
    raw = 5 * np.exp(labels - 5) ** 0.7
    frame = pd.DataFrame({"sentence_1": [f"a{n}" for n in range(3000)],
                          "sentence_2": [f"b{n}" for n in range(3000)], "label": labels})
    found = cross_fitted(kind, raw, np.zeros((3000, 3)), frame)
    assert pearson(raw, labels) < 0.93
    assert pearson(found, labels) > 0.995
    assert found.min() >= 0
    assert found.max() <= 5


def test_surface_by_hand():
    """Length is the logarithm of both sentences' characters; negation is on one side alone."""
    frame = pd.DataFrame({"sentence_1": ["비가 온다", "비가 안 온다", "비가 안 온다", ""],
                          "sentence_2": ["비가 오지 않는다", "눈이 온다", "오지 않는다", ""],
                          "source": "날씨"})
    found = pd.DataFrame(Surface.of(frame)(frame), columns=SURFACE)
    assert found["length"].tolist() == pytest.approx(np.log([14, 12, 13, 1]))
    assert found["negation"].tolist() == [1, 1, 0, 0]
    assert found["overlap"].tolist() == pytest.approx(Surface.of(frame).overlap(frame))


def test_monotone_keeps_the_order_and_forgets_the_surface():
    """More of the raw prediction is never less, whatever the surfaces are."""
    random = np.random.default_rng(2)
    raw, labels = random.uniform(0, 5, 500), random.uniform(0, 5, 500)
    fitted = calibrator("monotone", raw, random.uniform(size=(500, 3)), labels)
    line = np.linspace(-1, 6, 200)
    found = fitted(line, random.uniform(size=(200, 3)))
    assert (np.diff(found) >= 0).all()
    assert (found == fitted(line, np.zeros((200, 3)))).all()
    assert found[0] == pytest.approx(fitted(np.array([raw.min()]), np.zeros((1, 3)))[0])


def by_words(frame: pd.DataFrame) -> np.ndarray:
    """Labels that follow the shared words."""
    return frame["label"].to_numpy()


def by_length(frame: pd.DataFrame) -> np.ndarray:
    """Labels that fall with the length of the pair."""
    return 5 - 4 * (stats.rankdata(frame["sentence_1"].str.len()) / len(frame))


def by_negation(frame: pd.DataFrame) -> np.ndarray:
    """Labels that are low where one side alone is negated."""
    return np.where(frame["sentence_2"].str.contains("않"), 0.5, 4.5)


@pytest.mark.parametrize("labelled", [by_words, by_length, by_negation])
def test_the_surface_tells_what_the_predictions_do_not(labelled):
    """Predictions of nothing but noise, labels that follow one thing that can be seen."""
    frame, random = many(), np.random.default_rng(3)
    frame["sentence_1"] += [" " + "가" * n for n in random.integers(0, 40, len(frame))]
    frame["sentence_2"] += np.where(random.random(len(frame)) < 0.5, " 않다", "")
    frame["label"] = labels = labelled(frame)
    raw, surface = random.uniform(0, 5, len(frame)), Surface.of(frame)(frame)
    assert pearson(cross_fitted("surface", raw, surface, frame), labels) > 0.8
    assert abs(pearson(cross_fitted("monotone", raw, surface, frame), labels)) < 0.2


@pytest.mark.parametrize("kind", ["monotone", "surface"])
def test_noise_gains_nothing(kind):
    """Labels that have nothing to do with the predictions: cross-fitted, none is seen before."""
    random = np.random.default_rng(4)
    scores = []
    for _ in range(10):
        raw, surface = random.uniform(0, 5, 300), random.uniform(0, 1, (300, 3))
        frame = pd.DataFrame({"sentence_1": [f"a{n}" for n in range(300)],
                              "sentence_2": [f"b{n}" for n in range(300)],
                              "label": random.uniform(0, 5, 300)})
        scores.append(pearson(cross_fitted(kind, raw, surface, frame),
                              frame["label"].to_numpy()))
    assert np.mean(scores) < 0.05


def test_no_pair_is_calibrated_by_its_twin():
    """Pairs that share a sentence are calibrated by a fit that saw neither."""
    frame = pd.DataFrame({"sentence_1": [f"s{n // 2}" for n in range(40)],
                          "sentence_2": [f"t{n}" for n in range(40)],
                          "label": np.repeat(np.linspace(0, 5, 20), 2)})
    raw = np.repeat(np.linspace(0, 5, 20), 2)
    honest = cross_fitted("monotone", raw, np.zeros((40, 3)), frame)
    changed = frame.assign(label=np.where(np.arange(40) < 2, 5.0, frame["label"]))
    again = cross_fitted("monotone", raw, np.zeros((40, 3)), changed)
    assert honest[:2] == pytest.approx(again[:2])


@pytest.mark.parametrize("kind", ["monotone", "surface"])
def test_kept_and_recalled(tmp_path, kind):
    """What is read back maps other pairs exactly as the fit did."""
    frame, other = many(), many(50, seed=9)
    random = np.random.default_rng(5)
    raw, more = frame["label"].to_numpy() ** 2 / 5, random.uniform(0, 5, 50)
    surface = Surface.of(frame)
    calibration.save(tmp_path, raw, frame)
    assert {path.name for path in tmp_path.iterdir()} == {"calibration.csv", "rarity.safetensors"}
    direct = calibrator(kind, raw, surface(frame), frame["label"].to_numpy())
    assert recalled(tmp_path, kind)(more, other) == pytest.approx(direct(more, surface(other)))
    assert stats.spearmanr(recalled(tmp_path, kind)(more, other), more).statistic > 0.5


def test_an_older_runs_calibration(tmp_path):
    """monotone needs predictions and labels alone; overlap, now surface, is refused by name."""
    frame = many()
    raw = frame["label"].to_numpy() ** 2 / 5
    frame.assign(raw=raw, overlap=0.5)[["raw", "overlap", "label"]].to_csv(
        tmp_path / "calibration.csv", index=False)
    (tmp_path / "overlap.safetensors").touch()
    found = recalled(tmp_path, "monotone")(raw, frame)
    assert found == pytest.approx(monotone(raw, frame["label"].to_numpy())(raw))
    with pytest.raises(UserError, match="none, monotone or surface, got 'overlap'"):
        recalled(tmp_path, "overlap")


def test_overlap_counts_for_known_sources_alone(tmp_path):
    """Pairs of a new source are mapped by all but the overlap, those of a known one as before."""
    frame = many()
    random = np.random.default_rng(6)
    raw = random.uniform(0, 5, len(frame))
    surface = Surface.of(frame)
    calibration.save(tmp_path, raw, frame)
    calibrate = recalled(tmp_path, "surface")
    other = many(200, seed=7)
    mixed = other.assign(source=np.where(np.arange(200) < 100, "words", "new"))
    new, line = other.assign(source="new"), np.full(200, 2.5)
    assert np.isnan(surface(mixed)[:, 0]).tolist() == [False] * 100 + [True] * 100
    assert calibrate(line, mixed)[:100] == pytest.approx(calibrate(line, other)[:100])
    assert calibrate(line, mixed)[100:] == pytest.approx(calibrate(line, new)[100:])
    assert pearson(calibrate(line, other), other["label"].to_numpy()) > 0.8
    padded = new["sentence_2"].str.ljust(40, "가")
    shuffled = new["sentence_2"][::-1].reset_index(drop=True).str.ljust(40, "가")
    assert calibrate(line, new.assign(sentence_2=padded)) == pytest.approx(
        calibrate(line, new.assign(sentence_2=shuffled)))  # as long, with other words in common


def test_none_changes_nothing(tmp_path):
    """Without calibration there is no file and no change."""
    raw = np.array([0.1, 7.0])
    assert (recalled(tmp_path, "none")(raw, pd.DataFrame()) == raw).all()
