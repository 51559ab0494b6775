"""A run's history as TensorBoard or Weights & Biases shows it, beside history.jsonl.

    python run.py stage=sts tracker=tensorboard
    tensorboard --logdir runs

The lines are those of history.jsonl, in `tensorboard/` or `wandb/` of the run's folder. A run that
goes on writes its earlier part anew, so that nothing is there twice. Only the first process writes.
"""

import os
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipeline.errors import UserError

TRACKERS = ("tensorboard", "wandb")  # names of keys, packages and folders alike
PROJECT = "korean-sts"
Log = Callable[[dict[str, float], int], None]  # values of a step


class Tracker:
    """One run's series in a tracker, opened when training begins."""

    def __init__(self, kind: str, folder: Path, shape: dict[str, Any], mark: str) -> None:
        """kind: one of TRACKERS; shape and mark: what shapes the run, and its identity."""
        self.kind, self.folder, self.shape, self.mark = kind, folder, shape, mark
        self.log: Log | None = None  # None until it is opened
        self.end: Callable[[], None] = lambda: None

    def begin(self, lines: list[dict]) -> None:
        """Opens it with the history so far."""
        open_it = {"tensorboard": open_tensorboard, "wandb": open_wandb}[self.kind]
        self.log, self.end = open_it(self.folder, self.shape, self.mark)
        self.add(lines)

    def add(self, lines: list[dict]) -> None:
        """Writes lines of the history; what is no number has no place in a series."""
        for line in lines:
            self.log(series(line), line["step"])

    def finish(self) -> None:
        """Closes it, if it was opened."""
        self.end()


def series(line: dict) -> dict[str, float]:
    """A history line's numbers by series: loss, lr, …, eval/pearson, geometry/uniformity."""
    found = {}
    for name, value in line.items():
        if isinstance(value, dict):
            found |= {f"{name}/{inner}": number for inner, number in series(value).items()}
        elif name != "step" and value is not None:
            found[name] = float(value)
    return found


def check(kind: str) -> None:
    """Refuses to start without the tracker's package."""
    if kind != "none" and find_spec(kind) is None:
        raise UserError(f"tracker={kind}: expected the package {kind}, got none: "
                        f".venv/bin/python -m pip install {kind}")


def open_tensorboard(folder: Path, shape: dict[str, Any], mark: str,
                     ) -> tuple[Log, Callable[[], None]]:
    """An event file in `tensorboard/`, in place of what is there."""
    from torch.utils.tensorboard import SummaryWriter

    shutil.rmtree(folder / "tensorboard", ignore_errors=True)
    writer = SummaryWriter(str(folder / "tensorboard"), flush_secs=10)

    def log(values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    return log, writer.close


def open_wandb(folder: Path, shape: dict[str, Any], mark: str) -> tuple[Log, Callable[[], None]]:
    """A run of W&B with the identity as its id: on its server where one is logged in, else offline.

    An offline run takes the place of the one before; on the server steps that are there stay.
    """
    import wandb

    mode = os.environ.get("WANDB_MODE") or ("online" if is_logged_in() else "offline")
    if mode == "offline":
        shutil.rmtree(folder / "wandb", ignore_errors=True)
    # Neither the terminal nor code, commits and packages: numbers and settings alone are sent.
    quiet = wandb.Settings(console="off", silent=True, disable_git=True, disable_code=True,
                           x_disable_meta=True, x_disable_stats=True, x_save_requirements=False)
    try:
        run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT, mode=mode, id=mark,
            dir=str(folder.resolve()),  # its service may have started in another folder
            name=folder.name, group=shape["stage"], settings=quiet,
            resume="allow" if mode == "online" else None,
            config={name: shape[name] for name in ("stage", "settings", "seed", "precision")})
    except wandb.errors.Error as error:
        raise UserError(f"tracker=wandb: {' '.join(str(error).split())[:200]}; WANDB_MODE=offline "
                        "works without the server") from None
    first = run.step

    def log(values: dict[str, float], step: int) -> None:
        if step >= first:
            run.log(values, step=step)

    def end() -> None:
        run.finish()
        wandb.teardown()  # waits for its service, which has not always written all by then

    return log, end


def is_logged_in() -> bool:
    """Whether W&B knows a key of the user's; asks nobody for one."""
    import wandb

    return wandb.login(prompt=False, verify=False)
