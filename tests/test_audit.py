"""What is reported of the data though it is not refused.

python -m pytest tests/test_audit.py
"""

from pathlib import Path

import pandas as pd
import pytest

from pipeline.audit import (
    binary_threshold,
    contradictions,
    findings,
    leaks,
    pair_keys,
    repeated_pairs,
    rows_shown,
    shared_sentences,
)
from pipeline.data import Competition, read_competition


def frame(*rows: tuple) -> pd.DataFrame:
    """(sentence_1, sentence_2, label, binary-label) with row numbers from 2."""
    table = pd.DataFrame([(*row, *(0.0, 0.0)[len(row) - 2:]) for row in rows],
                         columns=["sentence_1", "sentence_2", "label", "binary-label"])
    return table.assign(row=range(2, len(rows) + 2), source="s",
                        id=[f"i{n}" for n in range(len(rows))])


CLEAN = frame(("가", "나", 0.0, 0), ("다", "라", 2.4, 0), ("마", "바", 2.5, 1),
              ("사", "아", 5.0, 1))


def said(train=CLEAN, dev=None, test=None, notes=()) -> list[str]:
    """The findings of a competition that is clean but for what is given."""
    dev = frame(("a", "b", 1.0, 0), ("c", "d", 4.0, 1)) if dev is None else dev
    test = frame(("e", "f")) if test is None else test
    return findings(Competition(train, dev, test, ["i0"], list(notes)), Path("data"))


def test_pair_keys():
    """The same for a pair and its swap; the border between the sentences counts."""
    keys = pair_keys(frame(("가", "나"), ("나", "가"), ("가나", "다"), ("가", "나다")))
    assert keys[0] == keys[1]
    assert keys.nunique() == 3


def test_repeated_pairs():
    """The second and every later one, swapped or not."""
    twice = repeated_pairs(frame(("가", "나"), ("다", "라"), ("나", "가"), ("가", "나"),
                                 ("가", "라")))
    assert twice["row"].tolist() == [4, 5]


def test_contradictions():
    """The rows of the lowest and highest label, if they are more than one apart."""
    found = contradictions(frame(("가", "나", 2.0), ("나", "가", 3.5), ("가", "나", 1.0),
                                 ("다", "라", 1.0), ("다", "라", 2.0), ("마", "바", 5.0)))
    assert found == [(4, 3, 2.5)]
    assert len(contradictions(frame(("다", "라", 1.0), ("라", "다", 1.4)), apart=0.3)) == 1


def test_leaks():
    """A pair of train's, swapped too; a shared sentence alone is none."""
    other = frame(("나", "가"), ("가", "다"), ("다", "라"), ("x", "y"))
    assert leaks(CLEAN, other)["row"].tolist() == [2, 4]


def test_shared_sentences():
    """The share of distinct sentences: here 가 of 가, x, y."""
    assert shared_sentences(CLEAN, frame(("가", "x"), ("가", "y"))) == pytest.approx(1 / 3)
    assert shared_sentences(CLEAN, frame(("x", "y"))) == 0


def test_binary_threshold():
    """The label from which binary-label is 1, and who disagrees."""
    threshold, wrong = binary_threshold(CLEAN)
    assert threshold == 2.5
    assert wrong.empty
    bad = pd.concat([CLEAN, CLEAN, frame(("x", "y", 4.0, 0), ("z", "w", 0.5, 1))],
                    ignore_index=True)
    threshold, wrong = binary_threshold(bad)
    assert threshold == 2.5
    assert wrong["sentence_1"].tolist() == ["x", "z"]


@pytest.mark.parametrize("value", [0, 1])
def test_binary_labels_of_one_kind(value):
    """All 0 or all 1 can agree with a threshold: nobody disagrees."""
    _, wrong = binary_threshold(frame(("a", "b", 1.0, value), ("c", "d", 2.0, value)))
    assert wrong.empty


@pytest.mark.parametrize(("rows", "text"), [
    ([5], "row 5"), ([2, 3, 9], "row 2, 3, 9"), ([2, 3, 4, 5], "row 2, 3, 4, …")])
def test_rows_shown(rows, text):
    """Three at most."""
    assert rows_shown(pd.DataFrame({"row": rows})) == text


def test_nothing_to_say():
    """A clean competition has no findings; notes of reading are passed on."""
    assert said() == []
    assert said(notes=["data/dev.csv: read as CP949, not UTF-8"]) == [
        "data/dev.csv: read as CP949, not UTF-8"]


