"""Scores any CSV of pairs with a finished run; a labelled file is also evaluated.

    python run.py stage=predict run=runs/sts/NAME pairs=pairs.csv
"""

import logging
from pathlib import Path

import numpy as np
import pandas as pd
from accelerate import Accelerator
from omegaconf import OmegaConf

from pipeline import hardware, processes
from pipeline.calibration import recalled
from pipeline.config import Config
from pipeline.data import read_pairs
from pipeline.errors import UserError
from pipeline.heads import load_scorer, raw_scores, to_labels
from pipeline.metrics import by_range, regression
from pipeline.runs import finished, models
from pipeline.stages.sts import print_scores
from pipeline.submission import write_submission
from pipeline.tables import read_table

log = logging.getLogger(__name__)


def run(config: Config) -> None:
    """Writes `id,target` to submissions_dir and prints the scores where there are labels."""
    folder, file = finished(config.run), Path(config.pairs)
    if not config.pairs:
        raise UserError("pairs: expected a CSV with id, sentence_1, sentence_2, got none")
    table = read_table(file)
    is_labelled = "label" in table and (table["label"] != "").any()
    notes: list[str] = []
    frame = read_pairs(file, is_labelled, notes)
    for note in notes:
        log.info("%s", note)
    device = hardware.pick_device(config.device)
    precision = hardware.pick_precision(config.precision, device)
    accelerator = hardware.start(device, precision, config.seed, config.deterministic)
    raw = predicted(models(folder), frame, accelerator, "predict")
    settings = OmegaConf.load(folder / "config.yaml").sts
    predictions = recalled(folder, settings.get("calibrate", "none"))(raw, frame)
    if processes.rank() > 0:
        return
    path = Path(config.submissions_dir) / f"{folder.name}-{file.stem}.csv"
    ids = frame["id"].tolist()
    origin = {"runs": [str(folder)], "pairs": str(file)}
    if is_labelled:
        labels = frame["label"].to_numpy()
        origin["scores"] = regression(labels, predictions)
        print_scores(file.name, origin["scores"])
        origin["ranges"] = by_range(labels, np.asarray(predictions))
    write_submission(path, ids, predictions, ids, origin)
    log.info("predictions: %s (%d rows)", path, len(ids))


def predicted(folders: list[Path], frame: pd.DataFrame, accelerator: Accelerator,
              desc: str) -> np.ndarray:
    """The mean prediction (n,), 0 to 5, of a run's models (one, or its folds') for the pairs."""
    found = []
    for folder in folders:
        scorer = load_scorer(folder).to(accelerator.device)
        with accelerator.autocast():
            raw = raw_scores(scorer, scorer.pairs(frame), accelerator.device, desc)
        found.append(to_labels(scorer, raw))
    return np.mean(found, axis=0)
