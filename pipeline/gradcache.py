"""A large contrastive batch computed in pieces, with the gradients of the whole (GradCache).

The loss needs all vectors of the batch, their activations it does not: each piece is encoded
without keeping them and encoded again when its gradient is due, under the same dropout masks
(Gao et al. 2021b, arXiv 2101.06983). Memory is a piece's, time that of one more forward pass.
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pipeline.batching import Tokens


def vectors(model: nn.Module, tokens: Tokens, rows: np.ndarray, piece: int,
            device: torch.device) -> Tensor:
    """The rows' vectors (N, d) in fp32, `piece` sequences at a time; 0: all at once."""
    if not piece or piece >= len(rows):
        return model(tokens.batch(rows).to(device)).float()
    parts = [checkpoint(model, tokens.batch(rows[start:start + piece]).to(device),
                        use_reentrant=False)
             for start in range(0, len(rows), piece)]
    return torch.cat(parts).float()
