"""Public Korean data in the competition's layout: KLUE-STS, KorSTS, KLUE-NLI, KorNLI.

Read from the Hub or from local copies of the original files.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from pipeline import nli
from pipeline.data import HIGHEST, LOWEST
from pipeline.errors import UserError
from pipeline.files import write_text
from pipeline.hub import quiet
from pipeline.splits import held_out
from pipeline.tables import renamed, require

log = logging.getLogger(__name__)
KLUE = "CC BY-SA 4.0, the KLUE team (Park et al. 2021)"
KAKAO = "CC BY-SA 4.0, Kakao Brain (Ham et al. 2020)"


@dataclass(frozen=True)
class Source:
    """A public data set: its place on the Hub, its size and its licence; dev: a config apart."""

    hub: str
    config: str | None
    size: str
    licence: str
    is_nli: bool
    dev: str | None = None


SOURCES = {
    "klue-sts": Source("klue/klue", "sts", "11,668 + 519 pairs", KLUE, False),
    "korsts": Source("dkoterwa/kor-sts", None, "5,749 + 1,500 + 1,379 pairs", KAKAO, False),
    "klue-nli": Source("klue/klue", "nli", "24,998 + 3,000 pairs", KLUE, True),
    "kornli": Source("kakaobrain/kor_nli", "snli", "550,152 pairs", KAKAO, True,
                     dev="xnli"),
}
NAMES = {"sentence1": "sentence_1", "sentence2": "sentence_2", "genre": "source",
         "score": "label"}


def from_hub(name: str) -> dict[str, pd.DataFrame]:
    """The data set's parts by name (train, validation, test), as the Hub has them."""
    from datasets import disable_progress_bars, load_dataset
    from datasets.exceptions import DatasetsError
    from huggingface_hub.utils import httpx

    quiet()
    disable_progress_bars()
    source = SOURCES[name]
    try:
        parts = load_dataset(source.hub, source.config)
        if source.dev:
            parts["validation"] = load_dataset(source.hub, source.dev)["validation"]
    except (OSError, ValueError, RuntimeError, DatasetsError, httpx.HTTPError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"fetch.name={name}: the Hub could not give {source.hub} ({reason}); ways "
                        "out: fetch.files=[FILE,…] with local copies of the original files, or "
                        "HF_HOME with a filled cache") from None
    return {part: parts[part].to_pandas() for part in parts}


def from_files(files: list[Path]) -> dict[str, pd.DataFrame]:
    """Local copies of the original files (.tsv of Kakao Brain, .json of KLUE) by their part."""
    parts: dict[str, list[pd.DataFrame]] = {}
    for path in files:
        part = next((part for word, part in (("train", "train"), ("dev", "validation"),
                                             ("test", "test")) if word in path.name), None)
        if part is None or path.suffix not in (".tsv", ".json"):
            raise UserError(f"fetch.files: expected .tsv or .json files with train, dev or test in "
                            f"their names, got {path}")
        table = (nli.read_tsv if path.suffix == ".tsv" else nli.read_json)(path)
        require(table, path, [])
        parts.setdefault(part, []).append(table.drop(columns="row"))
    return {part: pd.concat(tables, ignore_index=True) for part, tables in parts.items()}


