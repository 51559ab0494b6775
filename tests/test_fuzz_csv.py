"""CSVs of every kind: the frame that was put in, or one line with file and row; nothing else.

python -m pytest tests/test_fuzz_csv.py
"""

import csv
import io
import re
import unicodedata
from pathlib import Path

import pytest
from fuzz import examples, outcome
from hypothesis import given
from hypothesis import strategies as st
from refusal import refusal

from pipeline.data import read_competition, read_pairs
from pipeline.errors import UserError
from pipeline.tables import LONGEST, read_table

HEADER = ["id", "source", "sentence_1", "sentence_2", "label"]
ODD = ["한글", unicodedata.normalize("NFD", "각힣 é"), "\u3164", "\u200b", "\u202e가", "\ufeff",
       "'", '"', '""', ",", ";", "\t", "=1+1", "@a", "-2", "+x", "\x1f", "\x85", "\u2028", "\x0b",
       "😀", "\u0301", "\u115f", " ", "NaN", "NULL", "1e999", "한" * 300, "<script>",
       "\ud7a3\u11a8"]
texts = st.lists(st.one_of(
    st.sampled_from(ODD), st.text(st.characters(
        exclude_categories=["Cs"], exclude_characters="\0\r\n"), max_size=6)), max_size=4,
    ).map("".join)
labels = st.one_of(st.floats(0, 5).map(repr), st.sampled_from(
    ["0", "5", "2.5 ", "", "nan", "-1", "5.01", "5,0", "inf", "삼", "1e-3", "+1", "０"]))
rows = st.lists(st.tuples(texts, texts, texts, texts, labels), min_size=1, max_size=5)


def invisible(text: str) -> bool:
    """The oracle of an empty cell: categories, and the letters that have no shape."""
    return all(unicodedata.category(sign) in ("Cc", "Cf", "Zs", "Zl", "Zp") or sign in
               "\u3164\u115f\u1160\uffa0\u2800\u034f\u17b4\u17b5\u2065" or
               "\ufe00" <= sign <= "\ufe0f" or "\u180b" <= sign <= "\u180f" or
               0xE0000 <= ord(sign) <= 0xE0FFF or 0xFFF0 <= ord(sign) <= 0xFFF8 for sign in text)


def is_label(text: str) -> bool:
    """The oracle of a label."""
    try:
        return 0 <= float(text) <= 5
    except ValueError:
        return False


def faults(table: list[list[str]]) -> set[int]:
    """The numbers of the rows that must be refused."""
    found, seen = set(), set()
    for number, (name, _, one, other, label) in enumerate(table, 2):
        formula = name.strip()[:1] in tuple("=+-@＝＋－＠") and not re.fullmatch(
            r"[+-][0-9]+(\.[0-9]+)?", name)
        if (name in seen or formula or not is_label(label)
                or any(map(invisible, (name, one, other)))):
            found.add(number)
        seen.add(name)
    return found


@examples(150)
@given(rows, st.permutations(range(5)), st.sampled_from(["\n", "\r\n", "\r"]),
       st.sampled_from(["utf-8", "utf-8-sig"]), st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
       st.booleans())
def test_what_is_written_is_read(tmp_path, table, order, end, encoding, quoting, is_gappy):
    """Any text in any layout: the same cells, NFC, or the number of a row that is at fault."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator=end, quoting=quoting)
    for row in [HEADER, *table]:
        writer.writerow([row[place] for place in order])
    text = file.getvalue() + (end * 2 if is_gappy else "")
    path = tmp_path / "pairs.csv"
    path.write_bytes(text.encode(encoding))
    whole = [[unicodedata.normalize("NFC", cell) for cell in row] for row in table]
    wrong = faults(whole)
    frame, said = outcome(read_pairs, path, True)
    if frame is None:
        found = re.match(rf"{re.escape(str(path))}: row (\d+): expected ", said)
        assert found, said
        assert int(found[1]) in wrong, said
        return
    assert not wrong
    assert frame[HEADER[:4]].to_numpy().tolist() == [row[:4] for row in whole]
    assert frame["label"].tolist() == [float(row[4]) for row in whole]
    assert frame["row"].tolist() == list(range(2, 2 + len(whole)))


GOOD = [["id", "source", "sentence_1", "sentence_2", "label"],
        ["가-1", "s", "오늘은 비가 왔다.", "비가 내렸다, 오늘", "4.2"],
        ["가-2", "s", '그는 "좋다"고 했다', "그녀는 싫다고 했다.", "0.6"],
        ["가-3", "t", "회의가 끝났습니다", "회의가 끝났나요?", "3"]]


def good() -> bytes:
    """A right file."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(GOOD)
    return file.getvalue().encode()


