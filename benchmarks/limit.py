"""How near each stage comes to this machine's fastest matrix products.

    python -m benchmarks.limit --encoder DIR --data DIR --threads 2

The limit is the fastest product measured in the stage's precision: those of the encoder's layers
(a batch's tokens times their weights), and a square one. A stage's useful work is 6 operations a
matrix weight and real token in training and 2 in encoding; attention, norms, dropout, AdamW and
whatever padding there were count as no work, so that 100% cannot be reached.
"""

import argparse
import json
import sys
import time
from typing import Any

from benchmarks.measuring import alternated, table
from benchmarks.work import add_arguments, from_arguments

ENOUGH = 0.5  # seconds that a product is repeated
LEAST = 0.05  # seconds of a reading: processors' own are counted in ticks, of 10 ms at worst
COLUMNS = {"stage": "", "GFLOP/s": ",.1f", "limit": ",.1f", "share %": ".0f",
           "processor share %": ".0f"}


def shapes(width: int, inner: int, tokens: int) -> dict[str, tuple[int, int, int]]:
    """Name to (rows, in, out) of the products."""
    return {"attention": (tokens, width, width), "up": (tokens, width, inner),
            "down": (tokens, inner, width), "square": (2048, 2048, 2048)}


def peaks(width: int, inner: int, tokens: int, precision: str, device: str) -> dict[str, float]:
    """FLOP/s of every product; the best of the repetitions, as others may use the machine.

    With one thread of a processor by its own seconds, in which others' work is not.
    """
    import torch

    from benchmarks.measuring import both_clocks

    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    clock = 1 if device == "cpu" and torch.get_num_threads() == 1 else 0
    found = {}
    for name, (rows, wide, out) in shapes(width, inner, tokens).items():
        x, weight = (torch.randn(shape, device=device, dtype=dtype)
                     for shape in ((rows, wide), (out, wide)))
        torch.nn.functional.linear(x, weight)
        best, count, end = float("inf"), 1, time.monotonic() + ENOUGH
        while time.monotonic() < end or best == float("inf"):
            began = both_clocks(device)[clock]
            for _ in range(count):
                torch.nn.functional.linear(x, weight)
            took = both_clocks(device)[clock] - began
            if took < LEAST:
                count *= 2
            else:
                best = min(best, took / count)
        found[name] = 2 * rows * wide * out / best
    return found


def measured(asked: argparse.Namespace) -> dict[str, float]:
    """One variant's figures: `peak bf16`, `peak fp32`, or a stage."""
    import torch

    torch.set_num_threads(asked.threads)
    from pipeline import hardware

    device = hardware.pick_device(asked.device)
    if asked.only.startswith("peak"):
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(asked.encoder)
        return peaks(config.hidden_size, config.intermediate_size, asked.tokens,
                     asked.only.split()[1], device)
    from benchmarks import ours

    return getattr(ours, asked.only)(from_arguments(asked, asked.only))


def rows_of(stages: dict[str, dict[str, Any]], limit: float, threads: int) -> list[dict[str, Any]]:
    """The table's rows. The processor's share takes the process's own seconds, a thread each."""
    return [{"stage": name, "GFLOP/s": row["flops"] / row["seconds"] / 1e9, "limit": limit / 1e9,
             "share %": 100 * row["flops"] / row["seconds"] / limit,
             "processor share %": 100 * row["flops"] / row["processor"] * threads / limit}
            for name, row in stages.items()]


def main() -> None:
    """Measures the products, then the stages, and prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_arguments(parser)
    parser.add_argument("--tokens", type=int, default=2048, help="rows of the layers' products")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.only:
        print(json.dumps(measured(asked)))
        return
    from pipeline import hardware

    device = hardware.pick_device(asked.device)
    precision = hardware.pick_precision("auto", device)
    names = ["peak fp32"] + (["peak bf16"] if precision == "bf16" else [])
    found = alternated(["-m", "benchmarks.limit", *sys.argv[1:]],
                       [*names, "simcse", "cross", "encode"], asked.repeats, asked.threads)
    rows = [{"precision": name.split()[1]} | {kind: value / 1e9 for kind, value
                                              in found[name].items()} for name in names]
    columns = {"precision": ""} | {kind: ",.1f" for kind in rows[0] if kind != "precision"}
    print(table(f"Matrix products, GFLOP/s, {asked.threads} threads", columns, rows))
    limit = max(found[names[-1]].values())
    stages = {name: row for name, row in found.items() if name not in names}
    print(table(f"Useful work, {names[-1].split()[1]}", COLUMNS,
                rows_of(stages, limit, asked.threads)))


if __name__ == "__main__":
    main()