def sts_layout(parts: dict[str, pd.DataFrame], name: str, seed: int) -> dict[str, pd.DataFrame]:
    """train, dev and test with the competition's columns.

    KLUE keeps its test to itself: there its dev becomes test, and a tenth of train, in groups of
    pairs that share a sentence, becomes dev.
    """
    frames = {part: sts_columns(frame, name, part) for part, frame in parts.items()}
    if "train" not in frames or "validation" not in frames:
        raise UserError(f"fetch: expected a train and a dev part, got {', '.join(frames)}")
    if "test" in frames:
        return {"train": frames["train"], "dev": frames["validation"], "test": frames["test"]}
    out = held_out(frames["train"], len(frames["train"]) // 10, seed)
    return {"train": frames["train"][~out], "dev": frames["train"][out],
            "test": frames["validation"]}


def sts_columns(frame: pd.DataFrame, name: str, part: str) -> pd.DataFrame:
    """One part with the columns id, source, sentence_1, sentence_2, label, binary-label."""
    frame = renamed(frame, f"fetch.name={name}: {part}", NAMES)
    if "labels" in frame:
        frame = frame.assign(label=[labels.get("label") if isinstance(labels, dict) else None
                                    for labels in frame["labels"]])
    check_columns(frame, name, ["sentence_1", "sentence_2", "label"])
    labels = pd.to_numeric(frame["label"], errors="coerce")
    is_missing = frame["label"].isna() | (frame["label"] == "")
    refuse(frame["label"], ~is_missing & ~labels.between(LOWEST, HIGHEST),
           f"fetch.name={name}: {part}", f"a label from {LOWEST:g} to {HIGHEST:g}")
    made = pd.DataFrame({
        "id": [f"{name}-{part}-{place:05d}" for place in range(len(frame))],
        "source": frame.get("source", name),
        "sentence_1": frame["sentence_1"], "sentence_2": frame["sentence_2"], "label": labels})
    made["binary-label"] = (labels >= 3).astype(float)
    if labels.isna().all():
        raise UserError(f"fetch.name={name}: {part}: expected labels, got none in "
                        f"{len(frame):,} rows")
    if labels.isna().any():
        log.warning("warning: fetch.name=%s: %s: %d of %d rows have no label and are left out",
                    name, part, labels.isna().sum(), len(frame))
    return made[labels.notna()]


def refuse(labels: pd.Series, bad: pd.Series, where: str, expected: str) -> None:
    """Raises UserError for the first bad label; rows count from 1 over the part's files."""
    if bad.any():
        place = int(bad.to_numpy().argmax())
        raise UserError(f"{where}: row {place + 1}: expected {expected}, got "
                        f"{labels.iloc[place]!r}")


def check_columns(frame: pd.DataFrame, name: str, columns: list[str]) -> None:
    """Refuses files of another data set."""
    if missing := [column for column in columns if column not in frame]:
        raise UserError(f"fetch.name={name}: expected columns {', '.join(missing)}, got "
                        f"{', '.join(map(str, frame.columns))}")


def nli_layout(parts: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """train and dev with premise, hypothesis and label in words."""
    made = {}
    if not {"train", "validation"} <= parts.keys():
        raise UserError(f"fetch: expected a train and a dev part, got {', '.join(parts)}")
    for part, out in (("train", "train"), ("validation", "dev")):
        if part not in parts:
            continue
        frame = renamed(parts[part], f"fetch: {part}", nli.NAMES)
        check_columns(frame, "nli", ["premise", "hypothesis", "label"])
        by_number = {str(number): label for number, label in enumerate(nli.LABELS)}
        labels = [by_number.get(str(label), str(label)) for label in frame["label"]]
        table = frame[["premise", "hypothesis"]].assign(label=labels)
        refuse(table["label"], ~table["label"].isin([*nli.LABELS, "-", "-1", "", "nan", "None"]),
               f"fetch: {part}", f"one of {', '.join(nli.LABELS)} or -")
        made[out] = table[table["label"].isin(nli.LABELS)]
    return made


def write_sts(parts: dict[str, pd.DataFrame], folder: Path) -> None:
    """train.csv, dev.csv, test.csv, and test's labels aside."""
    test = parts["test"]
    tables = {"train": parts["train"], "dev": parts["dev"],
              "test": test.drop(columns=["label", "binary-label"]),
              "test_labels": test[["id", "label"]],
              "sample_submission": test[["id"]].assign(target=0.0)}
    for name, table in tables.items():
        write_text(folder / f"{name}.csv", table.to_csv(index=False, lineterminator="\n"))
