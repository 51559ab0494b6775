"""Exponential moving average of the weights (EMA): smoother than the last step's.

    python run.py stage=sts sts.ema=0.99
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from pipeline import sharding


class Average:
    """The average of a model's trained weights over its steps, for evaluation and for keeps.

    After step t it moves by 1 − min(decay, (1 + t) / (10 + t)) towards the weights, so that the
    start is forgotten soon (as in TensorFlow's ExponentialMovingAverage).
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.values = {name: p.detach().clone() for name, p in self.weights.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Takes in the weights after this step, counted from 1."""
        decay = min(self.decay, (1 + step) / (10 + step))
        for name, p in self.weights.items():
            self.values[name].lerp_(p, 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model with the average for its weights; its own come back at the end."""
        self.exchange()
        try:
            yield
        finally:
            self.exchange()

    @torch.no_grad()
    def exchange(self) -> None:
        """Swaps the model's weights and the average."""
        for name, p in self.weights.items():
            own = p.detach().clone()
            p.copy_(self.values[name])
            self.values[name] = own

    def load(self, values: dict[str, Tensor]) -> None:
        """Goes on from saved values."""
        for name, value in values.items():
            self.values[name].copy_(sharding.part(value, self.values[name]))
