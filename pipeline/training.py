"""The one training loop, whole on these pages: every stage that trains runs through it.

    python run.py stage=simcse preset=debug

A stage hands over a Task of plain functions; the loop owns steps, schedule, clipping, evaluation,
the best weights, early stopping, history and checkpoints. The order of batches is a function of
seed and epoch and the learning rate one of the step, so that a resumed run repeats them exactly.
"""

import json
import logging
import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from tqdm import tqdm

from pipeline import checkpoint
from pipeline.checkpoint import State
from pipeline.errors import NotFinite, Stopped
from pipeline.files import plain, write_text

log = logging.getLogger(__name__)
FLUSH = 10  # steps whose losses are read at once: reading one makes a GPU wait


@dataclass(frozen=True)
class Recipe:
    """How long and how fast: the keys that every training stage has."""

    epochs: float
    max_steps: int
    learning_rate: float
    warmup_ratio: float
    weight_decay: float
    max_grad_norm: float
    eval_every: float
    patience: int

    def steps(self, per_epoch: int) -> int:
        """Optimizer steps of the whole training."""
        return self.max_steps or max(1, round(self.epochs * per_epoch))

    def interval(self, per_epoch: int) -> int:
        """Steps between evaluations."""
        every = self.eval_every * per_epoch if self.eval_every < 1 else self.eval_every
        return max(1, round(every))

    def rate(self, step: int, total: int) -> float:
        """Learning rate of a step counted from 0: linear up to the peak, linear down to 0."""
        warmup = math.ceil(self.warmup_ratio * total)
        if step < warmup:
            return self.learning_rate * (step + 1) / warmup
        return self.learning_rate * (total - step) / max(1, total - warmup)


@dataclass(frozen=True)
class Task:
    """What a stage trains, as plain functions of rows (an array of row numbers)."""

    batches: Callable[[int], list[np.ndarray]]  # an epoch's batches
    loss: Callable[[nn.Module, np.ndarray], Tensor]
    tokens: Callable[[np.ndarray], int]  # real tokens of a batch
    texts: Callable[[np.ndarray], list[str]]  # its sentences, for messages
    evaluate: Callable[[nn.Module], dict[str, float]]
    best_by: str  # the evaluation's entry that chooses the best weights
    measure: Callable[[nn.Module], dict[str, float]] | None = None  # geometry
    measure_every: int = 10


class History:
    """`history.jsonl`: a line per step, evaluation and measurement."""

    def __init__(self, path: Path, step: int) -> None:
        """Keeps what an earlier part of the run wrote up to `step`."""
        self.path = path
        lines = read_history(path) if step else []
        write_text(path, "".join(json.dumps(line) + "\n" for line in lines if line["step"] <= step))

    def add(self, *lines: dict) -> None:
        """Appends lines."""
        with open(self.path, "a", encoding="utf-8") as file:
            file.write("".join(json.dumps(plain(line)) + "\n" for line in lines))


