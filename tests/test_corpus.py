"""Sentences without labels: every one once, in order, from pairs and extra files.

python -m pytest tests/test_corpus.py
"""

import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pipeline import corpus
from pipeline.corpus import extra_sentences, sentence_table, unlabelled
from pipeline.data import read_competition
from pipeline.errors import UserError


def frame(*pairs: tuple[str, str]) -> pd.DataFrame:
    """Pairs as a frame."""
    return pd.DataFrame(pairs, columns=["sentence_1", "sentence_2"])


@pytest.fixture
def file(tmp_path):
    """`file("x.txt", content)` writes text or bytes and returns the path."""
    def write(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def refused(path: Path) -> str:
    """The message with which an extra file is refused, without its name in front."""
    with pytest.raises(UserError) as caught:
        list(extra_sentences(path))
    assert str(caught.value).startswith(f"{path}: ")
    return str(caught.value).removeprefix(f"{path}: ")


def test_every_sentence_once_in_order(file):
    """Within a pair, between frames, and between frames and files."""
    extra = file("x.txt", "다\n마\n가\n바\n마\n")
    frames = [frame(("가", "나"), ("나", "다"), ("라", "라")), frame(("다", "가"), ("사", "나"))]
    assert list(unlabelled(frames, [extra])) == ["가", "나", "다", "라", "사", "마", "바"]


def test_competition_is_read_whole(competition):
    """All of train, dev and test, and nothing else."""
    read = read_competition(competition)
    frames = [read.train, read.dev, read.test]
    texts = list(unlabelled(frames, []))
    expected = {text for part in frames for text in
                part[["sentence_1", "sentence_2"]].to_numpy().ravel()}
    assert len(texts) == len(set(texts)) == len(expected)
    assert set(texts) == expected
    assert texts[:2] == read.train.loc[0, ["sentence_1", "sentence_2"]].tolist()


def test_text_file(file):
    """A sentence a line: trimmed, composed, without BOM, empty and invisible lines left out."""
    path = file("x.txt", "\ufeff가나\r\n\n  다라 \n\u200b\n\u1112\u1161\u11ab,\"글\"\n \u3000\n마")
    assert list(extra_sentences(path)) == ["가나", "다라", '한,"글"', "마"]


def test_text_file_is_read_line_by_line(file):
    """A file of any size needs no memory; a fault far down is named before any is used."""
    path = file("x.txt", "가나다라마바사\n" * 200_000)
    tracemalloc.start()
    assert sum(1 for _ in extra_sentences(path)) == 200_000
    assert tracemalloc.get_traced_memory()[1] < 1e6
    tracemalloc.stop()
    path = file("x.txt", "가\n".encode() * 100_000 + b"\xff\n")
    assert refused(path) == "row 100001: expected UTF-8 (or CP949) text, got other bytes"


def test_csv_is_read_part_by_part(file, monkeypatch):
    """Column by column, as of the whole; the first text is there before a fault further down."""
    monkeypatch.setattr(corpus, "PART", 2)
    rows = "".join(f"{number},가{number},나{number}\n" for number in range(5))
    path = file("x.csv", f"id,sentence_2,sentence_1\n{rows}")
    assert list(extra_sentences(path)) == [f"{letter}{number}" for letter in "나가"
                                           for number in range(5)]
    texts = extra_sentences(file("x.csv", f"id,sentence_2,sentence_1\n{rows}1,2\n"))
    assert next(texts) == "나0"
    with pytest.raises(UserError, match="row 7: expected 3 cells as in the header, got 2"):
        list(texts)


@pytest.mark.parametrize(("header", "row", "expected"), [
    ("id,sentence_1,sentence_2,label", "a,가,나,1", ["가", "나"]),
    ("premise,hypothesis,gold_label", "가,나,x", ["가", "나"]),
    ("n,text", "1,가", ["가"]), ("sentence", "가", ["가"]), ("text,other", "  ,x", [])])
def test_csv_columns(file, header, row, expected):
    """The columns with sentences, whatever the file is of; empty cells are left out."""
    assert list(extra_sentences(file("x.csv", f"{header}\n{row}\n"))) == expected


@pytest.mark.parametrize(("name", "content", "message"), [
    ("x.csv", "id,label\na,1\n", "row 1: expected one of the columns sentence_1, sentence_2, "
                                 "sentence, text, premise, hypothesis, got id, label"),
    ("x.csv", "", "expected a header and rows, got an empty file"),
    ("x.txt", "가나다\n".encode() + b"\xff\xfe\x00",
     "row 2: expected UTF-8 (or CP949) text, got other bytes"),
    ("x.json", "[]", "expected a .txt or a .csv of sentences, got '.json'"),
    ("x", "가", "expected a .txt or a .csv of sentences, got ''")])
def test_refused_files(file, name, content, message):
    """Each names the file, what was expected and what was got."""
    assert refused(file(name, content)) == message


@pytest.mark.parametrize("name", ["no.txt", "no.csv"])
def test_missing_file(tmp_path, name):
    """A file that is not there."""
    assert refused(tmp_path / name) == "expected a file, got none"


def test_sentence_table():
    """Each sentence once, in order of first appearance; left and right lead back to the pairs."""
    pairs = frame(("가", "나"), ("다", "가"), ("나", "나"), ("가", "라")).set_axis([7, 3, 9, 1])
    texts, left, right = sentence_table(pairs)
    assert texts == ["가", "다", "나", "라"]
    assert np.array(texts)[left].tolist() == ["가", "다", "나", "가"]
    assert np.array(texts)[right].tolist() == ["나", "가", "나", "라"]
    assert all(type(text) is str for text in texts)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp949"])
def test_encodings_of_text(file, encoding):
    """A text file is read as CSVs are."""
    assert list(extra_sentences(file("x.txt", "가나다\n\n라마\n".encode(encoding)))) == [
        "가나다", "라마"]
