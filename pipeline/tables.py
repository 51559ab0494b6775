"""CSV files as tables of text: decoded, normalised, every fault with file and row.

A row's number counts as in a spreadsheet: the header is row 1.
"""

import io
import re
import unicodedata
from pathlib import Path

import numpy as np
import pandas as pd

from pipeline.errors import UserError


def decoded(path: Path) -> tuple[str, str]:
    """A text file's content, NFC-normalised, and the encoding it was read with."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: expected a file, got none") from None
    except IsADirectoryError:
        raise UserError(f"{path}: expected a file, got a folder") from None
    if not content.strip():
        raise UserError(f"{path}: expected a header and rows, got an empty file")
    for encoding in ("utf-8-sig", "cp949"):
        try:
            text = content.decode(encoding)
        except UnicodeDecodeError as error:
            row = content.count(b"\n", 0, error.start) + 1
            continue
        if "\0" in text:
            row = text.count("\n", 0, text.index("\0")) + 1
            raise UserError(f"{path}: row {row}: expected text, got a NUL byte")
        return unicodedata.normalize("NFC", text), encoding
    raise UserError(f"{path}: row {row}: expected UTF-8 (or CP949) text, got other bytes")


def read_table(path: Path, notes: list[str] | None = None) -> pd.DataFrame:
    """A CSV as text cells; the column `row` holds the row's number in the file."""
    text, encoding = decoded(path)
    if encoding == "cp949" and notes is not None:
        notes.append(f"{path}: read as CP949, not UTF-8")
    try:
        table = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False,
                            skip_blank_lines=False, low_memory=False)
    except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise UserError(f"{path}: {parser_words(error)}") from None
    if not isinstance(table.index, pd.RangeIndex):
        raise UserError(f"{path}: row 2: expected {len(table.columns)} cells as in the header, "
                        "got more")
    columns = list(table.columns)
    table["row"] = np.arange(2, len(table) + 2)
    blank = (table[columns].fillna("") == "").all(axis=1)
    table = table[~blank]
    short = table[columns].isna().any(axis=1)
    if short.any():
        got = int(table.loc[short, columns].iloc[0].notna().sum())
        raise UserError(f"{path}: row {first(table, short)}: expected {len(columns)} cells as in "
                        f"the header, got {got}")
    for column in columns:
        broken = table[column].str.contains(r"[\r\n]")
        if broken.any():
            raise UserError(f"{path}: row {first(table, broken)}: expected {column} on one line, "
                            "got a line break inside quotes; is a quote (\") left open?")
    return table.reset_index(drop=True)


def parser_words(error: Exception) -> str:
    """The CSV parser's complaint in the words of our messages."""
    text = str(error)
    if found := re.search(r"EOF inside string starting at row (\d+)", text):
        return f"row {int(found[1]) + 1}: expected a closing quote (\"), got the end of the file"
    if found := re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", text):
        return (f"row {found[2]}: expected {found[1]} cells as in the header, got {found[3]}; "
                "a sentence with a comma needs quotes")
    return f"expected a CSV, got: {' '.join(text.split())}"


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
    """Whether nothing can be seen of the text (spaces, controls and format characters only)."""
    return all(char.isspace() or unicodedata.category(char) in ("Cf", "Cc") for char in text)
