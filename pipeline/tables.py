"""CSV files as tables of text: decoded, normalised, every fault with file and row.

A row's number counts as in a spreadsheet: the header is row 1.
"""

import csv
import re
import unicodedata
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pandas as pd
import regex

from pipeline.errors import UserError

LONGEST = 10_000_000  # characters of a cell; the csv module's own limit is 131,072
# Spaces, controls, and what Unicode says is not drawn, such as the Hangul fillers.
UNSEEN = regex.compile(r"[\s\p{Cc}\p{Cf}\p{Zs}\p{Default_Ignorable_Code_Point}\u2800]*")
HANGUL = regex.compile(r"\p{Hangul}")
UNDECODED = re.compile("[\udc80-\udcff]")  # what surrogateescape makes of such bytes
NUL = re.compile("\0")


def decoded(path: Path) -> tuple[str, str]:
    """A text file's content, NFC-normalised, and the encoding it was read with."""
    encoding = text_encoding(path)
    with open(path, encoding=encoding, newline="") as file:
        return unicodedata.normalize("NFC", file.read()), encoding


def text_encoding(path: Path) -> str:
    """The encoding of a whole text file, UTF-8 or CP949; refuses other bytes, with their row.

    Reads line by line, so that a file of any size needs no memory.
    """
    if not path.is_file():  # a pipe cannot be read twice
        got = "none" if not path.exists() else "a folder" if path.is_dir() else "a pipe or device"
        raise UserError(f"{path}: expected a file, got {got}")
    with open(path, "rb") as lines:
        is_blank = not any(line.removeprefix(b"\xef\xbb\xbf").strip() for line in lines)
    if is_blank:
        raise UserError(f"{path}: expected a header and rows, got an empty file")
    row = 1
    for encoding in ("utf-8-sig", "cp949"):
        if spoilt := row_with(path, encoding, UNDECODED):
            row = max(row, spoilt)
            if encoding == "utf-8-sig" and is_mostly_utf8(path):
                break
            continue
        if zero := row_with(path, encoding, NUL):
            raise UserError(f"{path}: row {zero}: expected text, got a NUL byte")
        return encoding
    raise UserError(f"{path}: row {row}: expected UTF-8 (or CP949) text, got other bytes")


def row_with(path: Path, encoding: str, sign: re.Pattern) -> int:
    """The number of the first line that the sign stands in; 0: in none."""
    with open(path, encoding=encoding, errors="surrogateescape", newline="") as lines:
        return next((row for row, line in enumerate(lines, 1) if sign.search(line)), 0)


def is_mostly_utf8(path: Path) -> bool:
    """Whether bytes that are not UTF-8 throughout are so in the main: then they are not CP949.

    CP949's Hangul is hardly ever UTF-8's, so that the syllables outnumber the stray bytes in
    spoilt UTF-8 alone; read as CP949 it would be other words.
    """
    syllables = strays = 0
    with open(path, encoding="utf-8", errors="replace", newline="") as lines:
        for line in lines:
            syllables += len(HANGUL.findall(line))
            strays += line.count("\ufffd")
    return syllables > strays


def read_table(path: Path, notes: list[str] | None = None) -> pd.DataFrame:
    """A CSV as text cells; the column `row` holds the row's number in the file."""
    (table,) = read_tables(path, None, notes)
    return table


def read_tables(path: Path, size: int | None,
                notes: list[str] | None = None) -> Iterator[pd.DataFrame]:
    """A CSV as text cells in tables of `size` rows (None: all), one without rows if it has none.

    No more than one of them is in memory. A fault is raised when its table is asked for, but the
    encoding is that of the whole file.
    """
    encoding = text_encoding(path)
    if encoding == "cp949" and notes is not None:
        notes.append(f"{path}: read as CP949, not UTF-8")
    with open(path, encoding=encoding, newline="") as lines:
        rows = checked_rows(path, lines)
        _, header = next(rows)
        parts = iter(lambda: list(islice(rows, size)), [])
        for part in chain([next(parts, [])], parts):
            table = pd.DataFrame([cells for _, cells in part], columns=header, dtype=str)
            table = table.drop(columns="row", errors="ignore")
            table["row"] = np.array([number for number, _ in part], dtype=np.int64)
            yield table