def test_repeats_and_contradictions_are_reported():
    """With file, number and rows."""
    train = pd.concat([CLEAN, frame(("나", "가", 4.5, 1))], ignore_index=True).assign(
        row=range(2, 7))
    assert said(train=train) == [
        "data/train.csv: 1 pairs stand there more than once (row 6)",
        "data/train.csv: rows 2 and 6 are one pair with labels 4.5 apart"]


def test_binary_labels_are_reported():
    """Those that disagree, and values that are none."""
    wrong = frame(("a", "b", 0.0, 0), ("c", "d", 1.0, 0), ("e", "g", 4.0, 0), ("h", "i", 4.5, 1),
                  ("j", "k", 5.0, 1), ("l", "m", 0.5, 1))
    assert said(dev=wrong) == ["data/dev.csv: 1 binary-labels disagree with label >= 4.5 (row 7)"]
    assert said(dev=frame(("a", "b", 0.0, 2), ("c", "d", 1.5, 0))) == [
        "data/dev.csv: binary-label holds other values than 0 and 1"]
    assert said(dev=frame(("a", "b", 0.0), ("c", "d", 1.5)).drop(columns="binary-label")) == []


def test_constant_labels_are_reported():
    """No correlation can be measured on them."""
    dev = frame(("a", "b", 2.5, 0), ("c", "d", 2.5, 0)).drop(columns="binary-label")
    assert said(dev=dev) == ["data/dev.csv: all labels are 2.5: no correlation can be measured"]


@pytest.mark.parametrize("name", ["dev", "test"])
def test_leaks_are_reported(name):
    """Of dev and of test, with rows."""
    leak = frame(("x", "y", 1.0, 0), ("라", "다", 2.0, 1))
    assert said(**{name: leak}) == [
        f"data/{name}.csv: LEAK: 1 pairs are in train too, maybe swapped (row 3): the {name} score "
        "will be too high"]


def test_a_copy_of_dev_is_reported():
    """Test's pairs that are dev's: with sts.use_dev they would be trained on."""
    pairs = frame(("x", "y", 1.0, 0), ("z", "w", 2.0, 0))
    assert said(dev=pairs, test=pairs.drop(columns=["label", "binary-label"])) == [
        "data/test.csv: LEAK: 2 pairs are in dev too, maybe swapped (row 2, 3): the test score "
        "will be too high"]


def test_two_scales_are_reported():
    """Labels from 0 to 1 beside labels from 0 to 5."""
    dev = frame(("x", "y", 0.2, 0), ("z", "w", 1.0, 0)).drop(columns="binary-label")
    assert said(dev=dev) == ["data: labels go to 5 in train.csv and to 1 in dev.csv: both are "
                             "taken for 0 to 5"]
    assert said(train=dev.assign(label=[0.0, 1.0])) == [
        "data: labels go to 1 in train.csv and to 4 in dev.csv: both are taken for 0 to 5"]
    assert said(train=dev, dev=dev.assign(sentence_1=["가", "나"])) == []


def test_unseen_sources_are_reported():
    """Sources of test that train does not have; none where test names no sources."""
    test = frame(("e", "f"), ("g", "h")).assign(source=["s", "news"])
    assert said(test=test) == ["data/test.csv: sources that train does not have: news: expect a "
                               "lower test score than dev's"]
    assert said(test=test.assign(source="")) == []


def test_check_reports_them(command, competition, make_encoder):
    """Through stage=check: every finding is a line with risk:, and they are counted."""
    path = competition / "dev.csv"
    lines = path.read_text(encoding="utf-8").splitlines()
    train = (competition / "train.csv").read_text(encoding="utf-8").splitlines()
    lines[4] = train[9].replace("train-008", "dev-999")
    path.write_bytes("\n".join(lines).encode("cp949", "xmlcharrefreplace"))
    assert read_competition(competition).notes == [f"{path}: read as CP949, not UTF-8"]
    code, out, err = command("stage=check", f"data.dir={competition}",
                             f"encoder.path={make_encoder()}")
    assert (code, err) == (0, "")
    risks = [line for line in out.splitlines() if line.startswith("risk: ")]
    assert risks[0] == f"risk: {path}: read as CP949, not UTF-8"
    assert f"risk: {path}: LEAK: 1 pairs are in train too, maybe swapped (row 5): the dev score " \
           "will be too high" in risks
    assert out.splitlines()[-1] == f"{len(risks)} risks, no errors"
    code, out, err = command("stage=check", f"data.dir={competition}", "encoder.path=./none")
    assert (code, err) == (2, "error: encoder.path: expected a Hub id or a folder, got no folder "
                              "./none\n")
    assert [line for line in out.splitlines() if line.startswith("risk: ")] == risks
