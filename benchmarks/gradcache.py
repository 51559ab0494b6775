"""What a contrastive batch computed in pieces costs in time and saves in memory.

    python -m benchmarks.gradcache --encoder DIR --data DIR --batch 512 --piece 64

Every repetition of every variant is a process of its own, so that peak memory is its own; variants
alternate. Prints medians and the ratios to the direct computation.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path


def one(encoder: str, data: str, batch: int, piece: int, steps: int) -> dict[str, float]:
    """Seconds a step and peak memory in GiB of `steps` SimCSE steps, after one to warm up."""
    import numpy as np
    import torch

    from pipeline import hardware
    from pipeline.batching import shuffled
    from pipeline.corpus import unlabelled
    from pipeline.data import read_competition
    from pipeline.encoder import load_encoder
    from pipeline.gradcache import vectors
    from pipeline.losses import info_nce

    device = hardware.pick_device("auto")
    accelerator = hardware.start(device, hardware.pick_precision("auto", device), 0, False)
    model = load_encoder(encoder, "mean").to(accelerator.device)
    competition = read_competition(Path(data))
    tokens = model.tokens(unlabelled([competition.train], []))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    model, optimizer = accelerator.prepare(model, optimizer)
    model.train()
    began = 0.0
    for step, rows in enumerate(shuffled(len(tokens), batch, 0, 0, True)[:steps + 1]):
        if step == 1:
            began = time.monotonic()
        first, second = vectors(model, tokens, np.concatenate([rows, rows]), piece,
                                accelerator.device).chunk(2)
        accelerator.backward(info_nce(first, second, 0.05))
        optimizer.step()
        optimizer.zero_grad()
    peak = (torch.cuda.max_memory_allocated() if device == "cuda"
            else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    return {"seconds": (time.monotonic() - began) / steps, "gib": peak / 2**30}


def main() -> None:
    """Runs the variants alternately and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--encoder", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--piece", type=int, default=64)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", type=int, help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.only is not None:
        print(json.dumps(one(wanted.encoder, wanted.data, wanted.batch, wanted.only,
                             wanted.steps)))
        return
    found: dict[int, list[dict[str, float]]] = {0: [], wanted.piece: []}
    for _ in range(wanted.repeats):
        for piece, results in found.items():
            done = subprocess.run([sys.executable, "-m", "benchmarks.gradcache", *sys.argv[1:],
                                   "--only", str(piece)], capture_output=True, text=True,
                                  check=True)
            results.append(json.loads(done.stdout.splitlines()[-1]))
    median = {piece: {name: statistics.median(row[name] for row in rows)
                      for name in ("seconds", "gib")} for piece, rows in found.items()}
    print(f"batch {wanted.batch} x 2 views, median of {wanted.repeats}")
    for piece, row in median.items():
        print(f"  {f'pieces of {piece}' if piece else 'direct':<14} {row['seconds']:6.2f} s a step "
              f"({row['seconds'] / median[0]['seconds']:.2f}x)   {row['gib']:5.2f} GiB "
              f"({row['gib'] / median[0]['gib']:.2f}x)")


if __name__ == "__main__":
    main()
