"""klue/roberta-large's architecture with random weights on one card, and how near its limit.

    python -m benchmarks.gpu            # on a card
    python -m benchmarks.gpu --tiny     # anywhere, at toy size: shows only that it runs

Random weights cost the time of trained ones, so that no Hub is needed. simcse has 64 and 512
sentences of 32 tokens, each twice; cross 32 pairs and encoding sentences with the lengths that
Korean ones have. MFU is the useful work (`benchmarks.limit`) as a share of the card's bf16 peak:
its data sheet's dense one where it stands here, else the fastest product measured. Without a card
it runs only with --tiny.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measuring import alternated, table
from benchmarks.synthetic import make_competition, make_encoder
from benchmarks.work import Work

DATA_SHEET = {"H200": 989e12, "H100": 989e12, "A100": 312e12}  # bf16, dense, FLOP/s
COLUMNS = {"task": "", "who": "", "seconds": ".2f", "tokens/s": ",.0f", "rows/s": ",.0f",
           "MFU %": ".1f", "GiB": ".2f", "time : ours": ".2f", "memory : ours": ".2f"}


@dataclass(frozen=True)
class Size:
    """What is built and how much is computed."""

    vocabulary: int
    width: int
    layers: int
    heads: int
    inner: int
    batches: tuple[int, int]  # of simcse
    pairs: int  # a batch of cross
    steps: int
    sentences: int


LARGE = Size(32_000, 1024, 24, 16, 4096, (64, 512), 32, 20, 20_000)
TINY = Size(200, 32, 2, 2, 64, (4, 8), 4, 2, 40)


def prepare(folder: Path, size: Size) -> None:
    """Writes the encoder and both sets of sentences."""
    make_encoder(folder / "encoder", size.vocabulary, size.width, size.layers, size.heads,
                 size.inner)
    most = size.batches[1] * size.steps // 2
    make_competition(folder / "fixed", size.vocabulary, most, 20, 1, tokens=32)
    make_competition(folder / "real", size.vocabulary,
                     max(size.pairs * size.steps, size.sentences // 2), 20, 1)


def works(folder: Path, size: Size, device: str) -> dict[str, tuple[str, Work]]:
    """Name to the kind of task and its work."""
    base = Work(str(folder / "encoder"), str(folder / "fixed"), "cls", "", 192,
                steps=size.steps, dev=20, sentences=size.sentences, device=device)
    real = replace(base, data=str(folder / "real"), batch=size.pairs)
    small, large = size.batches
    return {f"simcse {small} x 2": ("simcse", replace(base, batch=small)),
            f"simcse {large} x 2": ("simcse", replace(base, batch=large)),
            f"cross {size.pairs}": ("cross", real), "encode": ("encode", real)}


def contestants(kind: str) -> dict[str, Any]:
    """Ours and sentence-transformers, both as fast as they can."""
    from benchmarks import peers

    best = {"simcse": peers.st_simcse, "cross": peers.st_cross,
            "encode": partial(peers.st_encode, batch=128)}[kind]
    return {"ours": peers.ours(kind, "auto"),
            "sentence-transformers": partial(best, precision="best")}


def peak(size: Size, device: str) -> float:
    """The card's bf16 FLOP/s; without one, of the products in the precision that is computed."""
    import torch

    from benchmarks.limit import peaks
    from pipeline import hardware

    name = torch.cuda.get_device_name() if device == "cuda" else ""
    known = [value for card, value in DATA_SHEET.items() if card in name]
    precision = hardware.pick_precision("auto", device)
    return known[0] if known else max(peaks(size.width, size.inner, 4096, precision,
                                            device).values())


def rows_of(task: str, work: Work, kind: str, found: dict[str, dict[str, Any]],
            limit: float) -> list[dict[str, Any]]:
    """The table's rows of a task; the useful work of a peer is ours: it has the same tokens."""
    ours = found["ours"]
    count = work.sentences if kind == "encode" else work.batch * work.steps
    return [{"task": task, "who": who, "seconds": row["seconds"],
             "tokens/s": row["real"] / row["seconds"], "rows/s": count / row["seconds"],
             "MFU %": 100 * ours["flops"] / row["seconds"] / limit, "GiB": row["gib"],
             "time : ours": row["seconds"] / ours["seconds"],
             "memory : ours": row["gib"] / ours["gib"]} for who, row in found.items()]


def main() -> None:
    """Builds, measures every contestant in turn and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tiny", action="store_true", help="toy size, on the CPU")
    parser.add_argument("--steps", type=int, help="timed steps; 20, of --tiny 2")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--only", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    size, device = (TINY, "cpu") if asked.tiny else (LARGE, "cuda")
    size = replace(size, steps=asked.steps or size.steps)
    if asked.only:
        task, _, who = asked.only.partition(": ")
        if task == "peak":
            print(json.dumps({"peak": peak(size, device)}))
            return
        import torch

        torch.set_num_threads(asked.threads)
        kind, work = works(asked.folder, size, device)[task]
        print(json.dumps(contestants(kind)[who](work)))
        return
    import torch

    if not asked.tiny and not torch.cuda.is_available():
        sys.exit("error: benchmarks.gpu: expected a CUDA card, got none; --tiny runs at toy size")
    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name), size)
        words = ["-m", "benchmarks.gpu", *sys.argv[1:], "--folder", name]
        limit = alternated(words, ["peak"], 1, asked.threads)["peak"]["peak"]
        rows = []
        for task, (kind, work) in works(Path(name), size, device).items():
            found = alternated(words, [f"{task}: {who}" for who in contestants(kind)],
                               asked.repeats, asked.threads)
            rows += rows_of(task, work, kind, {variant.partition(": ")[2]: row
                                               for variant, row in found.items()}, limit)
    print(table(f"Peak {limit / 1e12:,.2f} TFLOP/s, median of {asked.repeats}", COLUMNS, rows))


if __name__ == "__main__":
    main()
