"""All runs and submissions with their dev scores; records leaderboard scores beside submissions.

    python run.py stage=board
    python run.py stage=board submission=submissions/NAME.csv board.public=0.9012
    python run.py stage=board board.format=csv > board.csv
"""

import json
import sys
from pathlib import Path

import pandas as pd
from scipy import stats

from pipeline.config import Config
from pipeline.errors import UserError
from pipeline.files import plain, write_json
from pipeline.runs import read_manifest
from pipeline.submission import read_origin

COLUMNS = ["run", "chain", "encoder", "seed", "status", "pearson", "low", "high", "seconds",
           "submission", "public", "private"]


def run(config: Config) -> None:
    """Records the scores that were given, then prints the table."""
    settings = config.board
    scores = {name: value for name, value in (("public", settings.public),
                                              ("private", settings.private)) if value > -2}
    if scores and not config.submission:
        raise UserError("submission: expected the file whose leaderboard score is recorded, got "
                        "none")
    if config.submission:
        record(Path(config.submission), scores)
    table = collect(Path(config.runs_dir), Path(config.submissions_dir))
    if settings.format == "csv":
        table.to_csv(sys.stdout, index=False)
    elif settings.format == "json":
        print(json.dumps(plain(table.to_dict("records")), ensure_ascii=False, indent=2))
    else:
        show(table)


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
    write_json(file, origin | {"leaderboard": origin.get("leaderboard", {}) | scores})


def collect(runs_dir: Path, submissions_dir: Path) -> pd.DataFrame:
    """One row a run, newest last, with the submission made of it alone."""
    made = {}
    for file in sorted(submissions_dir.glob("*.json")):
        origin = read_origin(file)
        if len(origin.get("runs", [])) == 1 and "identity" in origin:
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
        rows.append([str(folder), chain, encoder, manifest["shape"]["seed"], manifest["status"],
                     dev.get("value"), dev.get("low"), dev.get("high"), manifest.get("seconds"),
                     str(submission), board.get("public"), board.get("private")])
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
    print(narrow.to_string(index=False, na_rep=""))
    for half in ("public", "private"):
        both = table.dropna(subset=["pearson", half])
        if len(both) < 3:
            continue
        found = stats.spearmanr(both["pearson"], both[half])
        gap = (both[half] - both["pearson"]).mean()
        print(f"dev against {half}: Spearman {found.statistic:.2f} (p {found.pvalue:.2f}) over "
              f"{len(both)} submissions; {half} is on average {gap:+.4f} from dev")
