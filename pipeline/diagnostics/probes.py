"""Contrast sets: does a model tell a real paraphrase from a sentence that only looks like it?

    python -c "from pipeline.diagnostics.probes import read_probes; print(read_probes())"

A probe is a triplet of sentences, passed when score(sentence, closer) > score(sentence, further).
A kind of probes is a file of `data/probes/`; its name is the file's.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import binomtest

from pipeline.data import SENTENCES
from pipeline.errors import UserError
from pipeline.tables import first, is_empty, read_table, require

PROBES = Path(__file__).resolve().parents[2] / "data" / "probes"
COLUMNS = ["sentence", "closer", "further"]
MUST = {
    "negation": "a negation put in or taken out lowers the score below a paraphrase's",
    "stance": "the opposite opinion in nearly the same words scores below a paraphrase",
    "number": "another number or amount scores below a paraphrase that keeps it",
    "entity": "another name scores below a paraphrase about the same one",
    "time": "another time or order of events scores below a paraphrase that keeps it",
    "roles": "who did what to whom, turned round, scores below a paraphrase",
    "style": "another register or level of politeness scores above another meaning",
    "spelling": "typos and wrong spacing score above another meaning",
    "paraphrase": "the same meaning in other words scores above another meaning in similar words",
}
OWN = "the closer sentence scores above the further one"  # of kinds that a user adds


def read_probes(folder: Path = PROBES) -> pd.DataFrame:
    """All probes of the folder's CSVs: kind (the file's name), sentence, closer, further."""
    files = sorted(folder.glob("*.csv"))
    if not files:
        raise UserError(f"{folder}: expected CSVs of probes ({', '.join(COLUMNS)}), got none")
    parts = [read_kind(file).assign(kind=file.stem) for file in files]
    return pd.concat(parts, ignore_index=True)[["kind", *COLUMNS]]


def read_kind(path: Path) -> pd.DataFrame:
    """One file's probes, each with three different sentences and each once."""
    table = read_table(path)
    require(table, path, COLUMNS)
    for column in COLUMNS:
        table[column] = table[column].str.strip()
        empty = table[column].map(is_empty)
        if empty.any():
            raise UserError(f"{path}: row {first(table, empty)}: expected a sentence in {column}, "
                            "got an empty cell")
    same = table[COLUMNS].nunique(axis=1) < len(COLUMNS)
    if same.any():
        raise UserError(f"{path}: row {first(table, same)}: expected three different sentences, "
                        "got one of them twice")
    twice = table.duplicated(COLUMNS)
    if twice.any():
        raise UserError(f"{path}: row {first(table, twice)}: expected every probe once, got one "
                        "that stands above")
    return table


def judge(probes: pd.DataFrame, score: Callable[[pd.DataFrame], np.ndarray]) -> list[dict]:
    """How many probes of each kind a model passes, with the 95% Wilson interval of the rate.

    score: a frame with sentence_1 and sentence_2, each pair once, to scores (n,).  A tie or a NaN
    is a failure.  `overlap` is the rate that counting common letters would have.
    """
    sides = [probes[["sentence", side]].set_axis(SENTENCES, axis=1) for side in COLUMNS[1:]]
    both = pd.concat(sides, ignore_index=True)
    place = both.groupby(SENTENCES, sort=False).ngroup().to_numpy()  # of a pair among the distinct
    pairs = both.drop_duplicates(ignore_index=True)
    closer, further = np.split(np.asarray(score(pairs))[place], 2)
    scored = probes.assign(closer_score=closer, further_score=further)
    overlap_closer, overlap_further = np.split(overlaps(pairs)[place], 2)
    by_overlap = pd.Series(overlap_closer > overlap_further, index=probes.index)
    results = []
    for kind, part in scored.groupby("kind", sort=False):
        passes = part["closer_score"] > part["further_score"]
        n, passed = len(part), int(passes.sum())
        bounds = binomtest(passed, n).proportion_ci(method="wilson")
        results.append({
            "kind": kind, "must": MUST.get(kind, OWN), "n": n, "passed": passed,
            "rate": passed / n, "low": float(bounds.low), "high": float(bounds.high),
            "overlap": float(by_overlap[part.index].mean()),
            "failures": part[~passes].drop(columns="kind").to_dict("records")})
    return results


def overlaps(pairs: pd.DataFrame) -> np.ndarray:
    """The letters that two sentences share (n,): Jaccard index of their character bigrams."""
    return np.array([jaccard(bigrams(one), bigrams(other))
                     for one, other in pairs[SENTENCES].itertuples(index=False)])


def bigrams(text: str) -> set[str]:
    """Every two neighbouring characters of a text, spaces left out."""
    letters = "".join(text.split())
    return {letters[at:at + 2] for at in range(len(letters) - 1)}


def jaccard(one: set[str], other: set[str]) -> float:
    """The share of common elements, 0 for two empty sets."""
    return len(one & other) / max(1, len(one | other))


def report_lines(results: list[dict]) -> list[str]:
    """The table for the terminal, and in one line the kinds that the model does not understand."""
    width = max(len(row["kind"]) for row in results)
    lines = [f"{'kind':{width}}   passed   rate  95% interval  by overlap alone"]
    for row in results:
        passed = f"{row['passed']:3d}/{row['n']:<4d}"
        bounds = f"[{row['low']:.2f}, {row['high']:.2f}]"
        lines.append(f"{row['kind']:{width}}  {passed}  {row['rate']:.2f}  {bounds}  "
                     f"{row['overlap']:16.2f}")
    if unclear := [row["kind"] for row in results if row["low"] <= 0.5]:
        lines.append("not shown to be better than a coin toss (0.50): "
                     + ", ".join(unclear))
    return lines
