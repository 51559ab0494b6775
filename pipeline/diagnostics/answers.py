"""The answers of stage=dynamics in plain sentences with numbers."""

import pandas as pd

from pipeline.diagnostics.phases import FEWEST
from pipeline.diagnostics.trajectories import FEWEST_CELLS, METRICS

FALSE_ALARMS = 0.05  # share of series without phases in which one is found (tests/test_phases.py)


def plain(name: str) -> str:
    """A column's name in words."""
    return name.replace("_", " ")


def span(found: dict) -> str:
    """A correlation with its interval."""
    return f"{found['value']:+.2f} [{found['low']:+.2f}, {found['high']:+.2f}]"


def excludes_zero(found: pd.DataFrame) -> pd.Series:
    """Whether the interval lies on one side of 0."""
    return (found["low"] > 0) | (found["high"] < 0)


def on_phases(found: list[dict]) -> list[str]:
    """Are there phases? found: what `phases` says of each cell."""
    series = [points for cell in found for points in cell["points"].values() if points is not None]
    total = sum(len(cell["points"]) for cell in found)
    if not series:
        return [f"Phases: no series could be examined; that takes {FEWEST} measurements or more: "
                "raise the number of steps or lower simcse.geometry_every."]
    changed = sum(bool(points) for points in series)
    words = [f"Phases: {changed} of {len(series)} series have a change point; up to "
             f"{FALSE_ALARMS * len(series):.0f} would be found if none had phases."]
    if total > len(series):
        words.append(f"{total} series were recorded, {total - len(series)} of them are too short "
                     "or undefined.")
    by_metric = {name: sum(bool(cell["points"].get(name)) for cell in found) for name in METRICS}
    if changed:
        words.append("By metric: " + ", ".join(f"{plain(name)} in {count} of {len(found)} cells"
                                               for name, count in by_metric.items() if count) + ".")
    shared = [(place + 1, step) for place, cell in enumerate(found) for step in cell["agreed"]]
    where = ", ".join(f"step {step} (cell {place})" for place, step in shared)
    number = len({place for place, _ in shared})
    words.append("Two kinds of metrics (alignment, spread, clusters, weights, dev Spearman) "
                 f"change together in {number} of {len(found)} cells"
                 + (f": {where}." if shared else ": this training has no phases that could be "
                                                 "told from a smooth course."))
    return words


def on_movers(found: list[dict]) -> list[str]:
    """What moves the phases? found: what `movers` says."""
    if not any(row["n"] for row in found if row["what"] == "first_change"):
        return ["What moves the phases: no cell has any, so there is nothing to be moved by "
                + ", ".join(dict.fromkeys(plain(row["setting"]) for row in found)) + "."]
    words = []
    for row in found:
        what = {"changes": "the number of change points",
                "first_change": "the step of the first change point"}[row["what"]]
        name = plain(row["setting"])
        if row["n"] < FEWEST_CELLS:
            words.append(f"{name}: only {row['n']} cells have {what}; {FEWEST_CELLS} are needed "
                         "to say what moves it.")
        elif not pd.notna(row["value"]):
            words.append(f"{name}: {what} is the same in all {row['n']} cells.")
        else:
            clear = row["low"] > 0 or row["high"] < 0
            words.append(f"{name}: rank correlation with {what} {span(row)} over {row['n']} cells"
                         + (": it moves it." if clear else ": no effect can be told from chance."))
    return words


def on_prediction(found: pd.DataFrame) -> list[str]:
    """Does the geometry at step k predict the last dev Spearman? found: of `prediction`."""
    tested = found[found["value"].notna()]
    if tested.empty:
        return [f"Prediction: not defined; it takes {FEWEST_CELLS} cells that differ at a common "
                "step."]
    clear = excludes_zero(tested)
    words = [f"Prediction of the last dev Spearman over {int(tested['n'].max())} cells: "
             f"{int(clear.sum())} of {len(tested)} correlations (metric at a step) have an "
             f"interval without 0; chance alone gives about {0.05 * len(tested):.0f}, and with so "
             "few cells somewhat more."]
    for name, part in tested.groupby("metric", sort=False):
        lasting = excludes_zero(part)[::-1].cummin()[::-1]  # from here on to the last step
        if lasting.any():
            first = part[lasting].iloc[0]
            words.append(f"{plain(name)}: predicts from step {first['step']} on: {span(first)}.")
        else:
            best = part.loc[part["value"].abs().idxmax()]
            words.append(f"{plain(name)}: does not predict it steadily; strongest at step "
                         f"{best['step']}: {span(best)}.")
    return words


def on_stopping(cells: pd.DataFrame) -> list[str]:
    """Where would early stopping have been right? cells: a row each, with `stopping`'s columns."""
    early = cells[cells["lost"] > 0]
    if early.empty:
        return ["Early stopping: every cell was best at its last step."]
    worst = early.loc[early["lost"].idxmax()]
    at_start = int((early["best_step"] == 0).sum())
    words = [f"Early stopping: {len(early)} of {len(cells)} cells were best before their last "
             f"step, the median at step {early['best_step'].median():.0f}; going on lost "
             f"{early['lost'].mean():.4f} of dev Spearman on average and {worst['lost']:.4f} at "
             f"most (cell {worst['cell']:.0f}, step {worst['best_step']:.0f}). The best step is "
             "chosen on dev itself, so that small losses mean nothing."]
    if at_start:
        words.append(f"{at_start} cells were best at step 0: this training did not help there.")
    return words
