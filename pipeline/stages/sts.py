"""Regression on the labelled pairs; writes dev and test predictions and the submission.

    python run.py stage=sts
    python run.py stage=sts chain=[sts] sts.head=bi    # without simcse, cosine of two vectors
    python run.py stage=sts sts.folds=5 sts.use_dev=true
    python run.py stage=sts sts.folds=3 sts.use_dev=true sts.held=dev

Labels are 0–1 inside and 0–5 outside. The best weights are those with the highest dev Pearson
(cross head) or dev Spearman (bi head), measured several times an epoch over the whole set.
"""

import json
import logging
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import numpy as np
import pandas as pd
from accelerate import Accelerator

from pipeline import calibration, processes
from pipeline.checkpoint import State
from pipeline.config import Config, recorded
from pipeline.data import Competition, read_competition
from pipeline.errors import UserError
from pipeline.files import write_json, write_text
from pipeline.metrics import by_range, pearson, regression
from pipeline.runs import Run
from pipeline.splits import folds, groups
from pipeline.stages.chain import Start, carried_out, read_data, start_of
from pipeline.stages.fitting import check_settings, fit
from pipeline.submission import write_submission
from pipeline.training import Watch

log = logging.getLogger(__name__)


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
    competition, settings = read_data(config), config.sts
    if settings.use_dev and not settings.folds:
        raise UserError("sts.use_dev: expected sts.folds of 2 or more with it (else no score is "
                        "left to choose by), got 0")
    if settings.held == "dev" and not settings.use_dev:
        raise UserError("sts.held: expected all without sts.use_dev=true, got dev")
    rows = competition.train
    if settings.use_dev:
        rows = pd.concat([competition.train, competition.dev], ignore_index=True)
    check_settings(settings, rows)
    calibration.require_groups("sts.calibrate", settings.calibrate, competition.dev)
    data = competition.hashes()
    if settings.folds:
        check_folds(config, competition.dev if settings.held == "dev" else rows)
        start = start_of(config, "sts")
        return carried_out(config, "sts", data, start, lambda run, accelerator: of_folds(
            config, run, competition, rows, data, start))
    start = start_of(config, "sts")

    def work(run: Run, accelerator: Accelerator) -> State:
        state, found = fit(config, run, accelerator, start, competition.train, competition.dev,
                           {"dev": competition.dev, "test": competition.test}, watch)
        if processes.rank() == 0:
            dev, recall = calibrated(config, run, competition.dev, found["dev"])
            test = recall(found["test"], competition.test)
            write_results(run.folder, competition, dev, test, {
                "best_step": state.best_step, "steps": state.step})
        return state

    return carried_out(config, "sts", data, start, work)


def check_folds(config: Config, held: pd.DataFrame) -> None:
    """Refuses folds that cannot be made of these rows, or that another stage should start from."""
    k, most = config.sts.folds, len(np.unique(groups(held)))
    if k == 1 or k > most:
        raise UserError(f"sts.folds: expected 0 or from 2 to {most}, the number of groups of pairs "
                        f"that share no sentence, got {k}")
    if "sts" in config.chain[:-1]:
        raise UserError(f"sts.folds: expected 0 where {config.chain[-1]} follows sts, got {k}")


def of_folds(config: Config, run: Run, competition: Competition, rows: pd.DataFrame,
             data: dict[str, str], start: Start) -> State:
    """A model for every fold, each a run inside this run's folder, and their joint predictions."""
    if config.sts.keep == "best":
        log.warning("warning: sts.keep=best takes each fold's best evaluation of the pairs that it "
                    "holds out, which flatters their predictions; sts.keep=last does not")
    numbers = holding(config, competition, rows)
    members = [fold(config, run, competition, rows, numbers == number, number, data, start)
               for number in range(config.sts.folds)]
    seconds = sum(member.manifest()["seconds"] for member in members)
    if processes.rank() > 0:
        return State(seconds=seconds)
    held = [predictions(member, "held") for member in members]
    facts: dict = {"folds": [{"n": len(table), "pearson": float(pearson(
        table["prediction"].to_numpy(), table["label"].to_numpy()))} for table in held]}
    oof = pd.concat([table.assign(fold=number + 1) for number, table in enumerate(held)])
    order = np.argsort(numbers[numbers >= 0], kind="stable")
    oof = oof.iloc[np.argsort(order, kind="stable")]  # the rows' order
    raw, n = oof["prediction"].to_numpy(), len(oof)
    if config.sts.use_dev:
        n -= len(competition.dev)  # train's rows among them: all of it or none
    dev, recall = calibrated(config, run, competition.dev,
                             raw[n:] if config.sts.use_dev else mean_of(members, "dev"))
    if n:  # else it is dev alone, and has a file of its own
        found = recall(raw[:n], competition.train)
        oof["prediction"] = found = np.concatenate([found, dev]) if config.sts.use_dev else found
        facts["oof"] = regression(oof["label"].to_numpy(), found)
        write_table(run.folder / "predictions" / "oof.csv",
                    oof[["id", "fold", "label", "prediction"]])
    test = recall(mean_of(members, "test"), competition.test)
    write_results(run.folder, competition, dev, test, facts)
    return State(seconds=seconds)


