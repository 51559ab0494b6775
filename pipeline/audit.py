"""What of the data is worth knowing though it is not refused: duplicates, leaks, contradictions."""

from pathlib import Path

import numpy as np
import pandas as pd

from pipeline.data import SENTENCES, Competition


def pair_keys(frame: pd.DataFrame) -> pd.Series:
    """A pair's key, the same for (a, b) and (b, a)."""
    one, other = (frame[column] for column in SENTENCES)
    is_sorted = one < other
    return one.where(is_sorted, other) + "\x1f" + other.where(is_sorted, one)


def repeated_pairs(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows whose pair stands there already, maybe swapped."""
    return frame[pair_keys(frame).duplicated()]


def contradictions(frame: pd.DataFrame, apart: float = 1.0) -> list[tuple[int, int, float]]:
    """(row, row, difference) of one pair whose labels differ by more than `apart`."""
    pairs = frame.groupby(pair_keys(frame))["label"].agg(["idxmin", "idxmax", "min", "max"])
    apart_pairs = pairs[pairs["max"] - pairs["min"] > apart]
    return [(int(frame.loc[low, "row"]), int(frame.loc[high, "row"]), float(most - least))
            for low, high, least, most in apart_pairs.itertuples(index=False)]


def leaks(known: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """The other set's rows whose pair is in the known one too, maybe swapped."""
    return other[pair_keys(other).isin(pair_keys(known))]


def shared_sentences(train: pd.DataFrame, other: pd.DataFrame) -> float:
    """The share of the other set's distinct sentences that stand in train."""
    theirs = set(other[SENTENCES].to_numpy().ravel())
    return len(theirs & set(train[SENTENCES].to_numpy().ravel())) / len(theirs)


def binary_threshold(frame: pd.DataFrame) -> tuple[float, pd.DataFrame]:
    """The label from which binary-label is 1, as the data say, and the rows that disagree."""
    labels, binary = frame["label"].to_numpy(), frame["binary-label"].to_numpy()
    levels = np.append(np.unique(labels), np.inf)  # inf: no label is high enough
    wrong = [int(((labels >= level) != (binary == 1)).sum()) for level in levels]
    best = float(levels[int(np.argmin(wrong))])
    return best, frame[(labels >= best) != (binary == 1)]


def rows_shown(frame: pd.DataFrame, most: int = 3) -> str:
    """The first row numbers, for a message."""
    shown = ", ".join(str(row) for row in frame["row"].head(most))
    return f"row {shown}" + (", …" if len(frame) > most else "")


def findings(competition: Competition, folder: Path) -> list[str]:
    """One line for everything risky or odd; empty when there is nothing to say."""
    lines = list(competition.notes)
    for name in ("train", "dev"):
        frame: pd.DataFrame = getattr(competition, name)
        file = folder / f"{name}.csv"
        if len(twice := repeated_pairs(frame)):
            lines.append(f"{file}: {len(twice)} pairs stand there more than once "
                         f"({rows_shown(twice)})")
        for low, high, gap in contradictions(frame)[:3]:
            lines.append(f"{file}: rows {low} and {high} are one pair with labels {gap:.1f} apart")
        if "binary-label" in frame and frame["binary-label"].isin([0, 1]).all():
            threshold, wrong = binary_threshold(frame)
            if len(wrong):
                lines.append(f"{file}: {len(wrong)} binary-labels disagree with label >= "
                             f"{threshold:.1f} ({rows_shown(wrong)})")
        elif "binary-label" in frame:
            lines.append(f"{file}: binary-label holds other values than 0 and 1")
        if frame["label"].nunique() == 1:
            lines.append(f"{file}: all labels are {frame['label'].iloc[0]:g}: no correlation can "
                         "be measured")
    for known, name in (("train", "dev"), ("train", "test"), ("dev", "test")):
        if len(both := leaks(getattr(competition, known), getattr(competition, name))):
            lines.append(f"{folder / name}.csv: LEAK: {len(both)} pairs are in {known} too, maybe "
                         f"swapped ({rows_shown(both)}): the {name} score will be too high")
    highest = {name: getattr(competition, name)["label"].max() for name in ("train", "dev")}
    if min(highest.values()) <= 1 < max(highest.values()):
        lines.append(f"{folder}: labels go to {highest['train']:g} in train.csv and to "
                     f"{highest['dev']:g} in dev.csv: both are taken for 0 to 5")
    unseen = set(competition.test["source"]) - set(competition.train["source"])
    if unseen and unseen != {""}:
        lines.append(f"{folder / 'test.csv'}: sources that train does not have: "
                     f"{', '.join(sorted(unseen))}: expect a lower test score than dev's")
    return lines
