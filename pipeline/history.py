"""`history.jsonl`: a line per optimizer step, evaluation and measurement of a run."""

import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pipeline import processes
from pipeline.errors import NotFinite
from pipeline.files import plain, write_text
from pipeline.trackers import Tracker


def read_history(path: Path) -> list[dict]:
    """The lines of a `history.jsonl`, up to the first that a crash cut short."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            lines.append(json.loads(line))
        except ValueError:
            break
    return lines


class StepLog:
    """`history.jsonl`: a line per step, evaluation and measurement.

    Losses stay on the device until they are flushed. Only the first process writes.
    """

    def __init__(self, path: Path, step: int, tokens: Callable[[np.ndarray], int],
                 texts: Callable[[np.ndarray], list[str]], strict: bool,
                 trackers: Sequence[Tracker] = ()) -> None:
        """Keeps what an earlier part of the run wrote up to `step`.

        tokens and texts give a batch's real tokens and sentences. strict: gradients must be
        finite too (with fp16's scaler some steps' are not). trackers: those that show every line
        too.
        """
        self.path, self.tokens, self.texts, self.strict = path, tokens, texts, strict
        self.waiting: list[tuple] = []
        self.clock = time.monotonic()
        self.trackers = trackers
        lines = [line for line in read_history(path) if line["step"] <= step] if step else []
        if processes.rank() == 0:
            write_text(path, "".join(json.dumps(line) + "\n" for line in lines))
        for tracker in trackers:
            tracker.begin(lines)

    def add_line(self, *lines: dict) -> None:
        """Appends lines; what came since the last flush is left out of the steps' seconds."""
        lines = plain(lines)
        if processes.rank() == 0:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write("".join(json.dumps(line) + "\n" for line in lines))
        for tracker in self.trackers:
            tracker.add(lines)
        self.clock = time.monotonic()

    def add(self, step: int, rows: np.ndarray, loss: Tensor, norm: Tensor, rate: float) -> None:
        """Remembers a step."""
        self.waiting.append((step, rows, loss.float(), torch.as_tensor(norm).float(), rate))

    def flush(self) -> float:
        """Reads the losses, writes their lines and returns the mean loss; raises NotFinite."""
        seconds = (time.monotonic() - self.clock) / len(self.waiting)
        steps, rows, losses, norms, rates = zip(*self.waiting, strict=True)
        losses, norms = torch.stack(losses).tolist(), torch.stack(norms).tolist()
        lines = [{"step": step, "loss": loss, "lr": rate, "grad_norm": norm,
                  "tokens": self.tokens(batch), "seconds": round(seconds, 4)}
                 for step, batch, loss, norm, rate
                 in zip(steps, rows, losses, norms, rates, strict=True)]
        self.add_line(*lines)
        for line, batch in zip(lines, rows, strict=True):
            for what in ("loss", "grad_norm") if self.strict else ("loss",):
                if not math.isfinite(line[what]):
                    self.refuse(what, line, batch)
        self.waiting = []
        return sum(losses) / len(losses)

    def refuse(self, what: str, line: dict, rows: np.ndarray) -> None:
        """Ends the run at a step that is no number, with the sentences of its batch."""
        texts = " | ".join(text.replace("\t", " / ") for text in self.texts(rows))
        raise NotFinite(f"step {line['step']}: expected a finite {what}, got {line[what]}; lower "
                        f"the learning rate or use precision=fp32; the batch's sentences: {texts}",
                        self.path.parent)