def holding(config: Config, competition: Competition, rows: pd.DataFrame) -> np.ndarray:
    """The number of the fold that holds each row (n,), from 0; -1: no fold does."""
    k, seed = config.sts.folds, config.seed
    if config.sts.held == "all":
        return folds(rows, k, seed)
    return np.concatenate([np.full(len(competition.train), -1), folds(competition.dev, k, seed)])


def calibrated(config: Config, run: Run, dev: pd.DataFrame, raw: np.ndarray,
               ) -> tuple[np.ndarray, Callable[[np.ndarray, pd.DataFrame], np.ndarray]]:
    """Dev's calibrated predictions, each by a fit that did not see it, and the map for other pairs.

    It is fitted on dev, whose labels are spread like test's more often than train's are.
    """
    kind = config.sts.calibrate
    if kind != "none":
        calibration.save(run.folder, raw, dev)
    return calibration.fitted(kind, raw, dev)


def mean_of(members: list[Run], name: str) -> np.ndarray:
    """The mean of the folds' predictions for dev or test."""
    return np.mean([predictions(member, name)["prediction"] for member in members], axis=0)


def fold(config: Config, run: Run, competition: Competition, rows: pd.DataFrame,
         held: np.ndarray, number: int, data: dict[str, str], start: Start) -> Run:
    """The finished run of one fold, trained on the rows that are not held (a mask)."""
    part = deepcopy(config)
    part.runs_dir, part.name, part.force = str(run.folder / "folds"), f"fold{number + 1}", False
    part.stage = "sts"
    asked = {"held": rows[held], "test": competition.test}
    if not config.sts.use_dev:
        asked["dev"] = competition.dev

    def work(own: Run, accelerator: Accelerator) -> State:
        log.info("fold %d of %d", number + 1, config.sts.folds)
        state, found = fit(part, own, accelerator, start, rows[~held].reset_index(drop=True),
                           rows[held], asked)
        if processes.rank() == 0:
            for name, frame in asked.items():
                write_predictions(own.folder / "predictions" / f"{name}.csv", frame, found[name])
        return state

    return carried_out(part, "sts", data | {"fold": f"{number + 1} of {config.sts.folds}"}, start,
                       work)


def predictions(run: Run, name: str) -> pd.DataFrame:
    """What a run predicted for held, dev or test."""
    return pd.read_csv(run.folder / "predictions" / f"{name}.csv", dtype={"id": str},
                       keep_default_na=False)


def write_results(folder: Path, competition: Competition, dev: np.ndarray, test: np.ndarray,
                  facts: dict) -> None:
    """Writes the predictions of dev and test, and metrics.json."""
    write_predictions(folder / "predictions" / "dev.csv", competition.dev, dev)
    write_predictions(folder / "predictions" / "test.csv", competition.test, test)
    labels = competition.dev["label"].to_numpy()
    mean = float(competition.train["label"].mean())
    write_json(folder / "metrics.json", {
        "dev": regression(labels, dev), "ranges": by_range(labels, dev),
        "baseline": {"prediction": mean, "mae": float(np.abs(labels - mean).mean()),
                     "rmse": float(np.sqrt(((labels - mean) ** 2).mean()))}, **facts})


def write_predictions(path: Path, frame: pd.DataFrame, values: np.ndarray) -> None:
    """Writes a frame's predictions, with the labels where it has them."""
    kept = frame[[column for column in ("id", "label") if column in frame]]
    write_table(path, kept.assign(prediction=values))


def write_table(path: Path, table: pd.DataFrame) -> None:
    """Writes a table of predictions."""
    write_text(path, table.to_csv(index=False, float_format="%.6f", lineterminator="\n"))


def report(metrics: dict) -> None:
    """Prints the dev scores with their intervals, the errors by range and the baseline."""
    print_scores("dev", metrics["dev"])
    if "oof" in metrics:
        print_scores("out of fold", metrics["oof"])
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
