"""Scaled-dot-product attention of padded sequences: torch's own, and what trains faster on a CPU.

    python -m pytest tests/test_dropout.py
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from pipeline.dropout import scaled_mask


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float,
           scaling: float) -> Tensor:
    """Scaled-dot-product attention (n, heads, L, d); mask: where keys are tokens, None: everywhere.

    On a CPU our own where a gradient is due: that of torch's takes five times as long there with a
    mask. To read, torch's: plain products are faster without a mask, but a CPU makes and keeps
    kernels for every count and length of them.
    """
    if query.device.type != "cpu" or not (dropout or torch.is_grad_enabled()):
        return F.scaled_dot_product_attention(query, key, value, mask, dropout, scale=scaling)
    return Attend.apply(query, key, value, mask, dropout, scaling)


class Attend(torch.autograd.Function):
    """`attend` in plain products, with fast dropout masks and as few passes over L × L as go.

    The softmax is computed in fp32 whatever the rest is: a CPU's in bf16 takes three times as long.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None,
                dropout: float, scaling: float) -> Tensor:
        scores = (query * scaling) @ key.transpose(2, 3)  # (n, heads, L, L)
        if mask is not None:
            scores.masked_fill_(~mask, torch.finfo(scores.dtype).min)
        precise = torch.promote_types(scores.dtype, torch.float32)
        weights = scores.softmax(dim=-1, dtype=precise).to(value.dtype)
        kept = scaled_mask(weights, dropout) if dropout else None
        ctx.save_for_backward(query, key, value, weights, kept)
        ctx.scaling = scaling
        return (weights if kept is None else weights * kept) @ value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights, kept = ctx.saved_tensors
        used = weights if kept is None else weights * kept
        by_weight = gradient @ value.transpose(2, 3)  # (n, heads, L, L)
        if kept is not None:
            by_weight.mul_(kept)
        by_score = torch.ops.aten._softmax_backward_data(by_weight, weights, -1, weights.dtype)
        return ((by_score @ key).mul_(ctx.scaling),
                by_score.transpose(2, 3) @ (query * ctx.scaling),
                used.transpose(2, 3) @ gradient, None, None, None)
