"""Inference pairs (premise, hypothesis, entailment | neutral | contradiction) and their triplets.

Reads the files as they are published: KorNLI and XNLI (TSV without quoting), KLUE-NLI (JSON), and
CSV with the columns premise, hypothesis, label.
"""

import csv
import io
import json
import re
import unicodedata
from pathlib import Path

import numpy as np
import pandas as pd

from pipeline.errors import UserError
from pipeline.tables import (
    LONGEST,
    check_once,
    decoded,
    first,
    is_empty,
    read_table,
    renamed,
    require,
)

LABELS = ["entailment", "neutral", "contradiction"]
SURROGATE = re.compile("[\ud800-\udfff]")  # half a character: no text, but JSON can write it
NAMES = {"sentence1": "premise", "sentence2": "hypothesis", "gold_label": "label"}


def read_nli(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Training and dev pairs: every .csv, .tsv and .json with train or dev in its name.

    Each frame has premise, hypothesis and label (0, 1, 2 in the order of LABELS).
    """
    found: dict[str, list[pd.DataFrame]] = {"train": [], "dev": []}
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    for path in files:
        part = next((name for name in found if name in path.name), None)
        if part and path.suffix in (".csv", ".tsv", ".json"):
            found[part].append(read_file(path))
    for part, frames in found.items():
        if not frames:
            names = ", ".join(path.name for path in files) or "no files"
            raise UserError(f"data.nli_dir={folder}: expected a .csv, .tsv or .json with {part!r} "
                            f"in its name, got {names}")
    made = {part: pd.concat(frames, ignore_index=True).drop_duplicates(ignore_index=True)
            for part, frames in found.items()}
    for part, frame in made.items():
        if frame.empty:
            raise UserError(f"data.nli_dir={folder}: expected labelled rows in the {part} files, "
                            "got '-' alone")
    return made["train"], made["dev"]


def read_file(path: Path) -> pd.DataFrame:
    """One file's pairs; rows whose label is `-` (annotators disagreed) are left out."""
    table = {".csv": read_table, ".tsv": read_tsv, ".json": read_json}[path.suffix](path)
    table = renamed(table, path, NAMES)
    require(table, path, ["premise", "hypothesis", "label"])
    columns = ["premise", "hypothesis", "label"]
    table[columns] = table[columns].fillna("")
    table["label"] = table["label"].astype(str)
    table = table[table["label"] != "-"]
    for column in ("premise", "hypothesis"):
        empty = table[column].map(lambda text: not isinstance(text, str) or is_empty(text))
        if empty.any():
            raise UserError(f"{path}: row {first(table, empty)}: expected text in {column}, "
                            f"got {table.loc[empty, column].iloc[0]!a}")
    labels = table["label"].map({name: place for place, name in enumerate(LABELS)})
    if labels.isna().any():
        raise UserError(f"{path}: row {first(table, labels.isna())}: expected label to be one of "
                        f"{', '.join(LABELS)}, got {table.loc[labels.isna(), 'label'].iloc[0]!r}")
    return table[["premise", "hypothesis"]].assign(label=labels.astype(int))


def read_tsv(path: Path) -> pd.DataFrame:
    """A tab-separated file in which quotes are ordinary characters."""
    text, _ = decoded(path)
    csv.field_size_limit(LONGEST)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter="\t", quoting=csv.QUOTE_NONE)
    try:
        lines = list(reader)
    except csv.Error as error:
        raise UserError(f"{path}: row {reader.line_num}: expected cells on one line, got: "
                        f"{error}") from None
    check_once(path, lines[0])
    rows = [(number, line) for number, line in enumerate(lines[1:], start=2) if line]
    for number, line in rows:
        if len(line) != len(lines[0]):
            raise UserError(f"{path}: row {number}: expected {len(lines[0])} cells as in the "
                            f"header, got {len(line)}")
    table = pd.DataFrame([line for _, line in rows], columns=lines[0], dtype=str)
    return table.assign(row=[number for number, _ in rows])


def read_json(path: Path) -> pd.DataFrame:
    """A JSON list of objects; `row` counts them from 1."""
    text, _ = decoded(path)
    try:
        rows = json.loads(text)
    except ValueError as error:
        raise UserError(f"{path}: expected JSON, got: {error}") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UserError(f"{path}: expected a JSON list of objects")
    for number, row in enumerate(rows, 1):
        for name, value in row.items():
            if isinstance(value, str) and SURROGATE.search(value):
                raise UserError(f"{path}: row {number}: expected text in {name}, got {value!a}")
    table = pd.DataFrame([{name: unicodedata.normalize("NFC", value) if isinstance(value, str)
                           else value for name, value in row.items()} for row in rows])
    return table.assign(row=np.arange(1, len(table) + 1))


def triplets(frame: pd.DataFrame) -> tuple[list[str], np.ndarray]:
    """(premise, entailment, contradiction or none) of every entailment, each sentence once.

    Returns the sentences and an array (n, 3) of places in them; −1 where a premise has no
    contradiction. Several contradictions of one premise are dealt out in turn.
    """
    codes, texts = pd.factorize(pd.concat([frame["premise"], frame["hypothesis"]]))
    table = pd.DataFrame({"premise": codes[:len(frame)], "hypothesis": codes[len(frame):],
                          "label": frame["label"].to_numpy()})
    entailed = table[table["label"] == 0].copy()
    against = table[table["label"] == 2].groupby("premise")["hypothesis"].agg(list)
    turn = entailed.groupby("premise").cumcount()
    entailed["negative"] = [
        against[premise][place % len(against[premise])] if premise in against.index else -1
        for premise, place in zip(entailed["premise"], turn, strict=True)]
    return list(texts), entailed[["premise", "hypothesis", "negative"]].to_numpy()


def log_weights(rows: np.ndarray, hard_weight: float) -> np.ndarray:
    """What is added to the logits of a batch of triplets (B, 3): (B, B + H), H its hard negatives.

    −inf for a candidate that is in truth a positive (an entailment of the same premise, the same
    sentence as the positive or the premise), log hard_weight for a row's own contradiction.
    """
    premise, positive = rows[:, :1], rows[:, 1:2]  # (B, 1)
    has = np.flatnonzero(rows[:, 2] >= 0)
    candidates = np.concatenate([rows[:, 1], rows[has, 2]])  # (B + H,)
    # entailed by the row's premise here or in another row of the batch, or the premise itself
    false = ((rows[:, 0] == premise) @ (candidates == positive)) | (candidates == premise)
    np.fill_diagonal(false[:, :len(rows)], False)
    weights = np.zeros((len(rows), len(rows) + len(has)), np.float32)
    with np.errstate(divide="ignore"):
        weights[has, len(rows) + np.arange(len(has))] = np.log(hard_weight)
    weights[false] = -np.inf
    return weights
