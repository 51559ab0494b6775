"""A study of trials that several commands work on at once: storage, counting, killed workers.

    python run.py stage=tune tune.study=first tune.trials=20    # in one shell, and in another

A trial counts when it is complete, pruned, running, or failed with a reason of its own (user
attribute `reason`). One whose worker was stopped or killed has failed without a reason: it does
not count and its values wait to be tried again.
"""

import logging
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import optuna
from filelock import FileLock, Timeout
from optuna.distributions import CategoricalDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from pipeline.config import without_password
from pipeline.errors import UserError
from pipeline.space import Space

log = logging.getLogger(__name__)
BEAT, PATIENCE = 60, 600  # seconds: a database hears of every running trial, and gives it up
UNCLAIMED = timedelta(seconds=60)  # a trial has the name of its worker long before


def open_study(folder: Path, name: str, url: str, pruner: BasePruner, default: dict[str, Any],
               shape: dict[str, Any]) -> Study:
    """The study, made with the default values as its first trial or found as it was left.

    shape is what must be the same for trials to be comparable; raises UserError when the study
    was begun with another.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # a trial's end is told by its stage
    warnings.simplefilter("ignore", ExperimentalWarning)
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):  # two workers must not both make a database's tables
        study = optuna.create_study(storage=open_storage(folder, url), study_name=name,
                                    direction="maximize", pruner=pruner, load_if_exists=True)
        begun = study.user_attrs.get("shape")
        if begun is None:
            study.set_user_attr("shape", shape)
            study.enqueue_trial(default)
        elif begun != shape:
            differs = sorted(key for key in begun.keys() | shape.keys()
                             if begun.get(key) != shape.get(key))
            raise UserError(f"tune.study: expected a new name, got {name!r}, which was begun with "
                            f"another {', '.join(differs)}")
        revive(study, folder)
    return study


def open_storage(folder: Path, url: str) -> BaseStorage:
    """A journal file in the folder, or the database of the URL."""
    if not url:
        # The default lock, a link with a relative target, is never taken from a killed worker.
        path = str(folder / "journal.log")
        return JournalStorage(JournalFileBackend(path, lock_obj=JournalFileOpenLock(path)))
    try:
        return RDBStorage(url, heartbeat_interval=BEAT, grace_period=PATIENCE,
                          heartbeat_stale_trial_callback=try_again)
    except Exception as error:  # a driver's, an address's or a server's: each has its own class
        words = f"{type(error).__name__}: {error}".replace(url, without_password(url))
        raise UserError(f"tune.storage: expected a database that answers, got "
                        f"{without_password(url)}: {words}") from None


def make_pruner(name: str, startup: int) -> BasePruner:
    """Which trials are ended at an evaluation: worse than the median, or by brackets."""
    if name == "hyperband":
        return HyperbandPruner()
    return MedianPruner(n_startup_trials=startup) if name == "median" else NopPruner()


@contextmanager
def working(folder: Path) -> Iterator[str]:
    """A name for this worker, held by a lock that the system takes back however it ends."""
    name = uuid.uuid4().hex[:10]
    path = folder / f".worker-{name}.lock"
    with FileLock(path):
        yield name
    path.unlink(missing_ok=True)


def revive(study: Study, folder: Path) -> None:
    """Has the running trials of workers that no longer live tried again."""
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        path = folder / f".worker-{trial.user_attrs.get('worker')}.lock"
        if "worker" not in trial.user_attrs:
            # Either way: a clock may have been put back since.
            if abs(datetime.now() - trial.datetime_start) > UNCLAIMED:
                give_up(study, trial)
        elif path.exists():  # else on another machine: the database's heartbeat tells
            with suppress(Timeout), FileLock(path, timeout=0):
                give_up(study, trial)
                path.unlink(missing_ok=True)


def give_up(study: Study, trial: FrozenTrial) -> None:
    """Fails a running trial without a reason and puts its values back in the queue."""
    with suppress(ValueError):  # it has been told meanwhile
        study.tell(trial.number, state=TrialState.FAIL)
        log.info("trial %d: its worker was killed; its values are tried again", trial.number)
        try_again(study, trial)


def try_again(study: Study, trial: Trial | FrozenTrial) -> None:
    """Puts a trial's values back in the queue."""
    if values := trial.params or trial.system_attrs.get("fixed_params"):
        study.enqueue_trial(values, user_attrs={"again": trial.number})


def counts(trial: FrozenTrial) -> bool:
    """Whether it is one of the study's trials, not a waiting or an interrupted one."""
    if trial.state == TrialState.FAIL:
        return "reason" in trial.user_attrs
    return trial.state != TrialState.WAITING


def counted(study: Study) -> list[FrozenTrial]:
    """The trials that count, oldest first."""
    return [trial for trial in study.get_trials(deepcopy=False) if counts(trial)]


def place_of(study: Study, number: int) -> int:
    """How many trials that count came before the one of this number.

    Unlike the number it is the same in a study that was interrupted as in one that was not.
    """
    return sum(trial.number < number for trial in counted(study))


def suggested(trial: Trial, space: Space) -> dict[str, Any]:
    """The trial's value of every key of the space."""
    values = {}
    for name, found in space.items():
        if isinstance(found, CategoricalDistribution):
            values[name] = trial.suggest_categorical(name, found.choices)
        elif isinstance(found, optuna.distributions.IntDistribution):
            values[name] = trial.suggest_int(name, found.low, found.high, step=found.step,
                                             log=found.log)
        else:
            values[name] = trial.suggest_float(name, found.low, found.high, step=found.step,
                                               log=found.log)
    return values


def sampler(seed: int, place: int, startup: int) -> optuna.samplers.BaseSampler:
    """Tree-structured Parzen estimators, the values of a place in the study drawn by its own seed.

    So a study that is broken off and continued draws what an unbroken one draws.
    """
    return optuna.samplers.TPESampler(
        seed=(seed * 1_000_003 + place) % 2**32, n_startup_trials=startup, multivariate=True,
        constant_liar=True)


def same_values(study: Study, trial: Trial) -> FrozenTrial | None:
    """A complete trial with the same values, whose result is this one's too."""
    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return next((other for other in done if other.params == trial.params), None)


def best_trials(study: Study, count: int) -> list[FrozenTrial]:
    """The `count` complete trials of the highest values, each of other parameters, best first."""
    found: list[FrozenTrial] = []
    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    for trial in sorted(done, key=lambda trial: (-trial.value, trial.number)):
        if all(trial.params != other.params for other in found):
            found.append(trial)
    return found[:count]


def untuned(study: Study, default: dict[str, Any]) -> FrozenTrial | None:
    """The complete trial of the default values, if there is one."""
    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return next((trial for trial in done if trial.params == default), None)

