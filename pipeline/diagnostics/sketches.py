"""Where the weights of each layer go during training, without keeping the weights.

A layer's flattened weights are folded into BUCKETS numbers by a count sketch (Charikar et al.
2002): every weight is added, with a pseudo-random sign, to a pseudo-random bucket. The map is
linear and keeps inner products on average, so that cosines of weight changes can be computed when
training is over. A cosine c computed from sketches has a standard error of (1 − c²)/√BUCKETS,
0.011 at most.
"""

import re
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from pipeline.files import written_aside

BUCKETS = 8192
SLICE = 1 << 20  # weights folded at a time
LAYER = re.compile(r"\blayers?\.(\d+)\.")


def layer_names(module: nn.Module) -> dict[str, list[str]]:
    """The names of the trained weights by layer: embeddings, layer 0 …, rest."""
    found: dict[str, list[str]] = {"embeddings": []}
    for name, weights in module.named_parameters():
        if not weights.requires_grad:
            continue
        number = LAYER.search(name)
        layer = (f"layer {number[1]}" if number
                 else "embeddings" if name.startswith("embeddings") else "rest")
        found.setdefault(layer, []).append(name)
    return {layer: names for layer, names in found.items() if names}


def hashed(start: int, count: int, device: torch.device) -> Tensor:
    """A pseudo-random int64 for each of the places start … : the same on every device.

    Two rounds of multiplication and shift over wrapping integers, as in splitmix64.
    """
    mixed = torch.arange(start, start + count, device=device) * -7046029254386353131
    mixed = (mixed ^ (mixed >> 30)) * -4658895280553007687
    return (mixed ^ (mixed >> 27)) * -7723592293110705685


def folded(weights: Tensor) -> np.ndarray:
    """The sketch (BUCKETS,) of a flat tensor, float64; weights are read in slices."""
    total = np.zeros(BUCKETS)
    for start in range(0, len(weights), SLICE):
        part = weights[start:start + SLICE].float()
        mixed = hashed(start, len(part), part.device)
        bucket, sign = (mixed >> 40) & (BUCKETS - 1), ((mixed >> 60) & 1) * 2 - 1
        total += torch.zeros(BUCKETS, device=part.device).index_add_(
            0, bucket, part * sign).cpu().numpy()
    return total


@torch.no_grad()
def sketch(module: nn.Module) -> np.ndarray:
    """The sketches (layers, BUCKETS) of the module's layers, float32, as `layer_names` has them."""
    weights = dict(module.named_parameters())
    return np.stack([folded(torch.cat([weights[name].detach().flatten() for name in names]))
                     for names in layer_names(module).values()]).astype(np.float32)


def save_sketch(module: nn.Module, folder: Path, step: int) -> None:
    """Writes trajectory/STEP.npz in the run's folder: the sketches and the layers' names."""
    path = folder / "trajectory" / f"{step:07d}.npz"
    with written_aside(path) as aside, open(aside, "wb") as file:
        np.savez(file, sketch=sketch(module), layers=np.array(list(layer_names(module))))


def read_sketches(folder: Path) -> tuple[np.ndarray, list[str], np.ndarray]:
    """The steps (n,), the layers' names and the sketches (n, layers, BUCKETS) of a run."""
    steps, names, sketches = [], [], []
    for path in sorted((folder / "trajectory").glob("*.npz")):
        with np.load(path) as content:
            steps.append(int(path.stem))
            names = content["layers"].tolist()
            sketches.append(content["sketch"])
    return np.array(steps), names, np.stack(sketches)


def cosine(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Cosines along the last axis; NaN where a side is zero."""
    lengths = np.linalg.norm(x, axis=-1) * np.linalg.norm(y, axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(lengths > 0, (x * y).sum(axis=-1) / lengths, np.nan)


def directions(sketches: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cosines (n, layers) of each step's weight change with the whole change and the first weights.

    sketches (n, layers, BUCKETS) of W₀ … W_T: cos(W_t − W₀, W_T − W₀) and cos(W_t − W₀, W₀); NaN
    at step 0, where nothing has changed. The first goes to 1 at the end; the second is 0 while
    the weights turn, positive when they grow along themselves and negative when they shrink.
    """
    sketches = sketches.astype(np.float64)
    change = sketches - sketches[0]
    return cosine(change, change[-1]), cosine(change, sketches[:1])
