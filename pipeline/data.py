"""The competition's CSVs: read, checked, refused with file and row.

    python run.py stage=check data.dir=data

Columns are `id,source,sentence_1,sentence_2,label,binary-label`; `source` and `binary-label` may
be absent, and test has no labels.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from pipeline.errors import UserError
from pipeline.hashes import hashes, known, merged
from pipeline.tables import first, is_empty, read_table, read_tables, require

SENTENCES = ["sentence_1", "sentence_2"]
OPTIONAL = ("source", "binary-label")  # columns that a file may lack
PART = 10_000  # rows of a file that are read, scored and written at a time
LOWEST, HIGHEST = 0.0, 5.0
SIGNED = re.compile(r"[+-][0-9]+([.][0-9]+)?")


@dataclass
class Competition:
    """The three sets, the ids in the order of the submission, and what is worth reporting.

    Each frame has id, source, sentence_1, sentence_2, row, and unless test label (and
    binary-label where the file has it).
    """

    train: pd.DataFrame
    dev: pd.DataFrame
    test: pd.DataFrame
    order: list[str]
    notes: list[str] = field(default_factory=list)

    def hashes(self) -> dict[str, str]:
        """Each set's content_hash by name."""
        return {name: content_hash(getattr(self, name)) for name in ("train", "dev", "test")}


def read_competition(folder: Path) -> Competition:
    """Reads and checks train.csv, dev.csv, test.csv and, where present, sample_submission.csv."""
    if not folder.is_dir():
        raise UserError(f"{folder}: expected a folder with train.csv, dev.csv and test.csv, got "
                        "none; trial=always runs on the bundled sample")
    names = ("train.csv", "dev.csv", "test.csv")
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        raise UserError(f"{folder}: expected train.csv, dev.csv and test.csv, got no "
                        f"{' and no '.join(missing)}; trial=always runs on the bundled sample")
    notes: list[str] = []
    train = read_pairs(folder / "train.csv", True, notes)
    dev = read_pairs(folder / "dev.csv", True, notes)
    test = read_pairs(folder / "test.csv", False, notes)
    order = test["id"].tolist()
    sample = folder / "sample_submission.csv"
    if sample.exists():
        order = submission_order(sample, order)
    return Competition(train, dev, test, order, notes)


def read_pairs(path: Path, labelled: bool, notes: list[str] | None = None) -> pd.DataFrame:
    """A CSV of sentence pairs, checked row by row; `labelled` says whether it must have labels."""
    (frame,) = pairs_in_parts(path, labelled, None, notes)
    return frame


def pairs_in_parts(path: Path, labelled: bool, size: int | None,
                   notes: list[str] | None = None) -> Iterator[pd.DataFrame]:
    """The same in frames of `size` rows (None: all at once); of several faults the first's is said.

    What is kept of the parts before is 8 bytes a row: hashes of their ids.
    """
    seen = np.zeros(0, np.uint64)
    for part, table in enumerate(read_tables(path, size, notes)):
        if part == 0 and notes is not None:
            notes += misspelt(path, list(table))
        check_pairs(path, table, labelled)
        seen = with_new_ids(path, table, seen)
        yield completed(path, table, labelled)


def misspelt(path: Path, header: list[str]) -> list[str]:
    """A line for every column that is not read, but for a capital or a line would be."""
    meant = {name: re.sub("[ _]", "-", name.lower()) for name in header}
    return [f"{path}: column {name!r} is not read; the name would be {other!r}"
            for name, other in meant.items()
            if other in OPTIONAL and other not in header]


def is_labelled(path: Path) -> bool:
    """Whether the CSV has a label in any row."""
    for table in read_tables(path, PART):
        if "label" not in table:
            return False
        if (table["label"] != "").any():
            return True
    return False


def check_pairs(path: Path, table: pd.DataFrame, labelled: bool) -> None:
    """Refuses missing columns, cells without text and ids that are formulas."""
    require(table, path, ["id", *SENTENCES, *(["label"] if labelled else [])])
    for column in ["id", *SENTENCES]:
        empty = table[column].map(is_empty)
        if empty.any():
            raise UserError(f"{path}: row {first(table, empty)}: expected text in {column}, "
                            f"got {table.loc[empty, column].iloc[0]!a}")
    formula = table["id"].map(is_formula)
    if formula.any():
        raise UserError(f"{path}: row {first(table, formula)}: expected an id that no spreadsheet "
                        f"takes for a formula, got {table.loc[formula, 'id'].iloc[0]!r}")


