"""What a finished run left behind, read back and checked against the data it was trained on.

    python run.py stage=diagnose run=runs/sts/NAME
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from pipeline.config import SAMPLE
from pipeline.data import Competition, content_hash, read_competition
from pipeline.errors import UserError
from pipeline.runs import finished, read_manifest, refuse_damaged_record

SETS = ("train", "dev", "test")


@dataclass
class Evidence:
    """One run: its settings, its data and what it predicted for them, rows as in the data.

    dev (n,) and test (m,); train (k,) from models that did not see the row, or None.
    """

    folder: Path
    manifest: dict
    settings: dict
    competition: Competition
    dev: np.ndarray
    test: np.ndarray
    train: np.ndarray | None = None

    @property
    def name(self) -> str:
        """The run's name as its folder has it, without the identity."""
        return self.folder.name.rpartition("-")[0]


def read_evidence(path: str, moved: Path | None = None) -> Evidence:
    """The evidence of a finished run that scores pairs; refuses it when its data have changed.

    moved: where its data lie if no longer in their folder.
    """
    folder = finished(path)
    manifest = read_manifest(folder)
    if manifest["stage"] != "sts":
        raise UserError(f"run: expected a run that scores pairs (stage sts), got {folder} of "
                        f"stage {manifest['stage']}")
    chain(folder)  # a damaged one is refused before the work
    settings = read_settings(folder / "config.yaml")
    data = data_folder(settings)
    if not data.is_dir():
        if moved is None:
            raise UserError(f"{data}: expected the folder of the data that {folder} was trained "
                            "on, got none; data.dir=FOLDER says where they are now")
        data = moved
    competition = read_competition(data)
    check_content(folder, manifest["shape"]["data"], data, competition)
    return Evidence(folder, manifest, settings, competition, *(
        predictions(folder / "predictions" / f"{name}.csv", getattr(competition, name))
        for name in ("dev", "test")), out_of_fold(folder, competition))


def out_of_fold(folder: Path, competition: Competition) -> np.ndarray | None:
    """Train's predictions by models that did not see the row; None where the run has none.

    Where dev was trained on too, its rows come after train's.
    """
    file, frame = folder / "predictions" / "oof.csv", competition.train
    if not file.exists():
        return None
    if len(read_predictions(file)) > len(frame):
        frame = pd.concat([frame, competition.dev], ignore_index=True)
    return predictions(file, frame)[:len(competition.train)]


def read_settings(file: Path) -> dict:
    """A run's resolved configuration."""
    try:
        settings = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{file}: expected the run's settings, got: "
                        f"{' '.join(str(error).split())}") from None
    if not isinstance(settings, dict) or "dir" not in (settings.get("data") or {}):
        raise UserError(f"{file}: expected the run's settings with data.dir, got none")
    return settings


def data_folder(settings: dict) -> Path:
    """Where a run's data lie: a trial's are the bundled sample, wherever the command is given."""
    return SAMPLE if settings.get("trial") == "always" else Path(settings["data"]["dir"])


def check_content(folder: Path, recorded: dict[str, str], data: Path,
                  competition: Competition) -> None:
    """Refuses data that are not the run's."""
    for name in SETS:
        found = content_hash(getattr(competition, name))
        if found != recorded.get(name):
            raise UserError(f"{data / name}.csv: expected the content that {folder} was trained "
                            f"on (SHA-256 {str(recorded.get(name))[:10]}…), got another "
                            f"({found[:10]}…): train again, or bring the old file back")


def read_predictions(file: Path) -> pd.Series:
    """A file's predictions by id, each id once."""
    try:
        table = pd.read_csv(file, dtype={"id": str}, keep_default_na=False)
        return table.set_index("id", verify_integrity=True)["prediction"].astype(float)
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{file}: expected the columns id and prediction, got: "
                        f"{' '.join(str(error).split())}") from None


def predictions(file: Path, frame: pd.DataFrame) -> np.ndarray:
    """The file's predictions (n,) in the frame's order; each of its ids must be there once."""
    values = read_predictions(file)
    if len(values) != len(frame) or not frame["id"].isin(values.index).all():
        raise UserError(f"{file}: expected a prediction for each of {len(frame)} ids, got "
                        f"{len(values)} rows with {int(frame['id'].isin(values.index).sum())} of "
                        "them")
    found = values.loc[frame["id"]].to_numpy()
    if not np.isfinite(found).all():
        row = int(np.flatnonzero(~np.isfinite(found))[0])
        raise UserError(f"{file}: id {frame['id'].iloc[row]!r}: expected a number, got "
                        f"{found[row]}")
    return found


def chain(folder: Path) -> list[Path]:
    """The folders of the runs that led to this one, first to last; those that are gone are not
    among them, and what is read of the others must be as it was written."""
    folders = [folder]
    while before := read_manifest(folders[0])["shape"]["start"].get("run"):
        there = [path for path in sorted(folder.parent.parent.glob(f"*/*-{before}"))
                 if read_manifest(path).get("identity") == before]
        if not there:
            break
        refuse_damaged_record(there[0])
        folders.insert(0, there[0])
    return folders
