"""A contrastive batch in pieces has the loss and the gradients of the whole.

python -m pytest tests/test_gradcache.py
"""

import numpy as np
import pytest
import torch

from pipeline.encoder import Encoder, load_encoder
from pipeline.gradcache import vectors
from pipeline.losses import info_nce

TEXTS = ["저상버스가 없다", "첫 발표인데", "멋있었어요", "표를 샀다", "영화가 길다",
         "회의를 미루자고 합니다", "좋다", "다시 보고 싶은 영화", "감사합니다 여러분"]
ROWS = np.array([4, 0, 7, 2, 5, 1, 8, 3, 6])
CPU = torch.device("cpu")


def found(encoder: Encoder, encode) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The loss of two views of the rows and its gradients; `encode` gives the vectors (18, d)."""
    encoder.zero_grad(set_to_none=True)
    torch.manual_seed(3)
    first, second = encode(np.concatenate([ROWS, ROWS])).chunk(2)
    loss = info_nce(first, second.roll(1, 0), 0.5)
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in encoder.named_parameters()
                           if p.grad is not None}


def loaded(make_encoder, dropout: float) -> Encoder:
    """The tiny encoder in training mode."""
    encoder = load_encoder(str(make_encoder()), "mean", max_length=32, dropout=dropout)
    return encoder.train()


@pytest.mark.parametrize("piece", [1, 3, 7, 100])
def test_equals_the_whole_batch(make_encoder, piece):
    """Without dropout pieces of any size, the last one smaller, change nothing."""
    encoder = loaded(make_encoder, 0.0)
    tokens = encoder.tokens(TEXTS)
    whole = found(encoder, lambda rows: encoder(tokens.batch(rows)))
    pieces = found(encoder, lambda rows: vectors(encoder, tokens, rows, piece, CPU))
    torch.testing.assert_close(pieces[0], whole[0], rtol=1e-6, atol=1e-6)
    assert pieces[1].keys() == whole[1].keys()
    assert max(gradient.abs().max() for gradient in whole[1].values()) > 1e-3
    torch.testing.assert_close(pieces[1], whole[1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("piece", [1, 7])
def test_same_dropout_when_encoded_again(make_encoder, piece):
    """With dropout they equal pieces whose activations were kept, under the same seed."""
    encoder = loaded(make_encoder, 0.3)
    tokens = encoder.tokens(TEXTS)

    def kept(rows: np.ndarray) -> torch.Tensor:
        return torch.cat([encoder(tokens.batch(rows[start:start + piece]))
                          for start in range(0, len(rows), piece)])

    expected = found(encoder, kept)
    again = found(encoder, lambda rows: vectors(encoder, tokens, rows, piece, CPU))
    torch.testing.assert_close(again, expected, rtol=1e-5, atol=1e-7)
    still = found(encoder.eval(), kept)
    assert abs(still[0] - expected[0]) > 1e-3  # the masks do count


def test_views_differ_by_their_masks(make_encoder):
    """A sentence in two pieces gets two masks, and the generator goes on after the batch."""
    encoder = loaded(make_encoder, 0.1)
    tokens = encoder.tokens(TEXTS)
    torch.manual_seed(0)
    twice = vectors(encoder, tokens, np.array([2, 2]), 1, CPU)
    assert (twice[0] - twice[1]).abs().max() > 1e-3
    state = torch.get_rng_state()
    twice.sum().backward()  # encodes again
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(("piece", "calls"), [(0, [9]), (4, [4, 4, 1]), (9, [9])])
def test_size_of_the_pieces(make_encoder, piece, calls):
    """At most `piece` sequences at a time; 0 means all."""
    encoder = loaded(make_encoder, 0.0)
    tokens = encoder.tokens(TEXTS)
    sizes = []
    encoder.register_forward_hook(lambda module, args, out: sizes.append(len(out)))
    made = vectors(encoder, tokens, ROWS, piece, CPU)
    assert sizes == calls
    assert made.shape == (9, 32)
    assert made.dtype == torch.float32
