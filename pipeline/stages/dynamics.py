"""How the space moves during contrastive training: phases, what moves them, what they are worth.

    python run.py stage=dynamics dynamics.temperatures=[0.02,0.05,0.2] simcse.max_steps=400

A grid over temperature × dropout (× batch size × learning rate). Every cell is a simcse run that is
evaluated at each measurement of the geometry and never stopped early; finished cells are reused and
a broken grid goes on where it was.
"""

import logging
from copy import deepcopy
from itertools import product
from pathlib import Path

import pandas as pd

from pipeline import processes, sharding
from pipeline.config import KEYS, Config
from pipeline.diagnostics import answers, drawings
from pipeline.diagnostics.trajectories import (
    movers,
    phases,
    prediction,
    read_trajectory,
    stopping,
)
from pipeline.errors import UserError
from pipeline.files import write_json, write_text
from pipeline.layers import check_limits
from pipeline.runs import Run, identity
from pipeline.stages import simcse
from pipeline.stages.chain import read_data

log = logging.getLogger(__name__)
GRID = {"temperature": "temperatures", "dropout": "dropouts", "batch_size": "batch_sizes",
        "learning_rate": "learning_rates"}  # keys of simcse and of dynamics


def run(config: Config) -> None:
    """Completes the grid's cells, then says what moved and writes it."""
    if sharding.wanted():
        raise UserError("accelerate's configuration: expected data-parallel training for dynamics, "
                        "which sketches whole weights, got FSDP")
    cells = grid(config)
    check_batches(config, [cell["batch_size"] for cell in cells])
    runs: list[Run] = []
    for place, cell in enumerate(cells):
        log.info("dynamics: cell %d of %d: %s", place + 1, len(cells), words(cell))
        runs.append(simcse.complete(cell_config(config, cell), traced=True))
    if processes.rank() > 0:
        return
    trajectories = [read_trajectory(run.folder) for run in runs]
    found = [phases(table) for table in trajectories]
    rows = pd.DataFrame([
        {"cell": place + 1, **cell, **stopping(table), "changes": len(part["agreed"]),
         "first_change": part["agreed"][0] if part["agreed"] else float("nan")}
        for place, (cell, table, part) in enumerate(zip(cells, trajectories, found, strict=True))])
    moved, predicted = movers(rows, list(GRID)), prediction(trajectories)
    sentences = [*answers.on_phases(found), *answers.on_movers(moved),
                 *answers.on_prediction(predicted), *answers.on_stopping(rows)]
    folder = (Path(config.runs_dir) / "dynamics"
              / f"{config.name}-{identity({'runs': [run.identity for run in runs]})}")
    write_json(folder / "dynamics.json", {
        "cells": [row | {"run": str(run.folder), **part}
                  for row, run, part in zip(rows.to_dict("records"), runs, found, strict=True)],
        "movers": moved, "prediction": predicted.to_dict("records"), "answers": sentences})
    write_text(folder / "table.csv", rows.to_csv(index=False))
    write_text(folder / "trajectories.csv", pd.concat(
        [table.assign(cell=place + 1) for place, table in enumerate(trajectories)]
    ).set_index("cell").to_csv())
    draw(trajectories, [words(varied(cell, rows)) for cell in cells], found, predicted, folder)
    log.info("%s", rows.to_string(index=False, float_format=lambda value: f"{value:.4g}"))
    for sentence in sentences:
        log.info("%s", sentence)
    log.info("dynamics: %s", folder)


def draw(trajectories: list[pd.DataFrame], labels: list[str], found: list[dict],
         predicted: pd.DataFrame, folder: Path) -> None:
    """The four figures."""
    drawings.draw_figure_two(trajectories, labels, folder / "figure2.png")
    drawings.draw_trajectories(trajectories, labels, found, folder / "trajectories.png")
    drawings.draw_prediction(predicted, folder / "prediction.png")
    drawings.draw_layers(trajectories, labels, folder / "layers.png")


def words(cell: dict[str, float]) -> str:
    """A cell's settings."""
    return ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in cell.items())


def varied(cell: dict[str, float], rows: pd.DataFrame) -> dict[str, float]:
    """Those of the cell's settings that differ over the grid."""
    return {name: value for name, value in cell.items() if rows[name].nunique() > 1}


def grid(config: Config) -> list[dict[str, float]]:
    """The cells as settings of simcse: every combination of the listed values."""
    values: dict[str, list[float]] = {}
    for name, plural in GRID.items():
        key, default = f"dynamics.{plural}", KEYS[f"simcse.{name}"]
        number = type(default[0])
        try:
            listed = [number(text) for text in getattr(config.dynamics, plural)]
        except ValueError:
            raise UserError(f"{key}: expected numbers, got "
                            f"[{','.join(getattr(config.dynamics, plural))}]") from None
        for value in listed:
            check_limits(key, value, default[1])
        if len(set(listed)) < len(listed):
            raise UserError(f"{key}: expected different values, got "
                            f"[{','.join(getattr(config.dynamics, plural))}]")
        values[name] = listed or [getattr(config.simcse, name)]
    cells = [dict(zip(values, combination, strict=True))
             for combination in product(*values.values())]
    if len(cells) < 2:
        raise UserError("dynamics: expected two or more cells, got one: list several values in "
                        "dynamics.temperatures, dropouts, batch_sizes or learning_rates")
    return cells


def check_batches(config: Config, sizes: list[float]) -> None:
    """Refuses a batch that the sentences do not fill, before any cell is trained."""
    competition = read_data(config)
    frames = [competition.train, competition.dev, competition.test]
    simcse.checked_sentences(frames, [Path(name) for name in config.data.extra],
                             int(max(sizes)) if config.simcse.drop_last else 0)


def cell_config(config: Config, cell: dict[str, float]) -> Config:
    """The configuration of a cell's simcse run."""
    part = deepcopy(config)
    for name, value in cell.items():
        setattr(part.simcse, name, value)
    part.simcse.eval_every, part.simcse.patience = part.simcse.geometry_every, 0
    return part
