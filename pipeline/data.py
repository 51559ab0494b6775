"""The competition's CSVs: read, checked, refused with file and row.

    python run.py stage=check data.dir=data

Columns are `id,source,sentence_1,sentence_2,label,binary-label`; `source` and `binary-label` may
be absent, and test has no labels.
"""

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from pipeline.errors import UserError
from pipeline.tables import first, is_empty, read_table, require

SENTENCES = ["sentence_1", "sentence_2"]
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


def read_competition(folder: Path) -> Competition:
    """Reads and checks train.csv, dev.csv, test.csv and, where present, sample_submission.csv."""
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
    table = read_table(path, notes)
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
    again = table["id"].duplicated()
    if again.any():
        twice = table.loc[again, "id"].iloc[0]
        before = first(table, table["id"] == twice)
        raise UserError(f"{path}: row {first(table, again)}: expected a new id, got {twice!r} "
                        f"as in row {before}")
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
    require(table, path, ["id"])
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
