"""A large contrastive batch computed in pieces, with the gradients of the whole (GradCache).

The loss needs all vectors of the batch, their activations it does not: each piece is encoded
without keeping them and encoded again when its gradient is due, under the same dropout masks
(Gao et al. 2021b, arXiv 2101.06983). Memory is a piece's, time that of one more forward pass.
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pipeline import processes, sharding
from pipeline.batching import Tokens


def vectors(model: nn.Module, tokens: Tokens, rows: np.ndarray, piece: int,
            device: torch.device) -> Tensor:
    """The rows' vectors (N, d) in fp32, `piece` sequences at a time; 0: all at once.

    Several processes share the rows; each gets the vectors of all.
    """
    mine = processes.own(rows)
    if sharding.is_sharded(model) and len(mine) * processes.world() < len(rows):
        mine = np.append(mine, rows[-1])  # as many pieces as the others; `gathered` drops the row
    if not piece or piece >= len(mine):
        return processes.gathered(model(tokens.batch(mine).to(device)).float(), len(rows))
    parts = [checkpoint(model, tokens.batch(mine[start:start + piece]).to(device),
                        use_reentrant=False)
             for start in range(0, len(mine), piece)]
    return processes.gathered(torch.cat(parts).float(), len(rows))
