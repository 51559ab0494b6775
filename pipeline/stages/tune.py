"""A search for a training stage's best settings: Optuna trials, shared by any number of commands.

    python run.py stage=tune tune.trials=30    # give it in two shells: they share the work
    python run.py stage=tune tune.stage=simcse tune.metric=spearman "chain=[simcse]"

Every trial is a run of the stage, with the same seed; the first is the untuned configuration. The
best few are trained with more seeds, since one run's noise is as large as the gain sought. The
same command goes on with a study that was stopped. Of trials that are out of the running the
record and the predictions are kept, not the model.
"""

import logging
import os
import re
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

from optuna.study import Study
from optuna.trial import TrialState

from pipeline.config import KEYS, SAMPLE, Config
from pipeline.data import read_competition
from pipeline.encoder import fingerprint
from pipeline.errors import UserError
from pipeline.files import write_json, write_text
from pipeline.hub import located
from pipeline.nli import read_nli
from pipeline.sections import Tune
from pipeline.space import Space, described, read_space
from pipeline.stages import finalists, nli, simcse
from pipeline.stages.trials import Failed, attempt, changed, trim
from pipeline.study import (
    best_trials,
    counted,
    make_pruner,
    open_study,
    revive,
    working,
)
from pipeline.study_report import (
    draw,
    importances,
    interval_of,
    preset_text,
    table,
    tuned_comments,
)

log = logging.getLogger(__name__)


def run(config: Config) -> None:
    """Works on the study until it has its trials; the last worker trains the finalists."""
    settings = config.tune
    check_settings(config)
    space = read_space(space_file(settings), sections(config), config)
    if settings.stage == "nli" and (config.nli.objective != "contrastive"
                                    or "nli.objective" in space):
        raise UserError("tune.stage: expected a stage with a dev score, got nli with "
                        "nli.objective=classification")
    if config.sts.folds or "sts.folds" in space:
        raise UserError("sts.folds: expected 0 with tune, whose trials are single models (give the "
                        "winner its folds afterwards), got them")
    default = {key: value_of(config, key) for key in space}
    name = settings.study or f"{config.name}-{settings.stage}"
    folder = Path(config.runs_dir) / "tune" / name
    shape = shape_of(config, space)
    study = open_study(folder, name, settings.storage,
                       make_pruner(settings.pruner, settings.startup), default, shape)
    log.info("tune: study %s, %d of %d trials done or running", name, len(counted(study)),
             settings.trials)
    for key, found in space.items():
        log.info("tune: %s: %s (untuned %s)", key, described(found), default[key])
    with working(folder) as worker:
        while len(counted(study)) < settings.trials:
            study.optimize(lambda trial: attempt(config, study, space, default, trial, worker),
                           n_trials=1, catch=(Failed,), gc_after_trial=True)
            trim(config, study, space, default)
            revive(study, folder)
    running = study.get_trials(states=(TrialState.RUNNING,))
    if running:
        log.info("tune: other workers are still at %d trials: the last one to end writes the "
                 "result; so does the same command", len(running))
        return
    conclude(config, study, space, default, folder)


def check_settings(config: Config) -> None:
    """Refuses what would only fail, or have no effect, trials later."""
    settings, seeds = config.tune, config.tune.finalist_seeds
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise UserError("tune: expected one process, got several of one command; give the command "
                        "several times for several workers")
    if settings.study and not re.fullmatch(r"[\w-][\w.-]{0,69}", settings.study):
        raise UserError("tune.study: expected at most 70 letters, digits, '-', '_' and '.', got "
                        f"{settings.study!r}")
    if settings.stage not in config.chain:
        raise UserError(f"chain: expected {settings.stage} in it, which is tuned, got "
                        f"[{','.join(config.chain)}]")
    if (not all(seed.isdecimal() and int(seed) < 2**32 for seed in seeds)
            or len({config.seed, *map(int, seeds)}) < len(seeds) + 1):
        raise UserError(f"tune.finalist_seeds: expected different whole numbers other than seed "
                        f"({config.seed}), got [{','.join(seeds)}]")


def space_file(settings: Tune) -> Path:
    """The file of the search space."""
    shipped = SAMPLE.parent.parent / "configs" / "spaces"
    return Path(settings.space) if settings.space else shipped / f"{settings.stage}.yaml"


def sections(config: Config) -> list[str]:
    """The sections of the configuration that shape the tuned stage's result."""
    return [*config.chain[:config.chain.index(config.tune.stage) + 1], "encoder"]


def value_of(config: Config, key: str) -> Any:
    """A dotted key's value."""
    section, dot, leaf = key.rpartition(".")
    return getattr(getattr(config, section) if dot else config, leaf)


