"""Fast dropout masks: the right values, the right share, and no change to what a seed draws.

python -m pytest tests/test_dropout.py
"""

import pytest
import torch

from pipeline.dropout import LEVELS, scaled_mask
from pipeline.packing import attention, pack


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(7,), (1, 33, 12), (5, 2, 9, 9)])
def test_mask_is_the_draws_compared(dtype, shape):
    """Each 16-bit draw at or above the threshold keeps its entry, scaled by 1 / (1 − p)."""
    like, p = torch.zeros(shape, dtype=dtype), 0.1
    torch.manual_seed(3)
    mask = scaled_mask(like, p)
    torch.manual_seed(3)
    draws = torch.empty((like.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    dropped = round(p * LEVELS)
    kept = draws.view(torch.int16)[:like.numel()].view(shape) >= dropped - LEVELS // 2
    assert torch.equal(mask, kept.to(dtype).mul_(LEVELS / (LEVELS - dropped)))
    assert mask.dtype == dtype


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
