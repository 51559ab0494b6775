"""What of a training outlives the process: its state, checkpoints and best weights.

    python run.py stage=sts    # stopped and given again, it goes on from its last checkpoint
"""

import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch import nn

from pipeline import checkpoint, processes
from pipeline.averaging import Average
from pipeline.recipe import Recipe


class Keeper:
    """One training's state with its checkpoints; it says which weights are the best."""

    def __init__(self, folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer,
                 scaler: torch.amp.GradScaler | None, average: Average | None) -> None:
        """Goes on from what the folder holds."""
        self.folder, self.model, self.optimizer, self.scaler = folder, model, optimizer, scaler
        self.average = average
        self.state = checkpoint.restore(folder, model, optimizer, scaler, average)
        self.before, self.began = self.state.seconds, time.monotonic()

    def averaged(self) -> AbstractContextManager[None]:
        """The model with the weights that are evaluated and kept: the average, if there is one."""
        return self.average.in_place() if self.average else nullcontext()

    def judge(self, value: float, recipe: Recipe) -> bool:
        """Keeps the weights if the evaluation is the best; counts patience. NaN is never best.

        With keep="last" every evaluation's weights take the place of the one's before.
        """
        state = self.state
        if value > state.best or recipe.keep == "last":
            checkpoint.save_best(self.folder, self.model)
            state.best, state.best_step, state.waiting = value, state.step, 0
            return True
        state.waiting += 1
        state.stopped_early = 0 < recipe.patience <= state.waiting
        return False

    def seconds(self) -> float:
        """Time spent on this training by all the commands that worked on it."""
        return self.before + time.monotonic() - self.began

    def save(self) -> None:
        """Writes everything that the next step depends on."""
        self.state.seconds = self.seconds()
        checkpoint.save_newest(self.folder, self.model, self.optimizer, self.scaler, self.state,
                               self.average)

    def load_best(self) -> None:
        """Leaves the model with the kept evaluation's weights; if none was a number, the last."""
        processes.wait()
        if self.state.best_step >= 0:
            checkpoint.load_best(self.folder, self.model)
        elif self.average:
            self.average.exchange()
