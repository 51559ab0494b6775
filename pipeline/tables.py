"""CSV files as tables of text: decoded, normalised, every fault with file and row.

A row's number counts as in a spreadsheet: the header is row 1.
"""

import csv
import io
import unicodedata
from pathlib import Path

import numpy as np
import pandas as pd
import regex

from pipeline.errors import UserError

LONGEST = 10_000_000  # characters of a cell; the csv module's own limit is 131,072
# Spaces, controls, and what Unicode says is not drawn, such as the Hangul fillers.
UNSEEN = regex.compile(r"[\s\p{Cc}\p{Cf}\p{Zs}\p{Default_Ignorable_Code_Point}\u2800]*")
LINE_END = regex.compile(rb"\r\n|\r|\n")


def decoded(path: Path) -> tuple[str, str]:
    """A text file's content, NFC-normalised, and the encoding it was read with."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: expected a file, got none") from None
    except IsADirectoryError:
        raise UserError(f"{path}: expected a file, got a folder") from None
    if not content.removeprefix(b"\xef\xbb\xbf").strip():
        raise UserError(f"{path}: expected a header and rows, got an empty file")
    row = 1
    for encoding in ("utf-8-sig", "cp949"):
        try:
            text = content.decode(encoding)
        except UnicodeDecodeError as error:
            row = max(row, row_of(content, error.start))
            if encoding == "utf-8-sig" and is_mostly_utf8(content):
                break
            continue
        if "\0" in text:
            raise UserError(f"{path}: row {row_of(text.encode(), text.encode().index(0))}: "
                            "expected text, got a NUL byte")
        return unicodedata.normalize("NFC", text), encoding
    raise UserError(f"{path}: row {row}: expected UTF-8 (or CP949) text, got other bytes")


def row_of(content: bytes, place: int) -> int:
    """The number of the line that the byte at this place stands in."""
    return len(LINE_END.findall(content[:place])) + 1


def is_mostly_utf8(content: bytes) -> bool:
    """Whether bytes that are not UTF-8 throughout are so in the main: then they are not CP949.

    CP949's Hangul is hardly ever UTF-8's, so that the syllables outnumber the stray bytes in
    spoilt UTF-8 alone; read as CP949 it would be other words.
    """
    text = content.decode("utf-8", "replace")
    return len(regex.findall(r"\p{Hangul}", text)) > text.count("\ufffd")


def read_table(path: Path, notes: list[str] | None = None) -> pd.DataFrame:
    """A CSV as text cells; the column `row` holds the row's number in the file."""
    text, encoding = decoded(path)
    if encoding == "cp949" and notes is not None:
        notes.append(f"{path}: read as CP949, not UTF-8")
    csv.field_size_limit(LONGEST)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    header, rows, numbers, number = [], [], [], 0
    try:
        for number, cells in enumerate(reader, 1):
            if number == 1:
                header = checked_header(path, cells)
            elif any(cells):
                check_cells(path, number, header, cells)
                rows.append(cells)
                numbers.append(number)
    except csv.Error as error:
        raise UserError(f"{path}: row {number + 1}: {quote_fault(str(error))}") from None
    table = pd.DataFrame(rows, columns=header, dtype=str).drop(columns="row", errors="ignore")
    table["row"] = np.array(numbers, dtype=np.int64)
    return table


def checked_header(path: Path, header: list[str]) -> list[str]:
    """The header, refused where the separator is another one or a column stands there twice."""
    if len(header) == 1 and (mark := next((mark for mark in ";\t|" if mark in header[0]), "")):
        raise UserError(f"{path}: row 1: expected columns separated by ',', got {mark!r}")
    if twice := {name for name in header if name and header.count(name) > 1}:
        raise UserError(f"{path}: row 1: expected every column once, got {min(twice)} again")
    return header


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
