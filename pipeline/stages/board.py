"""All runs and submissions with their dev scores, leaderboard scores, and which one to submit.

    python run.py stage=board
    python run.py stage=board submission=submissions/NAME.csv board.public=0.9012
    python run.py stage=board board.format=csv > board.csv
"""

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from pipeline.choosing import Candidate, recommendation
from pipeline.config import Config
from pipeline.errors import UserError
from pipeline.files import plain, write_json
from pipeline.runs import read_manifest
from pipeline.sections import Board
from pipeline.submission import read_origin

COLUMNS = ["run", "chain", "encoder", "seed", "status", "pearson", "low", "high", "seconds",
           "submission", "public", "private"]


def run(config: Config) -> None:
    """Records the scores that were given, then prints the table."""
    settings = config.board
    scores = {name: value for name, value in (("public", settings.public),
                                              ("private", settings.private))
              if value != Board().public}
    for name, value in scores.items():
        if not -1 <= value <= 1:
            raise UserError(f"board.{name}: expected a Pearson from -1 to 1, got {value:g}")
    if scores and not config.submission:
        raise UserError("submission: expected the file whose leaderboard score is recorded, got "
                        "none")
    if config.submission:
        record(Path(config.submission), scores)
    with warnings_aside() if settings.format != "table" else nullcontext():
        table = collect(Path(config.runs_dir), Path(config.submissions_dir))
    if settings.format == "csv":
        table.to_csv(sys.stdout, index=False)
    elif settings.format == "json":
        print(json.dumps(plain(table.to_dict("records")), ensure_ascii=False, indent=2))
    else:
        show(table)
        recommend(table)


@contextmanager
def warnings_aside() -> Iterator[None]:
    """Has what is logged written to stderr, since a program reads stdout."""
    handlers = [one for one in logging.getLogger().handlers if type(one) is logging.StreamHandler]
    before = [(one, one.setStream(sys.stderr)) for one in handlers]
    try:
        yield
    finally:
        for one, stream in before:
            one.setStream(stream or sys.stderr)


def record(submission: Path, scores: dict[str, float]) -> None:
    """Adds leaderboard scores to the submission's JSON."""
    file = submission.with_suffix(".json")
    if not file.exists():
        raise UserError(f"submission: expected a file that this pipeline wrote (with {file.name} "
                        f"beside it), got {submission}")
    if not scores:
        raise UserError("board.public, board.private: expected a score to record, got none")
    origin = read_origin(file)
    if not origin:
        raise UserError(f"{file}: expected the record of a submission, got none that can be read")
    if "identity" not in origin:
        raise UserError(f"submission: expected one of stage sts or ensemble, got {submission} of "
                        "stage predict, whose pairs the table knows nothing of")
    write_json(file, origin | {"leaderboard": origin.get("leaderboard", {}) | scores})


def collect(runs_dir: Path, submissions_dir: Path) -> pd.DataFrame:
    """One row a run, newest last, with the submission made of it."""
    made = {}
    for file in sorted(submissions_dir.glob("*.json")):
        origin = read_origin(file)
        if "identity" in origin:
            made[origin["identity"]] = (file.with_suffix(".csv"), origin.get("leaderboard", {}))
    rows = []
    manifests = [(path.parent, read_manifest(path.parent))
                 for path in runs_dir.glob("*/*/manifest.json")]
    known = {manifest["identity"]: manifest for _, manifest in manifests if manifest}
    for folder, manifest in sorted(manifests, key=lambda item: item[1].get("started", "")):
        if not manifest:
            continue
        chain, encoder = lineage(manifest, known)
        dev = score(folder)
        submission, board = made.get(manifest["identity"], ("", {}))
        seed = manifest["shape"].get("seed", "")  # an ensemble has none
        rows.append([str(folder), chain, encoder, seed, manifest["status"], dev.get("value"),
                     dev.get("low"), dev.get("high"), manifest.get("seconds"), str(submission),
                     board.get("public"), board.get("private")])
    numbers = ("pearson", "low", "high", "seconds", "public", "private")
    return pd.DataFrame(rows, columns=COLUMNS).astype(dict.fromkeys(numbers, float))


