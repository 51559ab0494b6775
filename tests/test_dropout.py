"""Fast dropout masks: the right values, the right share, and no change to what a seed draws.

python -m pytest tests/test_dropout.py
"""

from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pipeline.dropout import LEVELS, scaled_mask
from pipeline.packing import attend, attention, pack


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(7,), (1, 33, 12), (5, 2, 9, 9)])
def test_mask_is_the_draws_compared(dtype, shape):
    """Each 16-bit draw at or above the threshold keeps its entry, scaled by 1 / (1 − p)."""
    like, p = torch.zeros(shape, dtype=dtype), 0.1
    torch.manual_seed(3)
    mask = scaled_mask(like, p)
    torch.manual_seed(3)
    seed = torch.empty((), dtype=torch.int64).random_().item()
    words = np.random.Generator(np.random.SFC64(seed)).integers(
        -(2**63), 2**63, (like.numel() + 3) // 4)
    dropped = round(p * LEVELS)
    kept = words.view(np.int16)[:like.numel()].reshape(shape) >= dropped - LEVELS // 2
    assert torch.equal(mask, torch.from_numpy(kept).to(dtype).mul_(LEVELS / (LEVELS - dropped)))
    assert mask.dtype == dtype


def test_masks_follow_torchs_generator():
    """One mask is not the next; a restored state draws the same again, whatever numpy's own did."""
    like = torch.zeros(1000)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    masks = [scaled_mask(like, 0.5) for _ in range(3)]
    alike = [(one == other).float().mean() for one, other in pairwise(masks)]
    assert alike == pytest.approx([0.5, 0.5], abs=0.06)
    np.random.default_rng(0)
    torch.set_rng_state(state)
    assert all(torch.equal(scaled_mask(like, 0.5), mask) for mask in masks)


@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("p", [0.0, 0.3])
def test_attention_and_its_gradients(is_masked, p):
    """As autograd has them for the same formula and mask; without dropout as torch's own."""
    torch.manual_seed(0)
    states = [torch.randn(3, 2, 5, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    mask = torch.arange(5) < torch.tensor([5, 3, 1])[:, None, None, None] if is_masked else None
    torch.manual_seed(1)
    found = attend(*states, mask, p, 0.6)
    torch.manual_seed(1)
    kept = scaled_mask(torch.zeros(3, 2, 5, 5, dtype=torch.float64), p) if p else 1.0
    query, key, value = states
    scores = 0.6 * query @ key.transpose(2, 3)
    if is_masked:
        scores = scores.masked_fill(~mask, -torch.inf)
    expected = [(scores.softmax(-1) * kept) @ value]
    if not p:
        expected.append(F.scaled_dot_product_attention(*states, mask, scale=0.6))
    weight = torch.randn_like(found)
    gradients = torch.autograd.grad((found * weight).sum(), states)
    for other in expected:
        torch.testing.assert_close(found, other)
        torch.testing.assert_close(gradients, torch.autograd.grad((other * weight).sum(), states))


def test_attention_in_half_precision():
    """In bf16 outputs and gradients keep the type, and are fp32's to bf16's three digits."""
    torch.manual_seed(0)
    states = [torch.randn(3, 2, 50, 8, requires_grad=True) for _ in range(3)]
    half = [state.detach().bfloat16().requires_grad_() for state in states]
    found = []
    for part in (states, half):
        out = attend(*part, None, 0.0, 0.35)
        found.append([out, *torch.autograd.grad(out.float().square().sum(), part)])
    for one, other in zip(*found, strict=True):
        assert other.dtype == torch.bfloat16
        assert (one - other.float()).norm() < 0.01 * one.norm()


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_share_and_mean(p):
    """p of the entries are 0, the others 1 / (1 − p): the mean stays 1."""
    torch.manual_seed(0)
    mask = scaled_mask(torch.zeros(400_000), p)
    assert (mask == 0).float().mean() == pytest.approx(p, abs=0.004)
    assert mask.unique().tolist() == pytest.approx([0, 1 / (1 - p)], rel=1e-4)


def test_gradient_of_packed_attention_makes_no_tensor_of_zeros():
    """No node of the graph is an index's, whose backward fills and copies a whole tensor."""
    batch = pack([torch.arange(n).numpy() for n in (3, 5)])
    states = [torch.randn(1, 2, len(batch.ids), 4, requires_grad=True) for _ in range(3)]
    out, _ = attention(torch.nn.Module(), *states, None, batch=batch)
    seen, waiting = set(), [out.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [before for before, _ in node.next_functions]
    names = {node.name() for node in seen}
    assert "PadBackward" in names
    assert not names & {"SelectBackward0", "SliceBackward0", "IndexBackward0"}
