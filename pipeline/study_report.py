"""What a study found: the table of its trials, its figures, the best settings as a preset.

    python run.py stage=tune tune.study=first    # a finished study: writes them anew
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from optuna.importance import FanovaImportanceEvaluator, get_param_importances
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from pipeline.config import KEYS
from pipeline.files import written_aside
from pipeline.space import Space, described
from pipeline.study import counts

log = logging.getLogger(__name__)
SCORES = ("pearson", "low", "high", "spearman")


def table(study: Study) -> pd.DataFrame:
    """One row a trial that was begun: state, reason, scores, what it cost, its run, its values."""
    rows = []
    for trial in study.get_trials(deepcopy=False):
        if trial.state == TrialState.WAITING:
            continue
        found, state = trial.user_attrs, trial.state.name.lower()
        reason = found.get("reason", "")
        if not counts(trial):
            state, reason = "interrupted", "its worker was stopped or killed"
        duration = trial.duration.total_seconds() if trial.duration else float("nan")
        rows.append({"trial": trial.number, "state": state, "reason": reason,
                     "value": trial.value, **{name: found.get(name) for name in SCORES},
                     "evaluations": trial.last_step or 0, "seconds": round(duration, 1),
                     "run": found.get("run", ""), **trial.params})
    return pd.DataFrame(rows)


def importances(study: Study) -> dict[str, float]:
    """Each key's share of the scores' variance (fANOVA, Hutter et al. 2014), largest first.

    Empty with fewer than two different scores.
    """
    values = {trial.value for trial in study.get_trials(states=(TrialState.COMPLETE,))}
    if len(values) < 2:
        return {}
    return get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=0))


def draw(study: Study, folder: Path, score: str) -> None:
    """Writes history.png, slice.png, parallel.png and importance.png; says what it leaves out."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker
    from optuna.visualization import matplotlib as plots

    def save(name: str, plot: Callable[[], Any], width: float) -> None:
        with pyplot.rc_context():  # Optuna sets a style of its own
            axes = np.ravel(plot())
            figure = axes[0].figure
            figure.set_size_inches(width, 5)
            for part in axes:
                if part.get_xscale() == "log":  # narrow: labels between the powers overlap
                    part.xaxis.set_minor_formatter(ticker.NullFormatter())
                if part.get_xlabel() == "Trial":
                    part.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
            with written_aside(folder / f"{name}.png") as aside:
                figure.savefig(aside, format="png", dpi=120, bbox_inches="tight")
            pyplot.close(figure)

    keys = sorted(study.best_trial.params)
    save("history", lambda: plots.plot_optimization_history(study, target_name=score), 8)
    save("slice", lambda: plots.plot_slice(study, target_name=score), 3.2 * len(keys) + 1.5)
    found = importances(study)
    if not found:
        log.info("no figures of importance: they need two trials of different scores")
        return
    save("parallel", lambda: plots.plot_parallel_coordinate(study, target_name=score),
         2 * len(keys) + 4)
    save("importance", lambda: plots.plot_param_importances(
        study, evaluator=FanovaImportanceEvaluator(seed=0), target_name=score), 8)


def interval_of(trial: FrozenTrial, metric: str) -> str:
    """A trial's dev score in words, with the interval of its Pearson."""
    found = trial.user_attrs
    words = f"dev Pearson {found['pearson']:.4f} [{found['low']:.4f}, {found['high']:.4f}]"
    return words if metric == "pearson" else f"dev Spearman {trial.value:.4f}, {words}"


def preset_text(head: list[str], settings: dict[str, Any], tuned: dict[str, str]) -> str:
    """A preset of dotted keys and values; tuned keys have their comments, the others their help."""
    lines, section = [f"# {line}" for line in head], ""
    for name, value in settings.items():
        before, dot, leaf = name.rpartition(".")
        if before != section:
            section = before
            lines.append(f"{section}:")
        written = yaml.safe_dump(value, default_flow_style=True, width=float("inf"),
                                 allow_unicode=True).split("\n")[0]
        comment = tuned.get(name) or f"as in the study: {KEYS[name][1]['help']}"
        lines.append(f"{'  ' * bool(dot)}{leaf}: {written}  # {comment}")
    return "\n".join(lines) + "\n"


def tuned_comments(space: Space, default: dict[str, Any], score: str) -> dict[str, str]:
    """What best.yaml says of every tuned key."""
    return {name: f"tuned: {score}; untuned {default[name]}; searched {described(found)}"
            for name, found in space.items()}
