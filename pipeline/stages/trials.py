"""One trial of a study: its run, its score, why it has none, and what is kept of it on disk.

    python run.py stage=tune
"""

import json
import logging
import math
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from typing import Any

from optuna import TrialPruned
from optuna.distributions import CategoricalDistribution
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from pipeline.config import Config
from pipeline.errors import NotFinite, OutOfMemory, Pruned, UserError
from pipeline.runs import Run, keep_record, read_manifest
from pipeline.sections import Tune
from pipeline.space import Space
from pipeline.study import (
    best_trials,
    place_of,
    same_values,
    sampler,
    suggested,
    try_again,
    untuned,
)
from pipeline.training import Watch

log = logging.getLogger(__name__)


class Failed(Exception):
    """A trial that gave no score: its reason is recorded and the study goes on."""


def changed(config: Config, values: dict[str, Any], seed: int, name: str) -> Config:
    """The configuration of a trial's run."""
    part = deepcopy(config)
    part.stage, part.seed, part.name = config.tune.stage, seed, f"tune-{name}"
    part.tune = Tune()  # a run does not depend on the study, nor should it know its storage
    for key, value in values.items():
        section, _, leaf = key.partition(".")
        setattr(getattr(part, section), leaf, value)
    return part


def complete(part: Config, watch: Watch | None = None) -> Run:
    """The finished run of the tuned stage."""
    return import_module(f"pipeline.stages.{part.stage}").complete(part, watch)


def attempt(config: Config, study: Study, space: Space, default: dict[str, Any], trial: Trial,
            worker: str) -> float:
    """One trial from its values to its dev score; raises TrialPruned or Failed."""
    trial.set_user_attr("worker", worker)
    place, settings = place_of(study, trial.number), config.tune
    if place >= settings.trials:  # another worker began the last one at the same moment
        raise Failed
    study.sampler = sampler(config.seed, place, settings.startup)
    values = suggested(trial, space)
    log.info("trial %d (%d of %d): %s", trial.number, place + 1, settings.trials,
             " ".join(f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}"
                      for key, value in values.items()))
    try:
        return score(config, study, trial, values)
    except Pruned as error:
        trial.set_user_attr("run", str(error.folder))
        keep_record(error.folder, "pruned")
        log.info("trial %d: %s", trial.number, error)
        raise TrialPruned(str(error)) from None
    except (UserError, NotFinite, OutOfMemory) as error:
        if isinstance(error, UserError) and values == default:
            try_again(study, trial)  # the command's own settings are wrong, not the trial's
            raise
        fail(trial, " ".join(str(error).split()))
        if isinstance(error, NotFinite):
            trial.set_user_attr("run", str(error.folder))
            keep_record(error.folder, "failed")
        raise Failed from None
    except Failed:
        raise
    except BaseException:  # Ctrl-C, SIGTERM, a full disk: the next command goes on
        try_again(study, trial)
        raise


def fail(trial: Trial, reason: str) -> None:
    """Records why a trial gave no score."""
    trial.set_user_attr("reason", reason)
    log.warning("trial %d failed: %s", trial.number, reason)


def score(config: Config, study: Study, trial: Trial, values: dict[str, Any]) -> float:
    """The dev score of the trial's run, or of an earlier trial with the same values."""
    metric = config.tune.metric
    if twin := same_values(study, trial):
        for name in ("run", "pearson", "low", "high", "spearman"):
            trial.set_user_attr(name, twin.user_attrs[name])
        log.info("trial %d: the same values as trial %d", trial.number, twin.number)
        return twin.value
    made = complete(changed(config, values, config.seed, study.study_name), watcher(trial, metric))
    dev = json.loads((made.folder / "metrics.json").read_text(encoding="utf-8"))["dev"]
    trial.set_user_attr("run", str(made.folder))
    found = dev[metric]["value"]
    if found is None or not math.isfinite(found):
        fail(trial, f"dev {metric.capitalize()} is no number: predictions or labels are constant")
        raise Failed
    for name, value in (("pearson", "value"), ("low", "low"), ("high", "high")):
        trial.set_user_attr(name, dev["pearson"][value])
    trial.set_user_attr("spearman", dev["spearman"]["value"])
    best = best_trials(study, 1)
    log.info("trial %d: dev %s %.4f (%s)", trial.number, metric.capitalize(), found,
             "the best so far" if not best or found > best[0].value
             else f"best {best[0].value:.4f}, trial {best[0].number}")
    return found


def watcher(trial: Trial, metric: str) -> Watch:
    """Reports a training's evaluations to the study, which may end it; folds count on."""
    counted_before, last = 0, 0

    def watch(number: int, evaluation: dict[str, float]) -> bool:
        nonlocal counted_before, last
        if number <= last:
            counted_before += last
        last = number
        trial.report(evaluation[metric], counted_before + number)
        return trial.should_prune()

    return watch


def trim(config: Config, study: Study, space: Space, default: dict[str, Any]) -> None:
    """Drops the models of trials that are out of the running, and those of stages before them.

    Only runs that the study made are touched. A stage before the tuned one whose settings are
    drawn from choices alone is kept: its values come again.
    """
    runs_dir, stage = Path(config.runs_dir), config.tune.stage
    kept = [*best_trials(study, config.tune.finalists), untuned(study, default)]
    kept = [trial for trial in kept if trial]
    busy = study.get_trials(deepcopy=False, states=(TrialState.RUNNING, TrialState.WAITING))
    outer = [key for key in space if not key.startswith(f"{stage}.")]
    is_drop = not all(isinstance(space[key], CategoricalDistribution) for key in outer)

    def outside(trial: FrozenTrial) -> list[Any]:
        values = trial.params or trial.system_attrs.get("fixed_params", {})
        return [values.get(key) for key in outer]

    def drop(folder: Path) -> None:
        is_ours = folder.name.startswith(f"tune-{study.study_name}-")
        if is_ours and read_manifest(folder).get("status") == "complete":
            keep_record(folder, "scored")

    needed = {trial.user_attrs["run"] for trial in kept}
    for trial in study.get_trials(deepcopy=False):
        if "run" not in trial.user_attrs or trial.user_attrs["run"] in needed:
            continue
        folder = Path(trial.user_attrs["run"])
        drop(folder)
        if is_drop and all(outside(trial) != outside(other) for other in [*kept, *busy]):
            while before := read_manifest(folder).get("shape", {}).get("start", {}).get("run"):
                folder = next(iter(runs_dir.glob(f"*/*-{before}")), Path())
                drop(folder)