def checked_rows(path: Path, lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """The number and the cells of the header and of every row that is not blank."""
    csv.field_size_limit(LONGEST)
    # A line break composes with nothing: NFC line by line is NFC of the whole.
    reader = csv.reader((unicodedata.normalize("NFC", line) for line in lines), strict=True)
    header, number = [], 0
    try:
        for number, cells in enumerate(reader, 1):
            if number == 1:
                header = checked_header(path, cells)
            elif any(cells):
                check_cells(path, number, header, cells)
            else:
                continue
            yield number, cells
    except csv.Error as error:
        raise UserError(f"{path}: row {number + 1}: {quote_fault(str(error))}") from None


def checked_header(path: Path, header: list[str]) -> list[str]:
    """The header, refused where the separator is another one or a column stands there twice."""
    if len(header) == 1 and (mark := next((mark for mark in ";\t|" if mark in header[0]), "")):
        raise UserError(f"{path}: row 1: expected columns separated by ',', got {mark!r}")
    if odd := [name for name in header if name != name.strip()]:
        raise UserError(f"{path}: row 1: expected a column's name without spaces around it, got "
                        f"{odd[0]!r}")
    check_once(path, header)
    return header


def check_once(path: Path, header: list[str]) -> None:
    """Refuses a header in which a column stands twice."""
    if twice := {name for name in header if name and header.count(name) > 1}:
        raise UserError(f"{path}: row 1: expected every column once, got {min(twice)} again")


def renamed(table: pd.DataFrame, where: Path | str, names: dict[str, str]) -> pd.DataFrame:
    """The table with its columns under the names we use; refused where two would be the same."""
    got = list(table.columns)
    for other, name in names.items():
        if other in got and name in got:
            raise UserError(f"{where}: row 1: expected one column of {name} and {other}, got both")
        got = [name if column == other else column for column in got]
    return table.set_axis(got, axis=1)


def quote_fault(reason: str) -> str:
    """The csv module's reason in our terms."""
    if "limit" in reason:
        return (f"expected a cell of at most {LONGEST:,} characters, got a longer one; is a quote "
                '(") left open?')
    if "end of data" in reason:
        return 'expected a closing quote ("), got the end of the file'
    return ('expected a comma after the closing quote (") of a cell, got more text; a quote inside '
            'a quoted cell is written twice (""), and the cell is quoted as a whole')


def check_cells(path: Path, number: int, header: list[str], cells: list[str]) -> None:
    """Refuses a row whose cells are not the header's, each on one line."""
    for place, cell in enumerate(cells):
        if "\n" in cell or "\r" in cell:
            name = header[place] if place < len(header) else "a cell"
            raise UserError(f"{path}: row {number}: expected {name} on one line, got a line break "
                            "inside quotes; is a quote (\") left open?")
    if len(cells) != len(header):
        hint = "; a sentence with a comma needs quotes" if len(cells) > len(header) else ""
        raise UserError(f"{path}: row {number}: expected {len(header)} cells as in the header, "
                        f"got {len(cells)}{hint}")


def first(table: pd.DataFrame, mask: pd.Series) -> int:
    """The file's row number of the first row that the mask marks."""
    return int(table.loc[mask, "row"].iloc[0])


def require(table: pd.DataFrame, path: Path, columns: list[str]) -> None:
    """Refuses a table without these columns or without rows."""
    got = [str(name) for name in table.columns if name != "row"]
    missing = [name for name in columns if name not in got]
    if missing and len(got) == 1 and any(mark in got[0] for mark in ";\t|"):
        mark = next(mark for mark in ";\t|" if mark in got[0])
        raise UserError(f"{path}: row 1: expected columns separated by ',', got {mark!r}")
    if missing:
        shown = ", ".join(name[:40] for name in got[:12])
        raise UserError(f"{path}: row 1: expected column{'s' * (len(missing) > 1)} "
                        f"{', '.join(missing)}, got {shown}")
    if table.empty:
        raise UserError(f"{path}: row 2: expected rows under the header, got none")


def is_empty(text: str) -> bool:
    """Whether nothing can be seen of the text: spaces, controls, fillers, what has no width."""
    return UNSEEN.fullmatch(text) is not None