@examples(250)
@given(st.integers(0, len(good()) - 1), st.one_of(
    st.integers(0, 255).map(lambda value: bytes([value])), st.sampled_from(
        [b'"', b'""', b",", b"\xed\xa0\x80", b"\xff\xfe", b"\xb0\xa1", b"\n", b"\r", b"\r\n"])),
    st.booleans())
def test_a_changed_byte_moves_no_other_row(tmp_path, place, change, is_inserted):
    """A stray byte, quote, comma or line end: refused, or all rows but its own are as they were."""
    content, path = good(), tmp_path / "pairs.csv"
    path.write_bytes(content[:place] + change + content[place + (not is_inserted):])
    hit = content.count(b"\n", 0, place)  # place in GOOD
    frame, said = outcome(read_pairs, path, True)
    if frame is None:
        found = re.match(rf"{re.escape(str(path))}: (row (\d+): )?expected ", said)
        assert found, said
        near = 1 + (hit == 0)  # a fallen line end makes one row of two; of the header, other rows
        assert not found[1] or abs(int(found[2]) - 1 - hit) <= near, said
        return
    kept = HEADER[:4] if hit else [HEADER[0], *HEADER[2:4]]  # source may be absent
    cells = frame[kept].to_numpy().tolist()
    for number, row in enumerate(GOOD[1:], 1):
        if number not in (hit, hit + (content[place:place + 1] == b"\n")):
            assert [row[HEADER.index(name)] for name in kept] in cells
    assert len(frame) <= len(GOOD)


@examples(150)
@given(st.one_of(st.binary(max_size=200), st.text(max_size=60).map(
    lambda text: text.encode("utf-8", "surrogatepass")), st.binary(max_size=40).map(
        lambda some: good() + some), st.binary(max_size=40).map(lambda some: some + good())))
def test_any_bytes(tmp_path, content):
    """A frame of which every row is right, or one error that names the file."""
    path = tmp_path / "pairs.csv"
    path.write_bytes(content)
    frame, said = outcome(read_pairs, path, True)
    if frame is None:
        assert said.startswith(f"{path}: ")
        return
    assert frame["id"].is_unique
    assert frame["label"].between(0, 5).all()
    assert not any(map(invisible, frame[["id", "sentence_1", "sentence_2"]].to_numpy().ravel()))


@examples(60)
@given(st.text("가나다라마바사아자차카타파하힣뷁 ,.", min_size=1).filter(str.strip))
def test_cp949(tmp_path, text):
    """Hangul in CP949 is read as it was written, though some pairs of its bytes are UTF-8's."""
    path, notes = tmp_path / "pairs.csv", []
    path.write_bytes(f'id,sentence_1,sentence_2,label\na,"{text}",한국어 문장,1\n'.encode("cp949"))
    frame = read_pairs(path, True, notes)
    assert frame["sentence_1"].tolist() == [text]
    assert notes == [f"{path}: read as CP949, not UTF-8"]


@examples(60)
@given(st.lists(st.sampled_from(["id", "ID", "source", "sentence_1", "sentence_2", " label",
                                 "label", "row", "", "sentence_1 ", "문장", "id;label"]),
                max_size=7))
def test_any_header(tmp_path, header):
    """A frame where the four columns are there, once; else row 1 is named."""
    path = tmp_path / "pairs.csv"
    path.write_text(",".join(header) + "\n" + ",".join("1" for _ in header) + "\n")
    named = [name for name in header if name]
    is_right = {"id", "sentence_1", "sentence_2", "label"} <= set(header) and (
        len(set(named)) == len(named))
    frame, said = outcome(read_pairs, path, True)
    assert (frame is not None and len(frame) == 1) == is_right
    assert is_right or re.match(rf"{re.escape(str(path))}: (row 1: )?expected ", said)


def test_a_megabyte_in_a_cell(command, competition, make_encoder):
    """Read whole, checked and counted."""
    long = "가나 다라마, " * 130_000
    with open(competition / "train.csv", "a", encoding="utf-8", newline="") as file:
        csv.writer(file).writerow(["long", "s", long, "짧다", "1.0", "0.0"])
    assert read_competition(competition).train["sentence_1"].iloc[-1] == long
    code, out, err = command("stage=check", f"data.dir={competition}",
                             f"encoder.path={make_encoder()}")
    assert (code, err) == (0, "")
    assert f"(longest {len(long):,})" in out


