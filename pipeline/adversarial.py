"""Fast gradient method: a second gradient at word embeddings shifted to where the loss grows.

    python run.py stage=sts sts.fgm=0.5
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from pipeline import sharding


@contextmanager
def shifted(model: nn.Module, epsilon: float) -> Iterator[None]:
    """The model with word embeddings + epsilon · g / ‖g‖, g their gradient (Miyato et al. 2017).

    As usual for text, one shift of the whole embedding matrix instead of one for every sentence
    (eq. 5): rows of absent words have no gradient. Without a gradient nothing is shifted.
    """
    weight = next(module for module in model.modules() if isinstance(module, nn.Embedding)).weight
    own = weight.detach().clone()
    with torch.no_grad():
        norm = float(sharding.plain(weight.grad.norm()))
        if 0 < norm < math.inf:
            weight.add_(epsilon * weight.grad / norm)
    try:
        yield
    finally:
        with torch.no_grad():
            weight.copy_(own)
