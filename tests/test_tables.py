"""CSV files as tables of text: encodings, quotes, rows counted as in a spreadsheet.

python -m pytest tests/test_tables.py
"""

import os

import pytest

from pipeline.errors import UserError
from pipeline.tables import decoded, first, is_empty, read_table, require

HEADER = "id,sentence_1,sentence_2,label"
ROWS = ["a,가나 다,라마,1.5", "b,바사,아자 차,2.0", "c,카타,파하,0.0", "d,하나,둘,5.0"]


@pytest.fixture
def table(tmp_path):
    """`table(line, …)` writes lines (or bytes) as a CSV and returns its path."""
    def write(*lines: str, content: bytes | None = None):
        path = tmp_path / "t.csv"
        path.write_bytes("".join(f"{line}\n" for line in lines).encode() if content is None
                         else content)
        return path

    return write


def refused(path) -> str:
    """The message with which reading is refused, without the file's name in front."""
    with pytest.raises(UserError) as caught:
        read_table(path)
    assert str(caught.value).startswith(f"{path}: ")
    return str(caught.value).removeprefix(f"{path}: ")


def test_cells_are_text(table):
    """Nothing is guessed: NA, nan, 007 and spaces stay what they are; row 1 is the header."""
    read = read_table(table(HEADER, "007,NA,nan,", "None, a ,<NA>,1e5"))
    assert read.drop(columns="row").to_numpy().tolist() == [["007", "NA", "nan", ""],
                                                            ["None", " a ", "<NA>", "1e5"]]
    assert read["row"].tolist() == [2, 3]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_ends(table, end):
    """Unix, Windows and old Mac line ends, with and without one at the end of the file."""
    text = end.join([HEADER, *ROWS])
    for content in (text, text + end):
        read = read_table(table(content=content.encode()))
        assert read["row"].tolist() == [2, 3, 4, 5]
        assert read["label"].tolist() == ["1.5", "2.0", "0.0", "5.0"]


def test_blank_lines_are_counted_and_left_out(table):
    """They keep their numbers, wherever they stand."""
    read = read_table(table(HEADER, ROWS[0], "", "", ROWS[1], ",,,", ROWS[2], ""))
    assert read["row"].tolist() == [2, 5, 7]
    assert list(read.index) == [0, 1, 2]


@pytest.mark.parametrize(("encoding", "name"), [("utf-8", "utf-8-sig"), ("utf-8-sig", "utf-8-sig"),
                                                ("cp949", "cp949")])
def test_encodings(table, encoding, name):
    """UTF-8 with or without BOM, and CP949, which alone is reported."""
    path = table(content="\n".join([HEADER, *ROWS]).encode(encoding))
    notes: list[str] = []
    read = read_table(path, notes)
    assert list(read.columns) == ["id", "sentence_1", "sentence_2", "label", "row"]
    assert read["sentence_1"].tolist() == ["가나 다", "바사", "카타", "하나"]
    assert decoded(path)[1] == name
    assert notes == ([f"{path}: read as CP949, not UTF-8"] if encoding == "cp949" else [])


def test_text_is_composed(table):
    """Decomposed Hangul (as macOS writes it) becomes the usual syllables: NFC."""
    read = read_table(table(HEADER, "a,\u1112\u1161\u11ab\u1100\u1173\u11af,cafe\u0301,1"))
    assert read.loc[0, ["sentence_1", "sentence_2"]].tolist() == ["한글", "caf\u00e9"]


@pytest.mark.parametrize("encoding", ["utf-8", "cp949"])
def test_stray_bytes_are_found_where_they_are(table, encoding):
    """The row of the first byte that is no text, whichever of the two encodings the file has."""
    lines = [line.encode(encoding) for line in (HEADER, *ROWS)]
    lines.insert(4, b"x,\xff\xfe,b,1")
    assert refused(table(content=b"\n".join(lines))) == (
        "row 5: expected UTF-8 (or CP949) text, got other bytes")


def test_nul_byte(table):
    """Its row is named."""
    assert refused(table(HEADER, ROWS[0], "b,가\0나,다,1")) == (
        "row 3: expected text, got a NUL byte")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_wide_encodings(table, encoding):
    """What a spreadsheet calls Unicode text is refused in the first rows, not misread."""
    message = refused(table(content="\n".join([HEADER, *ROWS]).encode(encoding)))
    assert message.startswith(("row 1: expected", "row 2: expected"))
    assert message.endswith((", got other bytes", ", got a NUL byte"))


@pytest.mark.parametrize("content", [b"", b" \r\n\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n"])
def test_empty_file(table, content):
    """Nothing, white space, a BOM alone."""
    assert refused(table(content=content)).startswith("expected a")


def test_no_file(tmp_path):
    """A missing file and a folder in its place."""
    assert refused(tmp_path / "no.csv") == "expected a file, got none"
    assert refused(tmp_path) == "expected a file, got a folder"
    os.mkfifo(tmp_path / "pipe.csv")  # <(zcat pairs.csv.gz): read several times, it has no end
    assert refused(tmp_path / "pipe.csv") == "expected a file, got a pipe or device"


