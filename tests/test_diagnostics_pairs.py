"""What is seen of pairs: features, slices, corners, near-duplicates, leaks, suspected labels.

python -m pytest tests/test_diagnostics_pairs.py
"""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics.pairwise import cosine_similarity

from pipeline.diagnostics import neighbours
from pipeline.diagnostics.leaks import leaks, without
from pipeline.diagnostics.neighbours import near_pairs, similarities
from pipeline.diagnostics.slices import corners, grid, slices
from pipeline.diagnostics.suspects import most_different, worst, wrong_labels
from pipeline.features import banded, features, ngrams, overlap, unknown_pieces


def frame(*pairs: tuple) -> pd.DataFrame:
    """Pairs (sentence_1, sentence_2[, label[, source]])."""
    rows = [(*pair, *(2.5, "")[len(pair) - 2:]) for pair in pairs]
    table = pd.DataFrame(rows, columns=["sentence_1", "sentence_2", "label", "source"])
    return table.assign(id=[f"r{row}" for row in range(len(table))])


def test_overlap():
    """Bigrams without spaces: 가나, 나다 against 가나, 나라 share one of three."""
    assert ngrams("가 나다") == {"가나", "나다"}
    assert ngrams("가") == {"가"}
    assert overlap("가나다", "가 나라") == pytest.approx(1 / 3)
    assert overlap("AB c", "abC") == 1
    assert overlap("가나", "다라") == 0


@pytest.mark.parametrize(("pair", "name", "value"), [
    (("3시에 본다", "세 시에 본다"), "numbers", "different"),
    (("3시 10분", "10분 지난 3시"), "numbers", "the same"),
    (("1,000원", "1000원"), "numbers", "different"),
    (("본다", "간다"), "numbers", "none"),
    (("안 간다", "간다"), "negation", "in one"),
    (("가지 않는다", "갈 수 없다"), "negation", "in both"),
    (("안전모를 쓴 사람", "못을 박는다"), "negation", "in none"),
    (("아니메를 본다", "못생겼다"), "negation", "in none"),
    (("가지 마세요", "가세요"), "negation", "in one"),
    (("iPhone을 샀다", "A를 샀다"), "English", "in one"),
    (("좋아요 😀", "좋아요 ㅋㅋㅋ"), "emoji and ㅋㅋ", "in both"),
    (("좋아요", "좋아 ㅋ"), "emoji and ㅋㅋ", "in none")])
def test_features(pair, name, value):
    """What the rules of thumb see, and what they must not see."""
    assert features(frame(pair))[name].tolist() == [value]


def test_length_is_of_both():
    """Characters of both sentences, spaces included."""
    assert features(frame(("가 나", "다라마바")))["length"].tolist() == [7]


def test_unknown_pieces(tokenizer):
    """Each unknown piece counts, in either sentence; repeated sentences too."""
    table = frame(("가나", "가나"), ("가☃나", "☃☃"), ("가☃나", "가"))
    assert unknown_pieces(table, tokenizer, 32).tolist() == [0, 3, 1]


def test_banded():
    """An edge belongs to the band above it."""
    names, order = banded(np.array([0.1, 0.2, 0.5, 0.9]), [0.2, 0.6])
    assert order == ["below 0.2", "0.2–0.6", "0.6 and more"]
    assert names.tolist() == ["below 0.2", "0.2–0.6", "0.2–0.6", "0.6 and more"]


def test_slices_and_grid():
    """Every feature's parts hold all rows; the grid counts each row once."""
    random = np.random.default_rng(0)
    table = frame(*[("가나다라마바"[:random.integers(2, 7)], "가나다라"[:random.integers(1, 5)],
                     float(random.integers(0, 6)), "a" if row % 3 else "b") for row in range(90)])
    seen = features(table)
    labels = table["label"].to_numpy()
    predictions = labels[None] + random.normal(0, 1, (1, 90))
    found = slices(table, seen, labels, predictions)
    assert [part["name"] for part in found["source"]] == ["a", "b"]
    assert all(sum(part["n"] for part in parts) == 90 for parts in found.values())
    rows = (table["source"] == "b").to_numpy()
    assert found["source"][1]["runs"][0]["bias"]["value"] == pytest.approx(
        (predictions[0] - labels)[rows].mean())
    cells = grid(seen["overlap"].to_numpy(), labels, predictions)
    assert np.sum(cells["n"]) == 90
    inside = (seen["overlap"] < 0.2).to_numpy() & (labels >= 4)
    assert cells["n"][0][4] == inside.sum() > 0
    assert cells["mae"][0][0][4] == pytest.approx(np.abs(predictions[0] - labels)[inside].mean())
    assert "source" not in slices(table.assign(source=""), seen, labels, predictions)


def test_corners():
    """The corners take closed bounds and list the largest errors first."""
    overlaps = np.array([0.5, 0.9, 0.49, 1.0, 0.2, 0.1, 0.21])
    labels = np.array([2.0, 0, 0, 2.1, 3, 5, 5])
    predictions = labels + np.array([[1, 3, 9, 9, -1, -4, 9.0]])
    found = corners(overlaps, labels, predictions)
    much, little = found["much overlap, low label"], found["little overlap, high label"]
    assert much["rows"] == [1, 0]
    assert much["runs"][0]["bias"]["value"] == 2
    assert little["rows"] == [5, 4]
    assert little["runs"][0]["mae"]["value"] == 2.5


