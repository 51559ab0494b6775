"""Bad and odd data through the real entry point: one line with file and row, or it works.

python -m pytest tests/test_bad_input.py
"""

import random

import pytest
from refusal import cell, content, contents, line, recoded, refusal, separated, unfinished, without

from pipeline.data import read_competition

TRAIN, DEV, TEST, SAMPLE = "train.csv", "dev.csv", "test.csv", "sample_submission.csv"
BINARY = random.Random(0).randbytes(5000)
NUMBER = "expected label to be a number from 0 to 5, got "

CASES = {
    "missing column": (TRAIN, without("sentence_2"), "row 1: expected column sentence_2, got id, "
                                                     "source, sentence_1, label, binary-label"),
    "missing labels": (DEV, without("label"), "row 1: expected column label, got id, source, "
                                              "sentence_1, sentence_2, binary-label"),
    "missing ids": (TEST, without("id"), "row 1: expected column id, got source, sentence_1"),
    "semicolons": (TRAIN, separated(";"), "row 1: expected columns separated by ',', got ';'"),
    "tabs": (TRAIN, separated("\t"), "row 1: expected columns separated by ',', got '\\t'"),
    "empty file": (DEV, content(b""), "expected a header and rows, got an empty file"),
    "white file": (DEV, content(b" \r\n \n"), "expected a header and rows, got an empty file"),
    "header only": (TEST, content(b"id,source,sentence_1,sentence_2\n"),
                    "row 2: expected rows under the header, got none"),
    "empty sentence": (TRAIN, cell(5, "sentence_1", ""),
                       "row 5: expected text in sentence_1, got ''"),
    "white sentence": (TEST, cell(17, "sentence_2", " \u3000 "),
                       "row 17: expected text in sentence_2, got ' \\u3000 '"),
    "invisible sentence": (DEV, cell(9, "sentence_2", "\u200b\u200d\ufeff"),
                           "row 9: expected text in sentence_2, got '\\u200b\\u200d\\ufeff'"),
    "empty id": (TRAIN, cell(3, "id", ""), "row 3: expected text in id, got ''"),
    "NaN label": (TRAIN, cell(12, "label", "NaN"), f"row 12: {NUMBER}'NaN'"),
    "no label": (DEV, cell(25, "label", ""), f"row 25: {NUMBER}''"),
    "word label": (DEV, cell(2, "label", "높음"), f"row 2: {NUMBER}'높음'"),
    "decimal comma": (TRAIN, cell(30, "label", "5,0"),
                      f"row 30: {NUMBER}'5,0'; the decimal mark is a point"),
    "label 7": (TRAIN, cell(49, "label", "7"), f"row 49: {NUMBER}'7'"),
    "label -1": (TRAIN, cell(4, "label", "-1"), f"row 4: {NUMBER}'-1'"),
    "infinite label": (TRAIN, cell(4, "label", "inf"), f"row 4: {NUMBER}'inf'"),
    "repeated id": (TRAIN, cell(20, "id", "sample-sts-v1-train-003"),
                    "row 20: expected a new id, got 'sample-sts-v1-train-003' as in row 5"),
    "too many cells": (TRAIN, line(6, "x,s,가,나,다,1.0,0.0"),
                       "row 6: expected 6 cells as in the header, got 7"),
    "bare decimal comma": (TRAIN, line(6, "x,s,가,나,5,0,1.0"),
                           "row 6: expected 6 cells as in the header, got 7"),
    "too many cells at once": (TRAIN, line(2, "x,s,가,나,다,1.0,0.0"),
                               "row 2: expected 6 cells as in the header, got "),
    "too few cells": (TRAIN, line(6, "x,s,가"), "row 6: expected 6 cells as in the header, got 3"),
    "a cell short": (TRAIN, line(6, "x,s,문장,1.0,0.0"),
                     "row 6: expected 6 cells as in the header, got 5"),
    "quote before a quoted one": (TRAIN, line(3, 'x,s,"좋다 했다,나,1.0,0.0'), "row 3: expected "),
    "quote without another": (TRAIN, line(48, 'x,s,"좋다 했다,나,1.0,0.0'), "row 48: expected "),
    "line break": (TRAIN, line(10, 'x,s,"가\n나",다,1.0,0.0'), "row 10: expected sentence_1 on one "
                   "line, got a line break inside quotes; is a quote (\") left open?"),
    "test with labels": (TEST, lambda path: path.write_bytes((path.parent / DEV).read_bytes()),
                         "row 2: expected a test set without labels, got label '"),
    "other ids": (SAMPLE, cell(4, "id", "foreign"), "row 4: expected an id of test.csv (such as "
                  "'sample-sts-v1-test-000'), got 'foreign'"),
    "missing id": (SAMPLE, lambda path: path.write_text(
        "".join(path.read_text().splitlines(keepends=True)[:-1])),
        "row 17: expected 16 ids as in test.csv, got 15: no 'sample-sts-v1-test-015'"),
    "repeated sample id": (SAMPLE, cell(9, "id", "sample-sts-v1-test-000"),
                           "row 9: expected every id once, got 'sample-sts-v1-test-000' again"),
    "binary": (TRAIN, content(BINARY), "row 1: expected UTF-8 (or CP949) text, got other bytes"),
    "NUL byte": (TRAIN, cell(7, "sentence_1", "가\0나"), "row 7: expected text, got a NUL byte"),
    "UTF-16": (TEST, recoded("utf-16"), "row 1: expected UTF-8 (or CP949) text, got other bytes"),
    "stray byte": (TRAIN, lambda path: path.write_bytes(
        path.read_bytes().replace(b"\n", b"\xff\n", 11).replace(b"\xff\n", b"\n", 10)),
        "row 11: expected UTF-8 (or CP949) text, got other bytes"),
}


