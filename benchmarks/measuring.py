"""What the benchmarks share: processes of their own, peak memory, tokens, floating-point work.

    python -m benchmarks.peers --encoder DIR --data DIR

A child process prints one JSON line; this side starts them, variants taking turns, so that what
else the machine does falls on all of them alike. Nothing slow is imported here: a child's peak
memory, as the kernel counts it, is never below its parent's.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any


def child(words: list[str], threads: int) -> dict[str, Any]:
    """Runs `python words…` and returns the JSON object of its last line of output."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1",
                                "TOKENIZERS_PARALLELISM": "true" if threads > 1 else "false"}
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(f"error: {' '.join(words)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def alternated(words: list[str], variants: list[str], repeats: int,
               threads: int) -> dict[str, dict[str, Any]]:
    """Medians of every variant's figures; the variants take turns, each run a process of its own.

    words: what starts a child, to which `--only VARIANT` is added.
    """
    found: dict[str, list[dict]] = {name: [] for name in variants}
    for turn in range(repeats):
        for name, rows in found.items():
            print(f"\r{turn + 1} of {repeats}: {name:40s}", end="", file=sys.stderr, flush=True)
            rows.append(child([*words, "--only", name], threads))
    print("\r" + 60 * " " + "\r", end="", file=sys.stderr, flush=True)
    return {name: medians(rows) for name, rows in found.items()}


def medians(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of every figure; text as in the first row."""
    return {name: value if isinstance(value, str) else statistics.median(row[name] for row in rows)
            for name, value in rows[0].items()}


def command(words: list[str], threads: int = 1) -> dict[str, Any]:
    """Seconds (by the clock, of processors), peak GiB and output of `python words…`."""
    began = time.monotonic()
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True,
                               env=os.environ | {"OMP_NUM_THREADS": str(threads),
                                                 "HF_HUB_OFFLINE": "1"})
    output = process.stdout.read()
    process.stdout.close()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"error: {' '.join(words)} ended with {process.returncode}:\n{output[-2000:]}")
    return {"seconds": time.monotonic() - began, "processor": usage.ru_utime + usage.ru_stime,
            "gib": usage.ru_maxrss / 2**20, "output": output}


def peak_gib() -> float:
    """This process's peak memory: the card's where it has one, else what the kernel counted."""
    import resource

    import torch

    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # KiB on Linux


def both_clocks(device: str) -> tuple[float, float]:
    """The clock and this process's processor seconds, after the card has done what it was asked."""
    import torch

    if device == "cuda":
        torch.cuda.synchronize()
    return time.monotonic(), time.process_time()


def passed(began: tuple[float, float], ended: tuple[float, float]) -> dict[str, float]:
    """Seconds by the clock, and of processors: with one thread those are free of others' work."""
    return {"seconds": ended[0] - began[0], "processor": ended[1] - began[1]}


class TokenCount:
    """Counts the tokens that go through a model: real ones, and with the padding."""

    def __init__(self, model: Any) -> None:
        """Listens to the word embeddings of the transformers model in `model`."""
        from transformers import PreTrainedModel

        self.real, self.processed = 0, 0
        inner = next(part for part in model.modules() if isinstance(part, PreTrainedModel))
        self.padding = inner.config.pad_token_id
        inner.get_input_embeddings().register_forward_pre_hook(self.see)

    def see(self, module: Any, inputs: tuple) -> None:
        """Adds a batch; a sum on a card stays there, so that nothing waits for it."""
        self.processed += inputs[0].numel()
        self.real = self.real + (inputs[0] != self.padding).sum()

    def restart(self) -> None:
        """Counts from 0 again."""
        self.real, self.processed = 0, 0


def matmul_parameters(model: Any) -> int:
    """Weights of the layers' matrix products: 4·d² + 2·d·inner a layer, no embeddings, no head."""
    import re

    return sum(p.numel() for name, p in model.named_parameters()
               if p.ndim == 2 and re.search(r"\.layers?\.\d+\.", name))


def useful_flops(parameters: int, tokens: int, training: bool) -> int:
    """Floating-point work that cannot be left out: 2 a weight and token forward, 4 backward.

    Attention's own products, which grow with the length, are left out (Kaplan et al. 2020, 2.1).
    """
    return (6 if training else 2) * parameters * tokens


def table(title: str, columns: dict[str, str], rows: list[dict[str, Any]]) -> str:
    """A Markdown table; columns: heading to format of the row's entry of that name."""
    lines = [title, "", "| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(
        "–" if row.get(name) is None else format(row[name], form)
        for name, form in columns.items()) + " |" for row in rows]
    return "\n".join(lines) + "\n"
