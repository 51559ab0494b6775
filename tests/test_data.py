"""The competition's CSVs: what is read, and what is refused with file and row.

python -m pytest tests/test_data.py
"""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pipeline.config import SAMPLE
from pipeline.data import (
    check_ids,
    content_hash,
    read_competition,
    read_pairs,
    submission_order,
)
from pipeline.errors import UserError

HEADER = "id,source,sentence_1,sentence_2,label,binary-label"
ROWS = ["a,s,가나,다라,0.0,0.0", "b,s,마바,사아,2.5,1.0", "c,t,자차,카타,5,1"]


@pytest.fixture
def pairs(tmp_path):
    """`pairs(line, …)` writes a CSV of these lines and returns its path."""
    def write(*lines: str) -> Path:
        path = tmp_path / "p.csv"
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return path

    return write


def refused(path: Path, labelled: bool = True) -> str:
    """The message with which the pairs are refused, without the file's name in front."""
    with pytest.raises(UserError) as caught:
        read_pairs(path, labelled)
    assert str(caught.value).startswith(f"{path}: ")
    return str(caught.value).removeprefix(f"{path}: ")


def test_read_pairs(pairs):
    """Texts as texts, numbers as numbers, the row's number in the file."""
    frame = read_pairs(pairs(HEADER, *ROWS), True)
    assert list(frame.columns) == ["id", "source", "sentence_1", "sentence_2", "label", "row",
                                   "binary-label"]
    assert frame["label"].tolist() == [0.0, 2.5, 5.0]
    assert frame["label"].dtype == frame["binary-label"].dtype == np.float64
    assert frame["binary-label"].tolist() == [0.0, 1.0, 1.0]
    assert frame["sentence_2"].tolist() == ["다라", "사아", "카타"]
    assert frame["row"].tolist() == [2, 3, 4]


def test_source_and_binary_label_may_be_absent(pairs):
    """And other columns, in any order, are left alone."""
    frame = read_pairs(pairs("label,note,sentence_2,id,sentence_1", "1.5,x,나,007,가"), True)
    assert frame.to_dict("records") == [{"id": "007", "source": "", "sentence_1": "가",
                                         "sentence_2": "나", "label": 1.5, "row": 2}]


@pytest.mark.parametrize("lines", [
    ["id,sentence_1,sentence_2", "a,가,나"],
    ["id,sentence_1,sentence_2,label", "a,가,나,"],
    [HEADER, "a,s,가,나,,"]])
def test_without_labels(pairs, lines):
    """A test set's label column may be absent or empty."""
    frame = read_pairs(pairs(*lines), False)
    assert list(frame.columns) == ["id", "source", "sentence_1", "sentence_2", "row"]


@pytest.mark.parametrize("label", ["0", "5", "0.0", " 3 ", "1e0", "4.999", "+2", ".5", "-0.0"])
def test_labels(pairs, label):
    """Everything that is a number from 0 to 5, the ends included."""
    assert read_pairs(pairs(HEADER, f"a,s,가,나,{label},0"), True)["label"][0] == float(label)


@pytest.mark.parametrize("label", ["7", "-0.1", "5.0001", "nan", "NaN", "NA", "", " ", "inf",
                                   "-inf", "x", "True", "0x1", "1_0", "2점", "1/2"])
def test_wrong_labels(pairs, label):
    """Everything else, with its row and as it stands there."""
    assert refused(pairs(HEADER, *ROWS, f"d,s,가,나,{label},0", "e,s,가,나,9,0")) == (
        f"row 5: expected label to be a number from 0 to 5, got {label!r}")


def test_decimal_comma(pairs):
    """5,0 in quotes is no number; the message says why."""
    assert refused(pairs(HEADER, ROWS[0], 'd,s,가,나,"5,0",0')) == (
        "row 3: expected label to be a number from 0 to 5, got '5,0'; the decimal mark is a point")


def test_missing_cell_is_not_filled_from_the_right(pairs):
    """Without its second sentence a row would have the label for it, binary-label for the label."""
    assert refused(pairs(HEADER, ROWS[0], "d,s,가나다,2.5,1.0", ROWS[2])) == (
        "row 3: expected 6 cells as in the header, got 5")


@pytest.mark.parametrize("column", ["id", "sentence_1", "sentence_2"])
@pytest.mark.parametrize("text", ["", "  ", "\u3000", "\u200b\ufeff"])
def test_empty_text(pairs, column, text):
    """The first empty cell's row and column."""
    cells = {"id": "d", "sentence_1": "가", "sentence_2": "나"} | {column: text}
    line = "{id},s,{sentence_1},{sentence_2},1,0".format(**cells)
    assert refused(pairs(HEADER, ROWS[0], line, ROWS[1])) == (
        f"row 3: expected text in {column}, got {text!r}")


def test_repeated_id(pairs):
    """Both rows are named."""
    assert refused(pairs(HEADER, *ROWS, "", "b,s,가,나,1,0")) == (
        "row 6: expected a new id, got 'b' as in row 3")


def test_test_set_with_labels(pairs):
    """Labels in a test set are a mistake of files; the first labelled row is named."""
    message = refused(pairs(HEADER, "a,s,가,나,,", "b,s,다,라,4.5,1"), labelled=False)
    assert message.startswith("row 3: expected a test set without labels, got label '4.5'; ")