@pytest.mark.parametrize(("line", "texts"), [
    ('b,그는 "좋다 했다,다,1', ["그는 \"좋다 했다", "다"]),
    ('b,5"짜리 TV,다""라,1', ['5"짜리 TV', '다""라']),
    ('b,"가, 나",다,1', ["가, 나", "다"]),
    ('b,"그는 ""좋다"" 했다",다,1', ['그는 "좋다" 했다', "다"]),
    ("b,'가,나',1", ["'가", "나'"]),
    ("b,가;나\t다,라|마,1", ["가;나\t다", "라|마"]),
    ("b,\u2028가\x0b,나\x85,1", ["\u2028가\x0b", "나\x85"])])
def test_quotes_and_marks_inside_a_sentence(table, line, texts):
    """Kept as they are; two quotes inside quotes are one."""
    read = read_table(table(HEADER, ROWS[0], line, ROWS[2]))
    assert read.loc[1, ["sentence_1", "sentence_2"]].tolist() == texts
    assert read["row"].tolist() == [2, 3, 4]


@pytest.mark.parametrize("after", [
    [], ['e,가,"나, 다",1'], ['e,"가, 나",다,1'], ['e,"가, 나","다, 라",1'],
    ["e,가,나,1"] * 20_000], ids=["end", "second", "first", "both", "far"])
def test_quote_left_open(table, after):
    """The row where it was opened, and that it is a quote, whatever comes after it."""
    path = table(HEADER, *ROWS[:2], 'x,"좋다 했다,다,1', *ROWS[2:], *after)
    message = refused(path)
    assert message.startswith("row 4: expected ")
    assert 'quote (")' in message


def test_line_break_inside_quotes(table):
    """A sentence of two lines is refused: prediction files and histories hold one a line."""
    for end in ("\n", "\r\n", "\r"):
        content = f'{HEADER}\n{ROWS[0]}\nb,가,"나{end}다",1\n{ROWS[2]}\n'
        assert refused(table(content=content.encode())).startswith(
            "row 3: expected sentence_2 on one line, got a line break inside quotes")


@pytest.mark.parametrize("place", [0, 1, 3])
@pytest.mark.parametrize(("line", "got"), [
    ("x,가,나", "3"), ("x,가", "2"), ("x", "1"), ("x,가,나,1,", "5"), ("x,가, 나,다,라,1", "6"),
    ("x,가,나,1,2,3,4,5,6", "9")])
def test_cells_too_few_or_too_many(table, place, line, got):
    """Every row has the header's cells, else its number and count; a short one is not filled up."""
    lines = ROWS.copy()
    lines.insert(place, line)
    message = refused(table(HEADER, *lines))
    assert message.startswith(f"row {place + 2}: expected 4 cells as in the header, got ")
    assert message.removesuffix("; a sentence with a comma needs quotes").endswith(
        (f" {got}", " more"))


def test_column_called_row(table):
    """A column of the file's own called row changes no row numbers and is no failure."""
    read = read_table(table("row," + HEADER, *(f"{n}," + line for n, line in enumerate(ROWS))))
    assert read["sentence_2"].tolist() == ["라마", "아자 차", "파하", "둘"]
    assert first(read, read["id"] == "c") == 4


def test_unnamed_column(table):
    """An index that a spreadsheet or pandas wrote in front does no harm."""
    read = read_table(table("," + HEADER, *(f"{n}," + line for n, line in enumerate(ROWS))))
    assert read["id"].tolist() == ["a", "b", "c", "d"]


def test_first(table):
    """The row's number in the file, not its place in the frame."""
    read = read_table(table(HEADER, "", *ROWS))
    assert first(read, read["label"] > "1.9") == 4


@pytest.mark.parametrize(("lines", "message"), [
    (["id,sentence_1,label", "a,b,1"], "row 1: expected column sentence_2, got id, sentence_1, "
                                       "label"),
    (["id,text", "a,b"], "row 1: expected columns sentence_1, sentence_2, got id, text"),
    (["ID,sentence_1,sentence_2", "a,b,c"], "row 1: expected column id, got ID, sentence_1, "
                                            "sentence_2"),
    (["id;sentence_1;sentence_2", "a;b;c"], "row 1: expected columns separated by ',', got ';'"),
    (["id\tsentence_1\tsentence_2", "a\tb\tc"],
     "row 1: expected columns separated by ',', got '\\t'"),
    (["id,sentence_1,sentence_2"], "row 2: expected rows under the header, got none"),
    (["id,sentence_1,sentence_2", "", ",,"], "row 2: expected rows under the header, got none")])
def test_require(table, lines, message):
    """Columns that are missing, a separator that is not the comma, no rows."""
    path = table(*lines)
    with pytest.raises(UserError) as caught:
        require(read_table(path), path, ["id", "sentence_1", "sentence_2"])
    assert str(caught.value) == f"{path}: {message}"


@pytest.mark.parametrize("text", ["", " ", "\u3000\xa0\t", "\u200b", "\ufeff\u200d \u2060", "\x00"])
def test_is_empty(text):
    """Nothing can be seen of it."""
    assert is_empty(text)


@pytest.mark.parametrize("text", ["가", " . ", "\u200bㅋ", "0", "🎉", "<PERSON>"])
def test_is_not_empty(text):
    """A single visible sign is enough."""
    assert not is_empty(text)
