"""A study's best configurations with more seeds: which one wins, and whether that is certain.

    python run.py stage=tune tune.finalists=3 tune.finalist_seeds=[43,44]
"""

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from optuna.study import Study
from optuna.trial import FrozenTrial

from pipeline import hardware
from pipeline.comparison import holm, paired_difference, sentence
from pipeline.config import Config
from pipeline.data import read_competition
from pipeline.encoder import load_encoder
from pipeline.errors import NotFinite, OutOfMemory, UserError
from pipeline.heads import PairScorer, raw_scores
from pipeline.runs import Run, keep_record
from pipeline.stages.trials import changed, complete
from pipeline.study import best_trials, untuned

log = logging.getLogger(__name__)


@dataclass
class Finalist:
    """A configuration and what it scored with every seed."""

    trial: FrozenTrial
    name: str
    scores: list[float]  # of the study's metric, a seed each
    predictions: np.ndarray  # (seeds, dev pairs)
    runs: list[str]

    @property
    def mean(self) -> float:
        """The mean score over the seeds."""
        return float(np.mean(self.scores))

    @property
    def sd(self) -> float:
        """The scores' standard deviation; NaN with one seed."""
        return float(np.std(self.scores, ddof=1)) if len(self.scores) > 1 else float("nan")


def train(config: Config, study: Study, default: dict[str, Any]) -> tuple[
        list[Finalist], np.ndarray, list[str]]:
    """The finalists, best mean first; dev's labels (n,); why others of them are out.

    The untuned configuration is always among them unless it failed.
    """
    chosen = best_trials(study, config.tune.finalists)
    first = untuned(study, default)
    if first and all(first.params != trial.params for trial in chosen):
        chosen.append(first)
    found, out = [], [] if first else ["the untuned configuration gave no score: nothing can be "
                                       "compared with it"]
    labels = read_competition(Path(config.data.dir)).dev["label"].to_numpy()
    for trial in chosen:
        name = f"trial {trial.number}" + " (untuned)" * (trial.params == default)
        try:
            found.append(with_seeds(config, study.study_name, trial, name))
        except (UserError, NotFinite, OutOfMemory) as error:
            out.append(f"{name} is out, a further seed failed: {' '.join(str(error).split())}")
            log.warning("%s", out[-1])
            if isinstance(error, NotFinite):
                keep_record(error.folder, "failed")
    if not found:
        raise UserError(f"tune: expected a finalist that trains with every seed, got none: "
                        f"{out[-1]}")
    return sorted(found, key=lambda item: -item.mean), labels, out


def with_seeds(config: Config, study: str, trial: FrozenTrial, name: str) -> Finalist:
    """Completes, or reuses, a configuration's run of every seed."""
    scores, predictions, runs = [], [], []
    for seed in [config.seed, *map(int, config.tune.finalist_seeds)]:
        log.info("finalist %s, seed %d", name, seed)
        part = changed(config, trial.params, seed, study)
        made = complete(part)
        dev = json.loads((made.folder / "metrics.json").read_text(encoding="utf-8"))["dev"]
        scores.append(float("nan") if (value := dev[config.tune.metric]["value"]) is None
                      else value)
        predictions.append(dev_predictions(part, made))
        runs.append(str(made.folder))
    if not np.isfinite(scores).all():
        raise UserError(f"a dev score is no number: {scores}")
    return Finalist(trial, name, scores, np.stack(predictions), runs)


def dev_predictions(part: Config, made: Run) -> np.ndarray:
    """A run's prediction of every dev pair (n,); of a stage without labels, the cosines."""
    file = made.folder / "predictions" / "dev.csv"
    if file.exists():
        return pd.read_csv(file)["prediction"].to_numpy()
    device = torch.device(hardware.pick_device(part.device))
    encoder = load_encoder(str(made.model), "auto", "auto", 0, None)
    scorer = PairScorer(encoder, "bi").to(device)
    return raw_scores(scorer, scorer.pairs(read_competition(Path(part.data.dir)).dev), device)


def compare(found: list[Finalist], labels: np.ndarray) -> list[str]:
    """Whether the winner can be told apart from the runner-up and from the untuned settings."""
    winner, *rest = found
    others = rest[:1] + [item for item in rest[1:] if item.name.endswith("(untuned)")]
    parts = [paired_difference(labels, other.predictions, winner.predictions) for other in others]
    said = [sentence(winner.name, other.name, part, p) for other, part, p
            in zip(others, parts, holm([part["p"] for part in parts]), strict=True)]
    if winner.name.endswith("(untuned)"):
        said.append("no trial is better than the untuned settings: best.yaml holds them")
    else:
        said.append("the winner was chosen on these same dev pairs: expect less on test")
    return said


def table(found: list[Finalist], seeds: list[int], metric: str) -> list[str]:
    """The finalists in a few lines."""
    return [f"{item.name}: dev {metric.capitalize()} {item.mean:.4f}"
            + (f" ± {item.sd:.4f} (mean ± SD" if len(seeds) > 1 else " (one run")
            + f", seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))})" for item in found]
