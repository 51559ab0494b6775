"""Regression on the labelled pairs; writes dev and test predictions and the submission.

    python run.py stage=sts
    python run.py stage=sts chain=[sts] sts.head=bi    # without simcse, cosine of two vectors

Labels are 0–1 inside and 0–5 outside. The best weights are those with the highest dev Pearson
(cross head) or dev Spearman (bi head), measured several times an epoch over the whole set.
"""

import json
import logging
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from pipeline import processes
from pipeline.batching import shuffled
from pipeline.checkpoint import State
from pipeline.config import Config, recorded
from pipeline.data import HIGHEST, Competition, content_hash, read_competition
from pipeline.errors import UserError
from pipeline.files import write_json, write_text, written_aside
from pipeline.heads import PairScorer, fit_scale, raw_scores, to_labels
from pipeline.losses import REGRESSION, SCALE_FREE
from pipeline.metrics import by_range, pearson, regression, spearman
from pipeline.runs import Run
from pipeline.stages.chain import carried_out, read_data, recipe, start_of
from pipeline.submission import write_submission
from pipeline.training import Task, Watch, train

log = logging.getLogger(__name__)
SCALED_ON = 2048  # training pairs that a scale-free loss's level is fitted on


def run(config: Config) -> None:
    """Completes the stage, writes the submission and says how good it is."""
    competition = read_competition(Path(config.data.dir))
    finished = complete(config)
    if processes.rank() > 0:
        return
    metrics = json.loads((finished.folder / "metrics.json").read_text(encoding="utf-8"))
    test = pd.read_csv(finished.folder / "predictions" / "test.csv", dtype={"id": str},
                       keep_default_na=False)
    path = Path(config.submissions_dir) / f"{finished.folder.name}.csv"
    write_submission(path, test["id"].tolist(), test["prediction"].to_numpy(), competition.order, {
        "runs": [str(finished.folder)], "identity": finished.identity, "chain": config.chain,
        "trial": config.trial == "always", "dev": metrics["dev"], "config": recorded(config)})
    report(metrics)
    log.info("submission: %s (%d rows)", path, len(test))


def complete(config: Config, watch: Watch | None = None) -> Run:
    """The finished sts run of this configuration."""
    competition = read_data(config)
    settings = config.sts
    name = settings.loss
    if name == "auto":
        name = "cosent" if settings.head == "bi" else "mse"
    if len(competition.train) < settings.batch_size:
        raise UserError(f"sts.batch_size: expected at most {len(competition.train)}, the number of "
                        f"training pairs, got {settings.batch_size}")
    start = start_of(config, "sts")

    def work(run: Run, accelerator: Accelerator) -> State:
        scorer = PairScorer(start.load(), settings.head).to(accelerator.device)
        device = accelerator.device
        train_pairs, dev_pairs = scorer.pairs(competition.train), scorer.pairs(competition.dev)
        train_labels = competition.train["label"].to_numpy()
        targets = torch.tensor(train_labels / HIGHEST, dtype=torch.float32)
        labels = competition.dev["label"].to_numpy()

        def loss(model: nn.Module, rows: np.ndarray) -> Tensor:
            mine = train_pairs.batch(processes.own(rows)).to(device)
            return REGRESSION[name](processes.gathered(model(mine).float(), len(rows)),
                                    targets[rows].to(device))

        def scores(rows: object) -> np.ndarray:
            with accelerator.autocast():
                return raw_scores(scorer, rows, device)

        def evaluate(model: nn.Module) -> dict[str, float]:
            raw = scores(dev_pairs)
            return {"pearson": float(pearson(raw, labels)),
                    "spearman": float(spearman(raw, labels))}

        task = Task(
            batches=lambda epoch: shuffled(len(train_pairs), settings.batch_size, config.seed,
                                           epoch, drop_last=False),
            loss=loss, evaluate=evaluate, watch=watch,
            best_by="spearman" if settings.head == "bi" else "pearson",
            tokens=lambda rows: int(train_pairs.lengths[rows].sum()),
            texts=lambda rows: ["\t".join(pair) for pair in competition.train.iloc[rows][
                ["sentence_1", "sentence_2"]].itertuples(index=False)])
        log.info("sts: %d pairs, %s head, %s loss", len(train_pairs), settings.head, name)
        state = train(scorer, task, recipe(settings), accelerator, run.folder)
        if name in SCALE_FREE:
            some = np.random.default_rng(config.seed).permutation(len(train_pairs))[:SCALED_ON]
            frame = competition.train.iloc[np.sort(some)]
            fit_scale(scorer, scores(scorer.pairs(frame)), frame["label"].to_numpy())
        dev = to_labels(scorer, scores(dev_pairs))
        test = to_labels(scorer, scores(scorer.pairs(competition.test)))
        if processes.rank() > 0:
            return state
        with written_aside(run.model) as aside:
            scorer.save(aside)
        write_predictions(run.folder / "predictions", competition, dev, test)
        mean = np.full(len(labels), train_labels.mean())
        write_json(run.folder / "metrics.json", {
            "dev": regression(labels, dev), "ranges": by_range(labels, dev),
            "baseline": {"prediction": float(mean[0]),
                         "mae": float(np.abs(labels - mean).mean()),
                         "rmse": float(np.sqrt(((labels - mean) ** 2).mean()))},
            "best_step": state.best_step, "steps": state.step})
        return state

    data = {"train": content_hash(competition.train), "dev": content_hash(competition.dev),
            "test": content_hash(competition.test)}
    return carried_out(config, "sts", data, start, work)


def write_predictions(folder: Path, competition: Competition, dev: np.ndarray,
                      test: np.ndarray) -> None:
    """Writes predictions/dev.csv (with labels) and predictions/test.csv."""
    for name, frame, values in (("dev", competition.dev, dev), ("test", competition.test, test)):
        kept = frame[[column for column in ("id", "label") if column in frame]]
        table = kept.assign(prediction=values)
        write_text(folder / f"{name}.csv",
                   table.to_csv(index=False, float_format="%.6f", lineterminator="\n"))


def report(metrics: dict) -> None:
    """Prints the dev scores with their intervals, the errors by range and the baseline."""
    print_scores("dev", metrics["dev"])
    log.info("always predicting train's mean: mae %.3f, rmse %.3f", metrics["baseline"]["mae"],
             metrics["baseline"]["rmse"])
    log.info("mean |prediction - label| by label: %s", ", ".join(
        f"{part['low']}-{part['high']}: " + (f"{part['mae']:.2f}" if part["n"] else "none")
        for part in metrics["ranges"]))


def print_scores(name: str, scores: dict) -> None:
    """Prints a set's correlations with their intervals, and its errors."""
    for kind in ("pearson", "spearman"):
        value, low, high = (np.nan if part is None else part for part in scores[kind].values())
        log.info("%s %-8s %.4f  [%.4f, %.4f]  (%d pairs, 95%% bootstrap interval)",
                 name, kind.capitalize(), value, low, high, scores["n"])
        if np.isnan(value):
            log.warning("warning: predictions or labels are constant: %s is undefined", kind)
    log.info("%s error: mae %.3f, rmse %.3f", name, scores["mae"], scores["rmse"])
