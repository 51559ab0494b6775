"""Contrast sets: the files that come with the project, how a model is judged, what is refused.

python -m pytest tests/test_probes.py
"""

import json
import unicodedata

import numpy as np
import pandas as pd
import pytest

from pipeline.data import SENTENCES
from pipeline.diagnostics.probes import (
    COLUMNS,
    MUST,
    PROBES,
    bigrams,
    judge,
    overlaps,
    read_probes,
    report_lines,
)
from pipeline.errors import UserError
from pipeline.files import write_json

HARMLESS = ["style", "spelling"]  # the change does not touch the meaning
CHANGING = [kind for kind in MUST if kind not in HARMLESS]
HEADER = "sentence,closer,further"
TOY = pd.DataFrame([("a", "s1", "p1", "x1"), ("a", "s2", "p2", "x2"), ("b", "s3", "p3", "x3"),
                    ("a", "s4", "p4", "x4"), ("a", "s5", "p5", "x5")],
                   columns=["kind", *COLUMNS])


@pytest.fixture(scope="module")
def probes() -> pd.DataFrame:
    """The probes that come with the project."""
    shipped = read_probes()
    return shipped[shipped["kind"].isin(list(MUST))]  # a user's own files may lie beside them


@pytest.fixture
def folder(tmp_path):
    """`folder(name=[line, …])` writes a CSV for each name and returns their folder."""
    def write(**files: list[str]):
        for name, lines in files.items():
            (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        return tmp_path

    return write


def misled(part: pd.DataFrame) -> float:
    """The share of probes whose further sentence has more bigrams in common with the sentence."""
    closer, further = (overlaps(part[["sentence", side]].set_axis(SENTENCES, axis=1))
                       for side in COLUMNS[1:])
    return float((further > closer).mean())


def prefers(letter: str):
    """A score: 1 where the second sentence starts with the letter, else 0."""
    return lambda pairs: pairs["sentence_2"].str.startswith(letter).to_numpy(float)


@pytest.mark.parametrize("kind", MUST)
def test_kind_has_enough_probes(probes, kind):
    """25 or more of every kind: the interval of a rate is then at most 0.37 wide."""
    assert (probes["kind"] == kind).sum() >= 25


def test_probes_are_three_sentences_each_once(probes):
    """No empty cell, no line break, no space at an end; no sentence stands in two places."""
    cells = probes[COLUMNS].to_numpy().ravel().tolist()
    assert all(cell and cell == " ".join(cell.split()) for cell in cells)
    assert len(set(cells)) == len(cells)


def test_files_are_nfc_utf8():
    """As they stand on the disk: read_probes would normalise them."""
    for kind in MUST:
        text = (PROBES / f"{kind}.csv").read_bytes().decode("utf-8")
        assert text == unicodedata.normalize("NFC", text)
        assert text.startswith(f"{HEADER}\n")
        assert "\r" not in text


@pytest.mark.parametrize("kind", CHANGING)
def test_overlap_does_not_solve_a_kind(probes, kind):
    """The sentence of another meaning looks more alike than the paraphrase does."""
    assert misled(probes[probes["kind"] == kind]) >= 0.9


@pytest.mark.parametrize("kind", HARMLESS)
def test_overlap_is_no_better_than_chance_on_harmless_changes(probes, kind):
    """Restyled and misspelt sentences are not simply those with more letters in common."""
    assert judge(probes[probes["kind"] == kind], overlaps)[0]["rate"] <= 0.5


def test_bigrams_leave_spaces_out():
    """가나 다 has the pairs 가나 and 나다; one letter has none."""
    assert bigrams("가나 다") == {"가나", "나다"}
    assert bigrams(" 가 ") == set()


def test_overlaps_by_hand():
    """{가나, 나다} and {가나, 나라} share one of three; two single letters share nothing."""
    pairs = pd.DataFrame([("가나다", "가 나라"), ("가나다", "가나 다"), ("가", "가")],
                         columns=SENTENCES)
    assert overlaps(pairs) == pytest.approx([1 / 3, 1.0, 0.0])


def test_perfect_and_reversed_models():
    """All passed or none, and the failures are the probes with both scores, in their order."""
    right, wrong = judge(TOY, prefers("p")), judge(TOY, prefers("x"))
    assert [(row["kind"], row["n"], row["passed"], row["rate"]) for row in right] == [
        ("a", 4, 4, 1.0), ("b", 1, 1, 1.0)]
    assert [row["failures"] for row in right] == [[], []]
    assert [row["passed"] for row in wrong] == [0, 0]
    assert wrong[1]["failures"] == [{"sentence": "s3", "closer": "p3", "further": "x3",
                                     "closer_score": 0.0, "further_score": 1.0}]
    assert [row["sentence"] for row in wrong[0]["failures"]] == ["s1", "s2", "s4", "s5"]


@pytest.mark.parametrize("value", [0.0, 3.5, np.nan])
def test_ties_and_nan_are_failures(value):
    """A model that says the same of every pair, or nothing, understands nothing."""
    assert [row["passed"] for row in judge(TOY, lambda pairs: np.full(len(pairs), value))] == [0, 0]


def test_one_nan_fails_its_probe_alone():
    """NaN on either side; the others are judged as ever."""
    def score(pairs):
        second = pairs["sentence_2"]
        return np.where(second.isin(["p1", "x2"]), np.nan, second.str.startswith("p"))

    found = judge(TOY, score)[0]
    assert [row["sentence"] for row in found["failures"]] == ["s1", "s2"]
    assert np.isnan(found["failures"][0]["closer_score"])


def test_interval_is_wilsons():
    """3 of 4 (Wilson 1927, eq. 1): (p + z²/2n ± z √(p(1−p)/n + z²/4n²)) / (1 + z²/n), z 1.96."""
    found = judge(TOY, lambda pairs: prefers("p")(pairs) * (pairs["sentence_1"] != "s2"))[0]
    assert (found["passed"], found["n"]) == (3, 4)
    assert [found["low"], found["high"]] == pytest.approx([0.30064, 0.95441], abs=1e-5)


def test_each_pair_is_scored_once():
    """Though it stands in two kinds and on both sides; scores go back to where they belong."""
    shared = pd.DataFrame([("a", "s", "p", "x"), ("b", "s", "x", "y"), ("b", "s", "p", "y")],
                          columns=["kind", *COLUMNS])
    asked = []

    def score(pairs):
        asked.extend(pairs[SENTENCES].itertuples(index=False, name=None))
        return pairs["sentence_2"].map({"p": 3, "y": 2, "x": 1}).to_numpy()

    found = judge(shared, score)
    assert sorted(asked) == [("s", "p"), ("s", "x"), ("s", "y")]
    assert [row["passed"] for row in found] == [1, 1]
    assert found[1]["failures"] == [{"sentence": "s", "closer": "x", "further": "y",
                                     "closer_score": 1, "further_score": 2}]


def test_results_are_plain_json(tmp_path):
    """float32 scores, NaN among them, come out as numbers that JSON knows, NaN as null."""
    def score(pairs):
        return np.where(pairs["sentence_2"] == "p3", np.nan, 0.5).astype(np.float32)

    write_json(tmp_path / "found.json", judge(TOY, score))
    read = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert read[1]["failures"] == [{"sentence": "s3", "closer": "p3", "further": "x3",
                                    "closer_score": None, "further_score": 0.5}]


def test_judge_keeps_the_rows_of_any_index(probes):
    """A choice of probes in another order: the baseline's rows are still the right ones."""
    chosen = probes.sample(frac=1, random_state=0)
    expected = {row["kind"]: row["overlap"] for row in judge(probes, overlaps)}
    found = judge(chosen, overlaps)
    assert {row["kind"]: row["overlap"] for row in found} == expected
    assert all(row["rate"] == row["overlap"] for row in found)


def test_own_kinds(folder):
    """A user's file is a kind of its own, with a general sentence of what must hold."""
    where = folder(slang=[HEADER, "a,b,c", "d, e ,f"], negation=[HEADER, '"g, h",i,j'])
    read = read_probes(where)
    assert list(read.columns) == ["kind", *COLUMNS]
    assert read.to_numpy().tolist() == [["negation", "g, h", "i", "j"], ["slang", "a", "b", "c"],
                                        ["slang", "d", "e", "f"]]
    found = judge(read, overlaps)
    assert found[0]["must"] == MUST["negation"]
    assert found[1]["must"] == "the closer sentence scores above the further one"


@pytest.mark.parametrize(("lines", "message"), [
    (["sentence,closer", "a,b"],
     "row 1: expected column further, got sentence, closer"),
    ([HEADER], "row 2: expected rows under the header, got none"),
    ([HEADER, "a,b,c", "d, ,f"], "row 3: expected a sentence in closer, got an empty cell"),
    ([HEADER, "a,b,c", "", "d,e"], "row 4: expected 3 cells as in the header, got 2"),
    ([HEADER, "a,b,c", "d,e,d "],
     "row 3: expected three different sentences, got one of them twice"),
    ([HEADER, "a,b,c", "d,e,f", "a,b,c"],
     "row 4: expected every probe once, got one that stands above"),
])
def test_bad_files_are_refused(folder, lines, message):
    """File, row, what was expected and what was got."""
    where = folder(good=[HEADER, "a,b,c"], mine=lines)
    with pytest.raises(UserError) as caught:
        read_probes(where)
    assert str(caught.value) == f"{where / 'mine.csv'}: {message}"


def test_empty_folder_is_refused(tmp_path):
    """A folder without CSVs, or none at all."""
    for where in (tmp_path, tmp_path / "none"):
        with pytest.raises(UserError, match=r"expected CSVs of probes \(sentence, closer, further"
                                            r"\), got none"):
            read_probes(where)


def test_report_lines():
    """A line a kind in one grid, then the kinds that a coin would do as well on."""
    def result(kind, passed, n, low, high, overlap):
        return {"kind": kind, "must": "", "n": n, "passed": passed, "rate": passed / n,
                "low": low, "high": high, "overlap": overlap, "failures": []}

    assert report_lines([result("negation", 30, 33, 0.764, 0.969, 0.0),
                         result("mine", 0, 100, 0.0, 0.037, 0.25)]) == [
        "kind       passed   rate  95% interval  by overlap alone",
        "negation   30/33    0.91  [0.76, 0.97]              0.00",
        "mine        0/100   0.00  [0.00, 0.04]              0.25",
        "not shown to be better than a coin toss (0.50): mine",
    ]
    assert len(report_lines([result("negation", 30, 33, 0.764, 0.969, 0.0)])) == 2
