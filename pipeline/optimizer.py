"""AdamW with the parameters in groups: what decays, and how fast each layer learns.

    python run.py stage=sts sts.layer_decay=0.9 sts.weight_decay=0.01
"""

import re

import torch
from torch import nn

from pipeline.errors import UserError
from pipeline.recipe import Recipe


def adamw(model: nn.Module, recipe: Recipe) -> torch.optim.AdamW:
    """Fused AdamW; biases and norms (tensors of one dimension) do not decay.

    A group's learning rate is the step's times its `share`: layer_decay to the power of its
    distance from the top (ELECTRA, Clark et al. 2020, appendix B).
    """
    trained = [(depth(name), p) for name, p in model.named_parameters() if p.requires_grad]
    top = max((level for level, _ in trained if level is not None), default=0) + 1
    if recipe.layer_decay < 1 and top == 1:
        raise UserError("sts.layer_decay: expected 1 for an encoder without numbered layers of its "
                        f"own, got {recipe.layer_decay:g}")
    shares = [1.0 if level is None else recipe.layer_decay ** (top - level)
              for level, _ in trained]
    groups = []
    for share in sorted(set(shares)):
        mine = [p for own, (_, p) in zip(shares, trained, strict=True) if own == share]
        groups += [{"params": [p for p in mine if p.ndim > 1], "share": share,
                    "weight_decay": recipe.weight_decay},
                   {"params": [p for p in mine if p.ndim <= 1], "share": share,
                    "weight_decay": 0.0}]
    return torch.optim.AdamW([group for group in groups if group["params"]],
                             lr=recipe.learning_rate, fused=True)


def depth(name: str) -> int | None:
    """How high a parameter stands: 0 the embeddings, 1 … the layers, None what is above them."""
    if "embeddings" in name or ".encoder.LayerNorm." in name:  # DeBERTa's, of relative positions
        return 0
    layer = re.search(r"\.layers?\.(\d+)\.", name)
    return int(layer[1]) + 1 if layer else None
