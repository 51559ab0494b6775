"""Adversarial training: another gradient where a small shift of weights makes the loss grow.

    python run.py stage=sts sts.fgm=0.5
    python run.py stage=sts sts.awp=0.0002
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from pipeline import sharding


@contextmanager
def shifted(model: nn.Module, epsilon: float) -> Iterator[None]:
    """FGM: the model with word embeddings + epsilon · g / ‖g‖, g their gradient (Miyato 2017).

    The gradient there is added to the plain one. As usual for text, one shift of the whole
    embedding matrix instead of one for every sentence (eq. 5): rows of absent words have no
    gradient. Without a gradient nothing is shifted.
    """
    weight = next(module for module in model.modules() if isinstance(module, nn.Embedding)).weight
    with restored([weight]):
        climb([weight], [epsilon])
        yield


@contextmanager
def perturbed(model: nn.Module, gamma: float) -> Iterator[None]:
    """AWP: the model with matrices w + gamma · ‖w‖ · g / ‖g‖ (Wu et al. 2020, by their code).

    The gradient there takes the place of the plain one. Vectors (biases, norms) stay. Inputs are
    not attacked too, so that it is also SAM with a radius for each matrix (Foret et al. 2021).
    """
    weights = [weight for weight in model.parameters() if weight.ndim > 1]
    with restored(weights):
        climb(weights, [gamma * norm for norm in sharding.norms(weights)])
        yield


@torch.no_grad()
def climb(weights: list[nn.Parameter], sizes: list[float]) -> None:
    """Shifts weights by so much along their gradients; one without a finite gradient stays."""
    there = [(weight, size) for weight, size in zip(weights, sizes, strict=True)
             if weight.grad is not None]
    norms = sharding.norms([weight.grad for weight, _ in there])
    for (weight, size), norm in zip(there, norms, strict=True):
        if 0 < norm < math.inf:
            weight.add_(size * weight.grad / norm)


@contextmanager
def restored(weights: list[nn.Parameter]) -> Iterator[None]:
    """Gives the weights their values back at the end, to the bit, whatever happens."""
    own = [weight.detach().clone() for weight in weights]
    try:
        yield
    finally:
        with torch.no_grad():
            for weight, value in zip(weights, own, strict=True):
                weight.copy_(value)