def with_new_ids(path: Path, table: pd.DataFrame, seen: np.ndarray) -> np.ndarray:
    """Ascending hashes of the ids so far and the table's, which must be new; seen is ascending."""
    marks = hashes(table["id"].tolist())
    again = table["id"].duplicated() | known(seen, marks)
    for row, twice in table.loc[again, ["row", "id"]].itertuples(index=False):
        before = row_of_id(path, twice)
        if before < row:  # else two ids have one hash
            raise UserError(f"{path}: row {row}: expected a new id, got {twice!r} as in row "
                            f"{before}")
    return merged(seen, marks)


def row_of_id(path: Path, name: str) -> int:
    """The number of the first row with this id, which is there."""
    return next(first(table, table["id"] == name) for table in read_tables(path, PART)
                if (table["id"] == name).any())


def completed(path: Path, table: pd.DataFrame, labelled: bool) -> pd.DataFrame:
    """The pairs' columns, labels as numbers where there must be some."""
    if labelled:
        table["label"] = numbers(table, path, "label")
    elif "label" in table and not (table["label"] == "").all():
        filled = table["label"] != ""
        raise UserError(f"{path}: row {first(table, filled)}: expected a test set without labels, "
                        f"got label {table.loc[filled, 'label'].iloc[0]!r}; is it a copy of dev? "
                        "A labelled file is scored by stage=predict pairs=FILE")
    if "source" not in table:
        table["source"] = ""
    kept = ["id", "source", *SENTENCES, *(["label"] if labelled else []), "row"]
    if labelled and "binary-label" in table:
        table["binary-label"] = pd.to_numeric(table["binary-label"], errors="coerce")
        kept.append("binary-label")
    return table[kept]


def is_formula(name: str) -> bool:
    """Whether a spreadsheet would run the cell: predictions and submissions carry ids as they are.

    Numbers with a sign are harmless.
    """
    return name.lstrip()[0] in "=+-@＝＋－＠" and not SIGNED.fullmatch(name)


def numbers(table: pd.DataFrame, path: Path, column: str) -> pd.Series:
    """The column as numbers from 0 to 5."""
    values = pd.to_numeric(table[column], errors="coerce")
    bad = ~values.between(LOWEST, HIGHEST)
    if bad.any():
        got = table.loc[bad, column].iloc[0]
        hint = "; the decimal mark is a point" if "," in got else ""
        raise UserError(f"{path}: row {first(table, bad)}: expected {column} to be a number from "
                        f"{LOWEST:g} to {HIGHEST:g}, got {got!r}{hint}")
    return values.astype(float)


def submission_order(path: Path, ids: list[str]) -> list[str]:
    """The sample submission's ids in its order; they must be the test set's."""
    table = read_table(path)
    require(table, path, ["id", "target"])
    check_ids(path, table, ids)
    return table["id"].tolist()


def check_ids(path: Path, table: pd.DataFrame, ids: list[str]) -> None:
    """Refuses a table whose ids are not exactly the test set's, each once, in any order."""
    known, again = set(ids), table["id"].duplicated()
    foreign = ~table["id"].isin(known)
    if foreign.any():
        raise UserError(f"{path}: row {first(table, foreign)}: expected an id of test.csv (such as "
                        f"{ids[0]!r}), got {table.loc[foreign, 'id'].iloc[0]!r}")
    if again.any():
        raise UserError(f"{path}: row {first(table, again)}: expected every id once, got "
                        f"{table.loc[again, 'id'].iloc[0]!r} again")
    if len(table) < len(ids):
        absent = next(name for name in ids if name not in set(table["id"]))
        end = int(table["row"].iloc[-1]) + 1
        raise UserError(f"{path}: row {end}: expected {len(ids)} ids as in test.csv, "
                        f"got {len(table)}: no {absent!r}")


def content_hash(frame: pd.DataFrame) -> str:
    """SHA-256 of a frame's content, whatever file, encoding or layout it came from."""
    kept = [name for name in ("id", "source", *SENTENCES, "label", "binary-label")
            if name in frame]
    return hashlib.sha256(frame[kept].to_csv(index=False).encode()).hexdigest()