def read_history(path: Path) -> list[dict]:
    """The lines of a `history.jsonl`, up to the first that a crash cut short."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            lines.append(json.loads(line))
        except ValueError:
            break
    return lines


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM in a list, so that a step is never torn; twice ends at once."""
    received: list[int] = []

    def receive(number: int, frame: object) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)

    before = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def adamw(model: nn.Module, recipe: Recipe) -> torch.optim.AdamW:
    """Fused AdamW; biases and norms (tensors of one dimension) do not decay."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [{"params": [p for p in trained if p.ndim > 1], "weight_decay": recipe.weight_decay},
              {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, fused=True)


def train(model: nn.Module, task: Task, recipe: Recipe, accelerator: Accelerator,
          folder: Path) -> State:
    """Trains `model` in place, leaves it with the best weights and returns where it ended.

    Writes `history.jsonl` and `checkpoints/` in folder and goes on from what is there. Raises
    NotFinite or Stopped.
    """
    per_epoch = len(task.batches(0))
    total, every = recipe.steps(per_epoch), recipe.interval(per_epoch)
    bare, optimizer = model, adamw(model, recipe)
    model, optimizer = accelerator.prepare(model, optimizer)
    saved, scaler = folder / "checkpoints", accelerator.scaler
    state = checkpoint.restore(saved, bare, optimizer.optimizer, scaler)
    history = History(folder / "history.jsonl", state.step)
    before, began = state.seconds, time.monotonic()

    def save() -> None:
        state.seconds = before + time.monotonic() - began
        checkpoint.save_newest(saved, bare, optimizer.optimizer, scaler, state)

    if state.step:
        log.info("resumed at step %d of %d", state.step, total)
    else:
        first = measured(task, model, 0, due=True) | {"eval": task.evaluate(model)}
        history.add({"step": 0} | first)
        log.info("step 0: %s", summary(first["eval"]))
    model.train()
    pending = Pending(task, history, strict=scaler is None)
    with stop_signals() as stopped, tqdm(total=total, initial=state.step, unit="step",
                                         desc=folder.parent.name) as bar:
        while state.step < total and not state.stopped_early:
            epoch, place = divmod(state.step, per_epoch)
            if place == 0 or not pending.batches:
                pending.batches = task.batches(epoch)
            rows, rate = pending.batches[place], recipe.rate(state.step, total)
            for group in optimizer.param_groups:
                group["lr"] = rate
            loss = task.loss(model, rows)
            accelerator.backward(loss)
            norm = accelerator.clip_grad_norm_(model.parameters(), recipe.max_grad_norm)
            optimizer.step()
            optimizer.zero_grad()
            state.step += 1
            pending.add(state.step, rows, loss.detach(), norm, rate)
            bar.update()
            is_due = state.step % every == 0 or state.step == total
            geometry_due = state.step % task.measure_every == 0 or is_due
            if len(pending.steps) >= FLUSH or is_due or geometry_due or stopped:
                bar.set_postfix_str(f"loss {pending.flush():.4f}")
            found = measured(task, model, state.step, geometry_due)
            if is_due:
                found["eval"] = task.evaluate(model)
                judge(found["eval"][task.best_by], state, recipe, saved, bare)
                bar.write(f"step {state.step}/{total}: {summary(found['eval'])}"
                          f"{' (best so far)' if state.best_step == state.step else ''}")
            if found:
                history.add({"step": state.step} | found)
                pending.restart_clock()
            if is_due or stopped:
                save()
            if stopped and state.step < total:
                raise Stopped(stopped[0], state.step)
    if state.best_step >= 0:
        checkpoint.load_best(saved, bare)
    return state


def measured(task: Task, model: nn.Module, step: int, due: bool) -> dict:
    """The task's geometry, if it is due, as a part of a history line."""
    return {"geometry": task.measure(model)} if task.measure and due else {}


def judge(value: float, state: State, recipe: Recipe, saved: Path, model: nn.Module) -> None:
    """Keeps the weights if the evaluation is the best; counts patience. NaN is never better."""
    if value > state.best:
        checkpoint.save_best(saved, model)
        state.best, state.best_step, state.waiting = value, state.step, 0
    else:
        state.waiting += 1
        state.stopped_early = 0 < recipe.patience <= state.waiting


def summary(evaluation: dict[str, float]) -> str:
    """An evaluation in a few words."""
    return ", ".join(f"dev {name} {value:.4f}" for name, value in evaluation.items())


class Pending:
    """Steps whose losses are still on the device, and the epoch's batches."""

    def __init__(self, task: Task, history: History, strict: bool) -> None:
        """strict: gradients must be finite too (with fp16's scaler some steps' are not)."""
        self.task, self.history, self.strict = task, history, strict
        self.batches: list[np.ndarray] = []
        self.steps: list[tuple] = []
        self.clock = time.monotonic()

    def restart_clock(self) -> None:
        """Leaves the time since the last flush out of the steps' seconds (evaluations)."""
        self.clock = time.monotonic()

    def add(self, step: int, rows: np.ndarray, loss: Tensor, norm: Tensor, rate: float) -> None:
        """Remembers a step."""
        self.steps.append((step, rows, loss, torch.as_tensor(norm), rate))

    def flush(self) -> float:
        """Reads the losses, writes the history lines and returns the mean loss."""
        losses = torch.stack([entry[2].float() for entry in self.steps]).tolist()
        norms = torch.stack([entry[3].float() for entry in self.steps]).tolist()
        seconds = (time.monotonic() - self.clock) / len(self.steps)
        lines = [{"step": step, "loss": loss, "lr": rate, "grad_norm": norm,
                  "tokens": self.task.tokens(rows), "seconds": round(seconds, 4)}
                 for (step, rows, _, _, rate), loss, norm
                 in zip(self.steps, losses, norms, strict=True)]
        self.history.add(*lines)
        for line, entry in zip(lines, self.steps, strict=True):
            if not math.isfinite(line["loss"]):
                self.refuse("loss", line, entry[1])
            if self.strict and not math.isfinite(line["grad_norm"]):
                self.refuse("grad_norm", line, entry[1])
        self.steps = []
        self.restart_clock()
        return sum(losses) / len(losses)

    def refuse(self, what: str, line: dict, rows: np.ndarray) -> None:
        """Ends the run at a step that is no number, with the sentences of its batch."""
        texts = " | ".join(text.replace("\t", " / ") for text in self.task.texts(rows))
        raise NotFinite(f"step {line['step']}: expected a finite {what}, got {line[what]}; lower "
                        f"the learning rate or use precision=fp32; the batch's sentences: {texts}")