def test_similarities_against_brute_force(monkeypatch):
    """All cosines from the bound on, of the wanted rows alone, whatever the block."""
    monkeypatch.setattr(neighbours, "BLOCK", 3)
    random = np.random.default_rng(1)
    words = ["고양이가", "강아지가", "물을", "밥을", "먹는다", "마신다", "빨리", "천천히"]
    texts = sorted({" ".join(random.choice(words, 4)) for _ in range(40)})
    vectors = TfidfVectorizer(analyzer="char", ngram_range=(2, 4)).fit_transform(texts)
    expected = cosine_similarity(vectors)
    wanted = np.arange(len(texts)) % 2 == 0
    expected[expected < 0.5] = 0
    expected[~wanted] = 0
    found = similarities(texts, wanted, least=0.5)
    assert sparse.issparse(found)
    assert found.toarray() == pytest.approx(expected, abs=1e-5)
    assert found.nnz > wanted.sum()


def test_similarities_of_short_texts():
    """Texts without any bigram are near themselves only."""
    found = similarities(["가", "나"], np.array([True, True]))
    assert found.toarray() == pytest.approx(np.eye(2))


LONG = "어제 저녁에 친구와 함께 극장에서 영화를 보았다"
OTHER = "내일 아침에는 혼자서 조용히 도서관에 갈 생각이다"


def test_near_pairs():
    """Both sentences must be near, in either order; one alone does not make a pair near."""
    known = frame((LONG + ".", OTHER), (OTHER, LONG + "!"), (LONG, "전혀 다른 말"), (LONG, OTHER))
    found = near_pairs(frame((LONG, OTHER)), known).set_index("other")
    assert sorted(found.index) == [0, 1, 3]
    assert found.loc[3, "similarity"] == 1
    assert found["swapped"].to_dict() == {0: False, 1: True, 3: False}
    assert 0.8 <= found.loc[0, "similarity"] < 1


def test_leaks():
    """Exact, swapped and near twins, each dev row once with its closest; the score without."""
    train = frame((LONG, OTHER), (LONG + "!", OTHER), ("비가 온다", "눈이 온다"))
    dev = frame((LONG, OTHER), ("눈이 온다", "비가 온다"), ("바람이 분다", "해가 뜬다"),
                (LONG + "..", OTHER), ("가", "나"), ("다", "라"))
    found = leaks(train, dev)
    assert found.set_index("row")["kind"].to_dict() == {
        0: "exact", 1: "swapped", 3: "near-duplicate"}
    assert found.set_index("row")["other"].to_dict()[0] == 0
    labels = np.array([0, 5, 1, 5, 2, 3.0])
    predictions = np.array([[0, 5, 1, 5, 3, 2.0]])
    part = without(found, labels, predictions)
    assert (part["n"], part["exact"], part["swapped"], part["near-duplicate"], part["left"]) == (
        3, 1, 1, 1, 3)
    assert part["runs"][0]["without"]["value"] == pytest.approx(0.5)  # of (1, 3, 2) with (1, 2, 3)
    assert part["runs"][0]["all"]["value"] > 0.9


def test_everything_leaks():
    """With all of dev in train there is no score left."""
    table = frame((LONG, OTHER), (OTHER, LONG))
    part = without(leaks(table, table), np.array([0.0, 5]), np.array([[0.0, 5]]))
    assert part["left"] == 0
    assert part["runs"][0]["without"] is None


def test_worst_and_most_different():
    """Rows by error, of two runs by the mean error; and by how far two runs are apart."""
    labels = np.zeros(4)
    predictions = np.array([[0, 3, 1, 0.0], [0, 0, 2, 5]])
    assert worst(labels, predictions).tolist() == [3, 1, 2, 0]
    assert worst(labels, predictions[:1], most=2).tolist() == [1, 2]
    assert most_different(predictions, most=2).tolist() == [3, 1]


def test_wrong_labels():
    """Far from all predictions on one side; agreeing near-duplicates clear, others accuse."""
    third = "주말마다 가까운 산에 올라가서 사진을 찍곤 한다"
    known = frame((LONG, OTHER, 5.0), (LONG + ".", OTHER, 4.8),  # the second clears the first
                  (third, OTHER, 5.0), (OTHER, third + ".", 1.0),  # the second accuses the first
                  ("바람이 분다", "해가 뜬다", 4.0), ("달이 뜬다", "별이 진다", 0.0),
                  ("가", "나", 3.0))
    predictions = np.array([[1, 4.8, 1, 1.2, 1.0, 4.0, 3], [2, 4.8, 2, 1.0, 2.4, 0.5, 3]])
    found = wrong_labels(known, predictions, known)
    assert found["row"].tolist() == [2, 4]  # 5: the two runs do not agree that it is wrong
    assert found["gap"].tolist() == pytest.approx([3.0, 1.6])
    assert found["twins"].tolist() == [1, 0]
    assert found.loc[0, ["twin", "twin_label"]].tolist() == [3, 1.0]
    assert wrong_labels(known, known[["label"]].to_numpy().T, known).empty
