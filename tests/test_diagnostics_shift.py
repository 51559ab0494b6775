"""Telling test from dev: AUC, a classifier that finds a planted difference and none where none is.

python -m pytest tests/test_diagnostics_shift.py
"""

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from pipeline.diagnostics import shift
from pipeline.diagnostics.diagnosis import EDGES, histogram, shown_rows
from pipeline.diagnostics.shift import auc, by_source, tell_apart

WORDS = ["고양이가", "강아지가", "아이가", "물을", "밥을", "책을", "먹는다", "마신다", "읽는다"]


def pairs(n: int, seed: int, end: str = "", source: str = "") -> pd.DataFrame:
    """Random pairs whose sentences end in `end`."""
    random = np.random.default_rng(seed)
    texts = [" ".join(random.choice(WORDS, 6)) + f" {number}{end}"
             for number in random.integers(0, 10**9, 2 * n)]
    return pd.DataFrame({"id": [f"{seed}-{row}" for row in range(n)], "source": source,
                         "sentence_1": texts[:n], "sentence_2": texts[n:]})


def test_auc_against_sklearn():
    """With ties, along axes; NaN where a class is absent."""
    random = np.random.default_rng(0)
    scores, is_test = random.integers(0, 6, (3, 40)).astype(float), random.integers(0, 2, (3, 40))
    assert auc(scores, is_test) == pytest.approx(
        [roc_auc_score(y, x) for x, y in zip(scores, is_test, strict=True)])
    assert np.isnan(auc(scores[0], np.zeros(40)))


def test_no_difference():
    """Two samples of one kind cannot be told apart, and weights hardly change anything."""
    found = tell_apart(pairs(150, 1), pairs(150, 2))
    assert found["auc"]["low"] < 0.5
    assert abs(found["auc"]["value"] - 0.5) < 0.1
    assert found["n"] == [150, 150]
    assert 0.8 < np.mean(found["weights"]) < 1.25


def test_planted_difference():
    """A polite ending in half of dev and all of test: found, named, and those rows weigh more."""
    dev = pd.concat([pairs(100, 3), pairs(100, 4, "요")], ignore_index=True)
    found = tell_apart(dev, pairs(300, 5, "요"))
    assert found["auc"]["low"] > 0.6
    first = next(row for row in found["features"] if row["kind"] == "characters")
    assert "요" in first["feature"]
    assert first["points_to"] == "test"
    assert (first["dev"], first["test"]) == (0.5, 1)
    weights = found["weights"]
    assert weights[100:].mean() > 2 * weights[:100].mean()
    assert 1.2 < weights[100:].mean() < 2.5  # test's density over dev's is 2, less what is shrunk


def test_shared_sentences_do_not_help():
    """Rows that share a sentence stay in one fold: knowing a sentence by heart gains nothing."""
    half = pairs(40, 6)
    dev = pd.concat([half.assign(sentence_2=half["sentence_1"] + " 끝")] * 3, ignore_index=True)
    other = pairs(40, 7)
    test = pd.concat([other.assign(sentence_2=other["sentence_1"] + " 끝")] * 3, ignore_index=True)
    found = tell_apart(dev, test)
    assert found["auc"]["value"] < 0.75


def test_large_sets_are_drawn(monkeypatch):
    """Of large sets a part is judged; the rows of dev that were not have no weight."""
    monkeypatch.setattr(shift, "MOST", 50)
    found = tell_apart(pairs(70, 8), pairs(60, 9))
    assert found["n"] == [50, 50]
    assert np.isfinite(found["weights"]).sum() == 50


def test_too_few_groups():
    """All pairs of dev share a sentence: there is nothing to cross-validate, and it says so."""
    found = tell_apart(pairs(20, 10).assign(sentence_1="같은 문장"), pairs(20, 11))
    assert found["auc"] is None
    assert found["weights"] is None


def test_by_source_by_hand():
    """Dev: a a a b; test: a b b c. A quarter of test is unseen; a weighs 1/3, b 2."""
    dev, test = (pd.DataFrame({"source": list(names)}) for names in ("aaab", "abbc"))
    found = by_source(dev, test)
    assert found["unseen"] == 0.25
    assert found["weights"].tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 2])
    assert found["shares"] == [{"source": "a", "dev": 0.75, "test": 0.25},
                               {"source": "b", "dev": 0.25, "test": 0.5},
                               {"source": "c", "dev": 0, "test": 0.25}]
    assert by_source(dev, pd.DataFrame({"source": ["c"]}))["weights"] is None


def test_histogram():
    """Shares of half points; 5 is in the last; weights count."""
    found = histogram(np.array([0, 0.4, 0.5, 5.0]))
    assert len(found) == len(EDGES) - 1
    assert found[0] == 0.5
    assert found[1] == found[-1] == 0.25
    assert histogram(np.array([0, 5.0]), np.array([3.0, 1]))[0] == 0.75


def test_shown_rows():
    """All rows of a small set; of a large one the worst tenth and others, each once."""
    labels = np.zeros(100)
    predictions = np.arange(100.0)[None] / 20
    assert shown_rows(labels, predictions).tolist() == list(range(100))
    some = shown_rows(labels, predictions, most=40)
    assert len(set(some)) == 40
    assert {96, 97, 98, 99} <= set(some)
