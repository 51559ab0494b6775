"""How the space moves during contrastive training: phases, what moves them, what they are worth.

    python run.py stage=dynamics dynamics.temperatures=[0.02,0.05,0.2] simcse.max_steps=400

A grid over temperature × dropout (× batch size × learning rate). Every cell is a simcse run that is
evaluated at each measurement of the geometry and never stopped early; finished cells are reused and
a broken grid goes on where it was.
"""

import logging
from copy import deepcopy
from itertools import product

from pipeline.config import KEYS, Config
from pipeline.errors import UserError
from pipeline.layers import check_limits
from pipeline.runs import Run
from pipeline.stages import simcse

log = logging.getLogger(__name__)
GRID = {"temperature": "temperatures", "dropout": "dropouts", "batch_size": "batch_sizes",
        "learning_rate": "learning_rates"}  # keys of simcse and of dynamics


def run(config: Config) -> None:
    """Completes the grid's cells, then says what moved and writes it."""
    cells = grid(config)
    runs: list[Run] = []
    for place, cell in enumerate(cells):
        log.info("dynamics: cell %d of %d: %s", place + 1, len(cells),
                 ", ".join(f"{name} {value:g}" for name, value in cell.items()))
        runs.append(simcse.complete(cell_config(config, cell), traced=True))


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


def cell_config(config: Config, cell: dict[str, float]) -> Config:
    """The configuration of a cell's simcse run."""
    part = deepcopy(config)
    for name, value in cell.items():
        setattr(part.simcse, name, value)
    part.simcse.eval_every, part.simcse.patience = part.simcse.geometry_every, 0
    return part