def test_the_longest_cell(tmp_path):
    """Above the limit the row and the limit are named."""
    path = tmp_path / "x.csv"
    path.write_text("id\n" + "a" * LONGEST + "\n" + "b" * (LONGEST + 1) + "\n")
    with pytest.raises(UserError, match="row 3: expected a cell of at most 10,000,000 characters"):
        read_table(path)


@pytest.mark.parametrize(("cell", "message"), [
    ('"좋다" 했다', 'row 3: expected a comma after the closing quote (") of a cell'),
    ('"좋다 했다', 'row 3: expected a closing quote ("), got the end of the file'),
    ("\u3164", "row 3: expected text in sentence_1, got '\\u3164'"),
    ("\ufe0f\u115f\u2800", "row 3: expected text in sentence_1, got ")])
def test_known_cells(tmp_path, cell, message):
    """A quote that is not written twice would be lost, a Hangul filler is no sentence."""
    path = tmp_path / "x.csv"
    path.write_text(f"id,sentence_1,sentence_2,label\na,가,나,1\nb,{cell},나,1\n")
    with pytest.raises(UserError) as caught:
        read_pairs(path, True)
    assert str(caught.value).startswith(f"{path}: {message}")


@pytest.mark.parametrize(("name", "is_fine"), [
    ("=1+1", False), ("@SUM(A1)", False), ("+cmd|' /C calc'!A0", False), ("-a", False),
    (" =1", False), ("＝1", False), ("\t=1", False),
    ("-1", True), ("+2.5", True), ("a=1", True), ("test-1", True), ("한글@1", True)])
def test_ids_that_a_spreadsheet_would_run(tmp_path, name, is_fine):
    """Refused when read, since submissions and predictions carry them unchanged."""
    path = tmp_path / "test.csv"
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["id", "sentence_1", "sentence_2"], [name, "=가", "나"]])
    if is_fine:
        assert read_pairs(path, False)["id"].tolist() == [name]
        return
    with pytest.raises(UserError, match="row 2: expected an id that no spreadsheet takes for a "):
        read_pairs(path, False)


@examples(20)
@given(st.sampled_from(["train.csv", "dev.csv", "test.csv", "sample_submission.csv"]),
       st.integers(0, 10**6), st.binary(min_size=1, max_size=3))
def test_check_of_spoilt_files(command, competition, make_encoder, name, place, change):
    """stage=check says what is wrong in one line, or that all is right; then all is as before."""
    path = competition / name
    content = path.read_bytes()
    place %= len(content)
    path.write_bytes(content[:place] + change + content[place + len(change):])
    try:
        result = command("stage=check", f"data.dir={competition}", f"encoder.path={make_encoder()}")
        if result[0]:
            assert str(competition) in refusal(result)
        else:
            assert result[1].endswith("risks, no errors\n")
            assert result[2] == ""
    finally:
        path.write_bytes(content)


targets = st.one_of(st.floats(0, 5).map(repr), st.sampled_from(["", "nan", "6", "1,5", "=1+1"]))


@examples(25)
@given(st.data())
def test_check_of_any_submission(command, competition, data):
    """Every id once, in any order, with a number: correct; else one line with file and row."""
    ids = read_competition(competition).order
    named = data.draw(st.one_of(st.permutations(ids), st.lists(
        st.one_of(st.sampled_from(ids), texts), min_size=1, max_size=len(ids) + 1)))
    values = [data.draw(targets if data.draw(st.integers(0, 9)) == 9 else
                        st.floats(0, 5).map(repr)) for _ in named]
    path = competition / "mine.csv"
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["id", "target"], *zip(named, values, strict=True)])
    result = command("stage=check", f"data.dir={competition}", f"submission={path}")
    if sorted(named) == sorted(ids) and all(map(is_label, values)):
        assert result[0] == 0, result[2]
        assert f"{path}: correct: {len(ids)} ids" in result[1]
    else:
        assert re.match(rf"{re.escape(str(path))}: row \d+: expected ", refusal(result))


def test_reading_draws_no_global_state(tmp_path):
    """A file's faults are its own: what is read before does not change them."""
    bad, right = tmp_path / "bad.csv", tmp_path / "right.csv"
    bad.write_text('id\n"x')
    right.write_text("id\nx\n")
    for _ in range(2):
        with pytest.raises(UserError, match="row 2: expected a closing quote"):
            read_table(bad)
        assert read_table(Path(right))["id"].tolist() == ["x"]