def shape_of(config: Config, space: Space) -> dict[str, Any]:
    """What makes trials comparable: the data and every setting that stays the same."""
    competition, stages = read_competition(Path(config.data.dir)), sections(config)[:-1]
    data = competition.hashes()
    if "nli" in stages:
        data |= nli.hashes(*read_nli(Path(config.data.nli_dir)))
    if "simcse" in stages:
        data["sentences"] = simcse.checked_sentences(
            [competition.train, competition.dev, competition.test],
            [Path(name) for name in config.data.extra], 0)
    encoder = asdict(config.encoder) | {"path": fingerprint(located(config.encoder.path))}
    if "encoder.path" in space:
        encoder = asdict(config.encoder)
    return {"tune.stage": config.tune.stage, "tune.metric": config.tune.metric,
            "tune.space": {key: described(found) for key, found in space.items()},
            "seed": config.seed, "precision": config.precision, "chain": sections(config),
            "encoder": encoder,
            "data": data,
            **{name: asdict(getattr(config, name)) for name in stages}}


def conclude(config: Config, study: Study, space: Space, default: dict[str, Any],
             folder: Path) -> None:
    """Trains the finalists with more seeds; writes table, figures, sentences and best.yaml."""
    metric, name = config.tune.metric, config.tune.metric.capitalize()
    write_text(folder / "trials.csv", table(study).to_csv(index=False))
    if not best_trials(study, 1):
        reasons = [trial.user_attrs.get("reason", "pruned") for trial in counted(study)]
        raise UserError(f"tune: expected a trial with a score, got none of {len(reasons)}; the "
                        f"last one: {reasons[-1]}")
    draw(study, folder, f"dev {name}")
    found, labels, said = finalists.train(config, study, default)
    seeds = [config.seed, *map(int, config.tune.finalist_seeds)]
    shares = importances(study)
    said = [in_words(study), *finalists.table(found, seeds, metric),
            *finalists.compare(found, labels), *said]
    if shares:
        done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        said.append("importance (share of the variance of the trials' scores"
                    + (", too few of them to be trusted" if len(done) < 10 else "") + "): "
                    + ", ".join(f"{key} {share:.2f}" for key, share in shares.items()))
    write_json(folder / "study.json", {
        "study": study.study_name, "stage": config.tune.stage, "metric": metric, "seeds": seeds,
        "untuned": default, "best": found[0].trial.params, "importance": shares, "said": said,
        "finalists": [{"trial": item.trial.number, "values": item.trial.params, "mean": item.mean,
                       "sd": item.sd, "scores": item.scores, "runs": item.runs}
                      for item in found]})
    write_text(folder / "best.yaml", best(config, study, space, default, found[0], folder))
    for line in said:
        log.info("%s", line)
    log.info("study: %s", folder)
    log.info("best settings: %s", command(config, folder))


def in_words(study: Study) -> str:
    """How the study's trials ended."""
    done = counted(study)
    ends = [sum(trial.state == state for trial in done)
            for state in (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)]
    return "study {}: {} trials, {} complete, {} pruned, {} failed".format(
        study.study_name, len(done), *ends)


def best(config: Config, study: Study, space: Space, default: dict[str, Any],
         winner: finalists.Finalist, folder: Path) -> str:
    """The text of best.yaml: every setting that shapes the winner's run."""
    found = interval_of(winner.trial, config.tune.metric)
    head = [f"{winner.name} of study {study.study_name}: {found}, seed {config.seed}",
            *([f"mean over {len(winner.scores)} seeds: dev {config.tune.metric.capitalize()} "
               f"{winner.mean:.4f}, SD {winner.sd:.4f}"] if len(winner.scores) > 1 else []),
            command(config, folder)]
    part = changed(config, winner.trial.params, config.seed, study.study_name)
    part.chain = sections(config)[:-1]
    shaping = ["chain", "seed", "precision"]
    shaping += [key for section in ["encoder", *part.chain] for key in KEYS
                if key.startswith(f"{section}.")]
    return preset_text(head, {key: value_of(part, key) for key in shaping},
                       tuned_comments(space, default, found))


def command(config: Config, folder: Path) -> str:
    """The command that runs the tuned stage with the best settings on the same data."""
    words = ["python", "run.py", f"stage={config.tune.stage}", f"preset={folder / 'best.yaml'}"]
    for key in ("data.dir", "data.nli_dir", "data.extra", "runs_dir"):
        value = value_of(config, key)
        if value != KEYS[key][0] and config.trial != "always":
            text = "[" + ",".join(value) + "]" if KEYS[key][0] == [] else value
            words.append(f"{key}={text}")
    return shlex.join(words)