@pytest.mark.parametrize("mark", [";", "\t", "|"])
@pytest.mark.parametrize("place", [0, 1])
def test_other_separator_with_commas_in_sentences(pairs, mark, place):
    """The separator is named as the fault, not the sentences' commas, wherever the first stands."""
    lines = [line.replace(",", mark) for line in (HEADER, *ROWS)]
    lines[1 + place] = lines[1 + place].replace("가나", "가, 나").replace("마바", "마, 바")
    assert refused(pairs(*lines)) == f"row 1: expected columns separated by ',', got {mark!r}"


def test_competition(competition):
    """Three sets; without a sample submission the order is test.csv's."""
    read = read_competition(competition)
    assert [len(read.train), len(read.dev), len(read.test)] == [48, 24, 16]
    assert "label" in read.dev
    assert "label" not in read.test
    assert read.notes == []
    (competition / "sample_submission.csv").unlink()
    assert read_competition(competition).order == read.test["id"].tolist() == read.order


def test_bundled_sample_is_valid():
    """The committed sample reads without a note, and its order is the sample submission's."""
    read = read_competition(SAMPLE)
    assert read.notes == []
    order = pd.read_csv(SAMPLE / "sample_submission.csv")["id"].tolist()
    assert read.order == order
    assert len(order) == len(read.test)


def test_order_is_the_sample_submissions(competition):
    """In whatever order it has the ids."""
    path = competition / "sample_submission.csv"
    ids = pd.read_csv(path)["id"].tolist()
    pd.DataFrame({"id": ids[::-1], "target": 0}).to_csv(path, index=False)
    assert submission_order(path, ids) == ids[::-1]
    assert read_competition(competition).order == ids[::-1]


@pytest.mark.parametrize(("gone", "named"), [
    (["dev.csv"], "no dev.csv;"), (["train.csv", "test.csv"], "no train.csv and no test.csv;")])
def test_missing_files(competition, gone, named):
    """All that are missing are named, with the way to a trial."""
    for name in gone:
        (competition / name).unlink()
    with pytest.raises(UserError) as caught:
        read_competition(competition)
    assert str(caught.value) == (f"{competition}: expected train.csv, dev.csv and test.csv, got "
                                 f"{named} trial=always runs on the bundled sample")


@pytest.mark.parametrize(("ids", "message"), [
    (["a", "x", "c"], "row 3: expected an id of test.csv (such as 'a'), got 'x'"),
    (["a", "b", "c", "b"], "row 5: expected every id once, got 'b' again"),
    (["c", "a"], "row 4: expected 3 ids as in test.csv, got 2: no 'b'"),
    (["a", "a", "b"], "row 3: expected every id once, got 'a' again")])
def test_check_ids(ids, message):
    """Other, repeated and missing ids, the first with its row."""
    table = pd.DataFrame({"id": ids, "row": range(2, len(ids) + 2)})
    with pytest.raises(UserError) as caught:
        check_ids(Path("s.csv"), table, ["a", "b", "c"])
    assert str(caught.value) == f"s.csv: {message}"


def test_check_ids_in_any_order():
    """The same ids in another order are right."""
    table = pd.DataFrame({"id": ["c", "a", "b"], "row": [2, 3, 4]})
    check_ids(Path("s.csv"), table, ["a", "b", "c"])


def test_content_hash(pairs):
    """The same pairs have the same hash in any layout; each change of content has another."""
    def mark(*lines: str) -> str:
        return content_hash(read_pairs(pairs(*lines), True))

    own = mark(HEADER, *ROWS)
    assert len(own) == 64
    assert mark("binary-label,label,sentence_1,sentence_2,source,id", "0.0,0,가나,다라,s,a", "",
                '1,2.50,"마바",사아,s,b', "1,5.0,자차,카타,t,c") == own
    others = [mark(HEADER, *ROWS[::-1]), mark(HEADER, *ROWS[:2]),
              mark(HEADER, *ROWS[:2], "c,t,자차,카타,4.9,1"),
              mark(HEADER, *ROWS[:2], "c,t,카타,자차,5,1"),
              mark(HEADER, *ROWS[:2], "d,t,자차,카타,5,1")]
    assert len({own, *others}) == 6


def test_sample_with_another_header(competition):
    """A platform that wants other columns would not take what we write."""
    path = competition / "sample_submission.csv"
    path.write_text(path.read_text(encoding="utf-8").replace("id,target", "id,label"), "utf-8")
    with pytest.raises(UserError, match=r"row 1: expected column target, got id, label"):
        read_competition(competition)


@pytest.mark.parametrize(("name", "meant"), [
    ("Source", "source"), ("binary_label", "binary-label"), ("Binary Label", "binary-label"),
    ("note", ""), ("sources", "")])
def test_a_column_that_is_nearly_read(competition, name, meant):
    """What a capital or a line keeps from being read is said; other columns are nobody's fault."""
    table = pd.read_csv(competition / "dev.csv", dtype=str, keep_default_na=False)
    table = table.drop(columns=meant or []).assign(**{name: "1"})
    table.to_csv(competition / "dev.csv", index=False)
    assert read_competition(competition).notes == [
        f"{competition / 'dev.csv'}: column {name!r} is not read; the name would be {meant!r}"
    ] * bool(meant)


@pytest.mark.parametrize("name", [" source", "source ", "\tbinary-label"])
def test_spaces_around_a_columns_name(competition, name):
    """Refused: an optional column would be missed without a word."""
    path = competition / "train.csv"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(name.strip(), name, 1), encoding="utf-8")
    with pytest.raises(UserError, match=r"row 1: expected a column's name without spaces around "
                                        rf"it, got {re.escape(repr(name))}"):
        read_competition(competition)