def lineage(manifest: dict, known: dict[str, dict]) -> tuple[str, str]:
    """The stages that led to a run, joined by `>`, and the encoder they began with."""
    stages = [manifest["stage"]]
    while (before := manifest["shape"]["start"].get("run")) in known:
        manifest = known[before]
        stages.insert(0, manifest["stage"])
    return ">".join(stages), manifest.get("encoder", "")


def score(folder: Path) -> dict:
    """The run's dev Pearson with its interval; empty where it has none."""
    try:
        metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return metrics.get("dev", {}).get("pearson", {})


def show(table: pd.DataFrame) -> None:
    """Prints the table, and how well dev foretells the leaderboard."""
    if table.empty:
        print("no runs yet: python run.py stage=sts makes one")
        return
    narrow = table.drop(columns=["low", "high"]).assign(pearson=[
        "" if pd.isna(value) else f"{value:.4f} [{low:.4f}, {high:.4f}]"
        for value, low, high in zip(table["pearson"], table["low"], table["high"], strict=True)])
    # Of a run that was stopped nobody could write more than that it had begun.
    narrow["status"] = narrow["status"].replace("running", "unfinished")
    print(narrow.to_string(index=False, na_rep=""))
    for half in ("public", "private"):
        both = table.dropna(subset=["pearson", half])
        if len(both) < 3:
            continue
        found = stats.spearmanr(both["pearson"], both[half])
        gap = (both[half] - both["pearson"]).mean()
        print(f"dev against {half}: Spearman {found.statistic:.2f} (p {found.pvalue:.2f}) over "
              f"{len(both)} submissions; {half} is on average {gap:+.4f} from dev")


def recommend(table: pd.DataFrame) -> None:
    """Prints which finished sts run or ensemble to submit, for each data set in the table."""
    by_data: dict[tuple, list[dict]] = {}
    for row in table[table["status"] == "complete"].to_dict("records"):
        manifest = read_manifest(Path(row["run"]))
        data = manifest["shape"].get("data", {})
        if manifest["stage"] in ("sts", "ensemble"):
            mark = data.get("dev"), data.get("test"), manifest["shape"].get("trial", False)
            by_data.setdefault(mark, []).append(row)
    for (_, _, is_trial), rows in by_data.items():
        name, tables = "oof", predicted(rows, "oof")
        if len(tables) < len(rows):  # not all have them, or not of the same rows
            name, tables = "dev", predicted(rows, "dev")
        if not tables:
            continue
        if is_trial:
            print("trial, on the bundled sample:")
        out = sorted(row["run"] for row in rows if row["run"] not in tables)
        if out:
            print(f"left out, their {name} predictions cannot be read or are of other rows: "
                  f"{', '.join(out)}")
        candidates = [Candidate(row["submission"] or f"{row['run']} (no submission yet: its "
                                "stage writes it)", tables[row["run"]]["prediction"].to_numpy(),
                                row["public"]) for row in rows if row["run"] in tables]
        labels = next(iter(tables.values()))["label"].to_numpy()
        test = predictions(Path(next(iter(tables))), "test")
        public_rows = 0 if test is None else len(test) // 2
        print("\n".join(recommendation(candidates, labels, name, public_rows)))


def predicted(rows: list[dict], name: str) -> dict[str, pd.DataFrame]:
    """The runs' dev or oof predictions by run: those that are of the same rows as most."""
    alike: dict[tuple, dict[str, pd.DataFrame]] = {}
    for row in rows:
        table = predictions(Path(row["run"]), name)
        if table is not None and {"label", "prediction"} <= set(table):
            mark = tuple(table["id"]), tuple(table["label"])
            alike.setdefault(mark, {})[row["run"]] = table
    return max(alike.values(), key=len, default={})


def predictions(folder: Path, name: str) -> pd.DataFrame | None:
    """A run's predictions; nothing where it has none that can be read."""
    try:
        table = pd.read_csv(folder / "predictions" / f"{name}.csv", dtype={"id": str},
                            keep_default_na=False)
    except (OSError, ValueError):  # pandas' parser errors are ValueErrors
        return None
    numbers = table.select_dtypes("number")
    is_whole = "id" in table and len(table) and np.isfinite(numbers.to_numpy()).all()
    return table if is_whole and "prediction" in numbers else None
