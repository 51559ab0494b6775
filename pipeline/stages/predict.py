"""Scores any CSV of pairs with a finished run; a labelled file is also evaluated.

    python run.py stage=predict run=runs/sts/NAME pairs=pairs.csv
"""

import logging
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from accelerate import Accelerator
from tqdm import tqdm

from pipeline import hardware, processes
from pipeline.calibration import recalled, sources_of
from pipeline.config import Config
from pipeline.data import PART, is_labelled, pairs_in_parts
from pipeline.errors import UserError
from pipeline.files import written_aside
from pipeline.heads import load_scorer, raw_scores, read_record, to_labels
from pipeline.metrics import by_range, regression
from pipeline.runs import finished, models, read_manifest
from pipeline.stages.sts import print_scores
from pipeline.submission import lines, write_origin

log = logging.getLogger(__name__)


def run(config: Config) -> None:
    """Writes `id,target` to submissions_dir and prints the scores where there are labels."""
    folder, file = finished(config.run), Path(config.pairs)
    if not models(folder):
        raise UserError("run: expected a run with a model, got "
                        f"{folder} of stage {read_manifest(folder)['stage']}, which has none")
    if not config.pairs:
        raise UserError("pairs: expected a CSV with id, sentence_1, sentence_2, got none")
    settings = read_manifest(folder)["shape"]["settings"]  # its stage's own: only sts calibrates
    calibrate = recalled(folder, settings.get("calibrate", "none"))
    parts = partial(pairs_in_parts, file, is_labelled(file), PART)
    notes: list[str] = []
    known, total, strange = known_sources(folder), 0, 0
    for frame in parts(notes=notes):  # a fault ends it here, before any is scored
        total += len(frame)
        strange += int((~frame["source"].isin(known)).sum()) if known else 0
    for note in notes:
        log.info("%s", note)
    if strange:
        log.warning("warning: %s: %d of %d pairs have another source than %s: the run looks at it, "
                    "and scores these pairs without, less well", file, strange, total,
                    ", ".join(name or "none" for name in sorted(known)))
    device = hardware.pick_device(config.device)
    precision = hardware.pick_precision(config.precision, device)
    accelerator = hardware.start(device, precision, config.seed, config.deterministic)
    raw = predicted(models(folder), parts, total, accelerator, "predict")
    if processes.rank() > 0:
        return
    path = Path(config.submissions_dir) / f"{folder.name}-{file.stem}.csv"
    write_predictions(path, folder, file, parts(), raw, calibrate)
    log.info("predictions: %s (%d rows)", path, total)


def known_sources(folder: Path) -> set[str]:
    """The sources that change what a run makes of a pair; empty where it does not look at them."""
    record = read_record(models(folder)[0])
    settings = read_manifest(folder)["shape"]["settings"]
    fitted = sources_of(folder) if settings.get("calibrate") == "surface" else set()
    return fitted | set(record.get("sources", []))


def predicted(folders: list[Path], parts: Callable[[], Iterable[pd.DataFrame]], total: int,
              accelerator: Accelerator, desc: str) -> np.ndarray:
    """The mean prediction (n,), 0 to 5, of a run's models (one, or its folds') for the pairs.

    parts: gives the pairs' frames one after the other, anew for every model, so that neither all
    pairs nor all models are in memory; total: their rows.
    """
    found = np.zeros(total, np.float32)
    is_short = len(folders) == 1 and total <= PART  # then its one part's bar says as much
    with tqdm(total=total * len(folders), desc=desc, unit="row",
              disable=is_short or processes.rank() > 0) as bar:
        for folder in folders:
            scorer, end = load_scorer(folder).to(accelerator.device), 0
            for frame in parts():
                start, end = end, end + len(frame)
                with accelerator.autocast():
                    raw = raw_scores(scorer, scorer.pairs(frame), accelerator.device, desc)
                found[start:end] += to_labels(scorer, raw)
                hardware.return_memory()
                bar.update(len(frame))
    return found / len(folders)


def write_predictions(path: Path, folder: Path, file: Path, parts: Iterable[pd.DataFrame],
                      raw: np.ndarray,
                      calibrate: Callable[[np.ndarray, pd.DataFrame], np.ndarray]) -> None:
    """Writes raw predictions (n,) of the file's parts, calibrated; prints scores if labelled."""
    origin: dict = {"runs": [str(folder)], "pairs": str(file)}
    labels, predictions, end = [], [], 0
    with written_aside(path) as aside:
        with open(aside, "w", encoding="utf-8", newline="\n") as out:
            for frame in parts:
                start, end = end, end + len(frame)
                final = calibrate(raw[start:end], frame)
                out.write(lines(frame["id"].tolist(), final, header=start == 0))
                if "label" in frame:
                    labels.append(frame["label"].to_numpy())
                    predictions.append(np.asarray(final))
        if labels:
            every = np.concatenate(labels), np.concatenate(predictions)
            origin |= {"scores": regression(*every), "ranges": by_range(*every)}
            print_scores(file.name, origin["scores"])
        write_origin(path, origin)
