"""How a run and the stages before it were trained: losses, norms, rates, evaluations, geometry."""

from pathlib import Path

import numpy as np

from pipeline.data import Competition
from pipeline.diagnostics.evidence import chain, read_settings
from pipeline.diagnostics.spikes import batches, spikes, trend
from pipeline.history import read_history
from pipeline.runs import models, read_manifest

STEP = ("loss", "grad_norm", "lr")
MOST = 2000  # points of a curve; a longer one is thinned, its spikes stay


def curves(folder: Path, competition: Competition) -> list[dict]:
    """One entry a stage of the chain that led to the run, first to last; with folds one a fold."""
    return [stage(part, competition) for path in chain(folder)
            for part in (model.parent for model in models(path))]


def stage(folder: Path, competition: Competition) -> dict:
    """A run's series by name, and its loss spikes with the texts of their batches.

    batch of a spike is None where the batches cannot be made anew.
    """
    manifest, lines = read_manifest(folder), read_history(folder / "history.jsonl")
    steps = [line for line in lines if all(np.isfinite(number(line.get(name))) for name in
                                           ("step", "loss"))]
    losses = np.array([line["loss"] for line in steps], float)
    places = np.array([line["step"] for line in steps], int)
    found = spikes(places, losses)
    made = batches(folder, manifest, read_settings(folder / "config.yaml"),
                   competition) if found else None
    for spike in found:
        spike["batch"] = made and made.batch(spike["step"])
    kept = thinned(places, {spike["step"] for spike in found})
    series = {name: [number(steps[row].get(name)) for row in kept] for name in STEP}
    return {"stage": manifest["stage"], "run": folder.name, "steps": len(steps),
            "seconds": manifest.get("seconds"), "step": places[kept].tolist(), **series,
            "trend": trend(losses)[kept].tolist() if len(losses) else [],
            "eval": named(lines, "eval"), "geometry": named(lines, "geometry"), "spikes": found}


def number(value: object) -> float:
    """A history's value, in which what was no number is null."""
    return float("nan") if value is None else float(value)


def thinned(steps: np.ndarray, always: set[int]) -> np.ndarray:
    """Places of at most MOST steps, evenly, and of those that always stay."""
    even = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), MOST)).round().astype(int))
    return np.union1d(even, np.flatnonzero(np.isin(steps, list(always)))).astype(int)


def named(lines: list[dict], part: str) -> dict[str, dict]:
    """The series below `part` of the history by name, each with steps and values."""
    found: dict[str, dict] = {}
    for line in lines:
        for name, value in (line.get(part) or {}).items():
            series = found.setdefault(name, {"step": [], "value": []})
            series["step"].append(line["step"])
            series["value"].append(number(value))
    return found