@pytest.mark.parametrize("case", CASES)
def test_refused(command, competition, tmp_path, make_encoder, case):
    """File, row, expected, got, in one line; nothing is trained and not a file is written."""
    name, edit, message = CASES[case]
    edit(competition / name)
    before = contents(tmp_path)
    said = refusal(command("stage=sts", f"data.dir={competition}",
                           f"encoder.path={make_encoder()}", "encoder.max_length=32"))
    assert said.startswith(f"{competition / name}: {message}")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("stage", ["check", "simcse"])
@pytest.mark.parametrize("case", ["label 7", "other ids", "binary", "test with labels"])
def test_refused_by_every_stage(command, competition, tmp_path, make_encoder, case, stage):
    """They read the data alike."""
    name, edit, message = CASES[case]
    edit(competition / name)
    before = contents(tmp_path)
    said = refusal(command(f"stage={stage}", f"data.dir={competition}",
                           f"encoder.path={make_encoder()}"))
    assert said.startswith(f"{competition / name}: {message}")
    assert contents(tmp_path) == before


@pytest.mark.parametrize(("stage", "name"), [("check", TRAIN), ("simcse", DEV), ("sts", TEST)])
def test_missing_file(command, competition, tmp_path, name, stage):
    """The folder, the file that is missing and the way to a trial."""
    (competition / name).unlink()
    before = contents(tmp_path)
    assert refusal(command(f"stage={stage}", f"data.dir={competition}")) == (
        f"{competition}: expected train.csv, dev.csv and test.csv, got no {name}; "
        "trial=always runs on the bundled sample")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("kind", ["nothing", "file"])
def test_no_data_folder(command, tmp_path, kind):
    """A data.dir that is not there, or a file."""
    if kind == "file":
        (tmp_path / "mine").write_text("x")
    assert refusal(command("stage=check", "data.dir=mine")) == (
        "mine: expected a folder with train.csv, dev.csv and test.csv, got none; "
        "trial=always runs on the bundled sample")


def test_folder_in_place_of_a_file(command, competition):
    """Said as such."""
    (competition / DEV).unlink()
    (competition / DEV).mkdir()
    assert refusal(command("stage=check", f"data.dir={competition}")) == (
        f"{competition / DEV}: expected a file, got a folder")


@pytest.mark.parametrize("row", [3, 48])
def test_quote_left_open_is_called_one(command, competition, row):
    """Though a quoted sentence further down may end it: commas are not what is wrong."""
    line(row, 'x,s,"좋다 했다,나,1.0,0.0')(competition / TRAIN)
    said = refusal(command("stage=check", f"data.dir={competition}"))
    assert said.startswith(f"{competition / TRAIN}: row {row}: ")
    assert 'quote (")' in said


WORKS = {
    "CP949": (TRAIN, recoded("cp949"), "read as CP949, not UTF-8"),
    "BOM": (TRAIN, recoded("utf-8-sig"), ""),
    "quote inside": (TRAIN, line(3, 'x,s,그는 "좋다 했다,5" TV,1.0,0.0'), ""),
    "long sentence": (TRAIN, cell(3, "sentence_2", "가나다라 마" * 2000), "(longest 12,000)"),
    "no source": (TEST, without("source"), "sources: none 16"),
}


@pytest.mark.parametrize("case", WORKS)
def test_works(command, competition, make_encoder, case):
    """What is odd but clear is read, and reported where it matters."""
    name, edit, said = WORKS[case]
    edit(competition / name)
    code, out, err = command("stage=check", f"data.dir={competition}",
                             f"encoder.path={make_encoder()}")
    assert (code, err) == (0, "")
    assert "train     48 pairs" in out
    assert "test      16 pairs" in out
    assert said in out
    assert ("risk: " in out) == (case == "CP949")
    assert out.endswith(f"{int(case == 'CP949')} risks, no errors\n")
    first = read_competition(competition).train.iloc[1]
    if case == "quote inside":
        assert (first["sentence_1"], first["sentence_2"]) == ('그는 "좋다 했다', '5" TV')
    if case == "long sentence":
        assert first["sentence_2"] == "가나다라 마" * 2000


def test_trains_on_odd_data(command, competition, tmp_path, make_encoder, caplog):
    """CP949, a BOM, a lone quote and 10,000 characters go through to the submission, reported."""
    cell(5, "sentence_1", "가" * 10_000)(competition / TRAIN)
    recoded("cp949")(competition / TRAIN)
    recoded("utf-8-sig")(competition / DEV)
    line(3, 'a"b,s,그는 "좋다 했다,나')(competition / TEST)
    (competition / SAMPLE).unlink()
    code, out, err = command(
        "stage=sts", "chain=[sts]", f"data.dir={competition}", f"encoder.path={make_encoder()}",
        "encoder.max_length=32", "sts.max_steps=1", "sts.batch_size=8")
    assert code == 0, err
    written, = (tmp_path / "submissions").glob("*.csv")
    lines = written.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 17
    assert lines[2].startswith('"a""b",')
    assert unfinished(tmp_path)
    assert f"{competition / TRAIN}: read as CP949, not UTF-8" in out + err + caplog.text
