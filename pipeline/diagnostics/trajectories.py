"""What a traced simcse run recorded, a row per measured step, and what a grid of them says.

A trajectory has the columns step, METRICS and, for every layer, `end LAYER` and `start LAYER`: the
cosines of its weight change with the whole change and with the first weights.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from pipeline.diagnostics.phases import agreed, change_points
from pipeline.diagnostics.sketches import directions, read_sketches
from pipeline.history import read_history
from pipeline.metrics import interval, spearman

GEOMETRY = ("alignment", "uniformity", "mean_cosine", "effective_rank", "adjusted_rand",
            "adjusted_mutual_information")
METRICS = (*GEOMETRY, "change_with_end", "change_with_start", "dev_spearman")
# Several numbers of one thing agree with each other without meaning more than one of them does.
KINDS = {"alignment": "alignment", "uniformity": "spread", "mean_cosine": "spread",
         "effective_rank": "spread", "adjusted_rand": "clusters",
         "adjusted_mutual_information": "clusters", "change_with_start": "weights",
         "dev_spearman": "dev Spearman"}
FEWEST_CELLS = 5  # for a correlation over cells


def read_trajectory(folder: Path) -> pd.DataFrame:
    """The trajectory of a traced run; change_with_end and _start are means over the layers."""
    rows = {line["step"]: {name: line["geometry"][name] for name in GEOMETRY}
            | {"dev_spearman": line["eval"]["spearman"]}
            for line in read_history(folder / "history.jsonl")
            if "geometry" in line and "eval" in line}
    table = pd.DataFrame.from_dict(rows, orient="index", dtype=float)
    steps, layers, sketches = read_sketches(folder)
    parts = {}
    for name, cosines in zip(("end", "start"), directions(sketches), strict=True):
        parts[f"change_with_{name}"] = cosines.mean(axis=1)
        parts |= {f"{name} {layer}": cosines[:, place] for place, layer in enumerate(layers)}
    table = table.join(pd.DataFrame(parts, index=steps))
    layered = [name for name in table if name not in METRICS]
    return table[[*METRICS, *layered]].rename_axis("step").reset_index()


def phases(trajectory: pd.DataFrame) -> dict:
    """The steps at which each metric's series changes phase, and those on which two kinds agree.

    `points` has None for a series that could not be examined. The cosine with the whole change is
    left out: it is 1 at the end by construction.
    """
    places = {name: change_points(trajectory[name].to_numpy(float)) for name in KINDS}
    steps = trajectory["step"].to_numpy()
    kinds: dict[str, list[int]] = {}
    for name, found in places.items():
        kinds.setdefault(KINDS[name], []).extend(found or [])
    shared = agreed(kinds, len(steps))
    return {"points": {name: None if found is None else [int(steps[place]) for place in found]
                       for name, found in places.items()},
            "agreed": [int(steps[place]) for place in shared]}


def stopping(trajectory: pd.DataFrame) -> dict:
    """The step of the best dev Spearman and what was lost by going on to the last one."""
    scores = trajectory["dev_spearman"]
    if scores.isna().all():
        return {"best_step": -1, "best": float("nan"), "final": float("nan"), "lost": float("nan")}
    best, final = float(scores.max()), float(scores.iloc[-1])
    return {"best_step": int(trajectory["step"][scores.idxmax()]), "best": best, "final": final,
            "lost": best - final}


def rank_correlation(x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Spearman's correlation over cells with its bootstrap interval; NaN with too few cells."""
    kept = np.isfinite(x) & np.isfinite(y)
    if kept.sum() < FEWEST_CELLS:
        return {"n": int(kept.sum()), **dict.fromkeys(("value", "low", "high"), float("nan"))}
    return {"n": int(kept.sum()), **interval(spearman, x[kept], y[kept])}


def prediction(trajectories: list[pd.DataFrame]) -> pd.DataFrame:
    """Over the cells, how each metric at each common step ranks them by their last dev Spearman.

    Columns metric, step, n (cells), value (Spearman's correlation), low, high. At step 0 all cells
    are the same encoder and nothing is defined.
    """
    final = np.array([table["dev_spearman"].iloc[-1] for table in trajectories])
    common = set.intersection(*(set(table["step"]) for table in trajectories))
    rows = []
    for name in METRICS:
        series = [table.set_index("step")[name] for table in trajectories]
        for step in sorted(common - {0}):
            values = np.array([part[step] for part in series], float)
            rows.append({"metric": name, "step": step, **rank_correlation(values, final)})
    return pd.DataFrame(rows)


def movers(cells: pd.DataFrame, settings: list[str]) -> list[dict]:
    """Rank correlation over the cells of each varied setting with what became of the phases.

    cells has a column per setting, `changes` (number of agreed change points) and `first_change`
    (step of the first one, NaN without).
    """
    return [{"setting": name, "what": what,
             **rank_correlation(cells[name].to_numpy(float), cells[what].to_numpy(float))}
            for name in settings if cells[name].nunique() > 1
            for what in ("changes", "first_change")]
