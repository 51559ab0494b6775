"""The one training loop, whole on these pages: every stage that trains runs through it.

    python run.py stage=simcse preset=debug

A stage hands over a Task of plain functions; the loop owns steps, schedule, clipping, evaluation,
the best weights, early stopping, history and checkpoints. The order of batches is a function of
seed and epoch and the learning rate one of the step, so that a resumed run repeats them exactly.
"""

import logging
import math
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from torch import Tensor, nn
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from pipeline import checkpoint, processes, sharding
from pipeline.adversarial import shifted
from pipeline.averaging import Average
from pipeline.checkpoint import State
from pipeline.errors import Pruned, Stopped, UserError
from pipeline.history import StepLog

log = logging.getLogger(__name__)
Watch = Callable[[int, dict[str, float]], bool]
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
    keep: str = "best"  # which evaluation's weights: the best one's or the last one's
    ema: float = 0.0
    layer_decay: float = 1.0
    fgm: float = 0.0

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
    measure: Callable[[nn.Module, int], dict[str, float]] | None = None  # geometry at a step
    measure_every: int = 10
    # Told every evaluation and its number, from 1; True ends the training there.
    watch: Watch | None = None


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
    """Fused AdamW; biases and norms (tensors of one dimension) do not decay.

    A group's learning rate is the step's times its `share`: layer_decay to the power of its
    distance from the top (ELECTRA, Clark et al. 2020, appendix B).
    """
    trained = [(depth(name), p) for name, p in model.named_parameters() if p.requires_grad]
    top = max((level for level, _ in trained if level is not None), default=0) + 1
    if recipe.layer_decay < 1 and top == 1:
        raise UserError("sts.layer_decay: expected 1 for an encoder without numbered layers of its "
                        f"own, got {recipe.layer_decay:g}")
    shares = [1.0 if level is None else recipe.layer_decay ** (top - level)
              for level, _ in trained]
    groups = []
    for share in sorted(set(shares)):
        mine = [p for own, (_, p) in zip(shares, trained, strict=True) if own == share]
        groups += [{"params": [p for p in mine if p.ndim > 1], "share": share,
                    "weight_decay": recipe.weight_decay},
                   {"params": [p for p in mine if p.ndim <= 1], "share": share,
                    "weight_decay": 0.0}]
    return torch.optim.AdamW([group for group in groups if group["params"]],
                             lr=recipe.learning_rate, fused=True)


def depth(name: str) -> int | None:
    """How high a parameter stands: 0 the embeddings, 1 … the layers, None what is above them."""
    if "embeddings" in name or ".encoder.LayerNorm." in name:  # DeBERTa's, of relative positions
        return 0
    layer = re.search(r"\.layers?\.(\d+)\.", name)
    return int(layer[1]) + 1 if layer else None


def prepared(model: nn.Module, recipe: Recipe,
             accelerator: Accelerator) -> tuple[nn.Module, AcceleratedOptimizer]:
    """The model on its device, data-parallel or in shards, and its optimizer."""
    if not sharding.wanted():
        model.to(accelerator.device)
        return accelerator.prepare(model, adamw(model, recipe))
    sharding.shard(model, accelerator.device, accelerator.mixed_precision == "bf16")
    optimizer = accelerator.prepare(adamw(model, recipe))
    # evaluation_mode: autocast alone, no data-parallel wrapper around what is in shards.
    return accelerator.prepare_model(model, evaluation_mode=True), optimizer


def train(model: nn.Module, task: Task, recipe: Recipe, accelerator: Accelerator,
          folder: Path) -> State:
    """Trains `model` in place, leaves it with the best weights and returns where it ended.

    Writes `history.jsonl` and `checkpoints/` in folder and goes on from what is there. Raises
    NotFinite, Stopped or Pruned.
    """
    per_epoch = len(task.batches(0))
    total, every = recipe.steps(per_epoch), recipe.interval(per_epoch)
    bare = model
    model, optimizer = prepared(model, recipe, accelerator)
    average = Average(bare, recipe.ema) if recipe.ema else None
    keeper = Keeper(folder / "checkpoints", bare, optimizer.optimizer, accelerator.scaler, average)
    state, batches = keeper.state, []
    steps = StepLog(folder / "history.jsonl", state.step, task.tokens, task.texts,
                    strict=accelerator.scaler is None, trackers=accelerator.trackers)
    if state.step:
        log.info("resumed at step %d of %d", state.step, total)
    else:
        found = look(task, model, 0, evaluate=True, measure=True)
        steps.add_line({"step": 0} | found)
        log.info("step 0: %s", summary(found["eval"]))
    model.train()
    with (stop_signals() as received, logging_redirect_tqdm(),
          tqdm(total=total, initial=state.step, unit="step", desc=folder.parent.name,
               disable=processes.rank() > 0) as bar):
        while state.step < total and not state.stopped_early:
            epoch, place = divmod(state.step, per_epoch)
            if place == 0 or not batches:
                batches = task.batches(epoch)
            rows, rate = batches[place], recipe.rate(state.step, total)
            for group in optimizer.param_groups:
                group["lr"] = rate * group["share"]
            loss = task.loss(model, rows)
            accelerator.backward(loss)
            if recipe.fgm:
                with shifted(bare, recipe.fgm):
                    accelerator.backward(task.loss(model, rows))
            norm = sharding.plain(
                accelerator.clip_grad_norm_(model.parameters(), recipe.max_grad_norm))
            optimizer.step()
            optimizer.zero_grad()
            state.step += 1
            if average:
                average.update(state.step)
            steps.add(state.step, rows, loss.detach(), norm, rate)
            bar.update()
            stopped = processes.largest(max(received, default=0), accelerator.device)
            is_due = state.step % every == 0 or state.step == total
            measure_due = is_due or state.step % task.measure_every == 0
            if measure_due or stopped or len(steps.waiting) >= FLUSH:
                bar.set_postfix_str(f"loss {steps.flush():.4f}")
            with keeper.averaged() if measure_due else nullcontext():
                found = look(task, model, state.step, is_due, measure_due)
                if is_due:
                    is_best = keeper.judge(found["eval"][task.best_by], recipe)
                    log.info("step %d of %d: %s%s", state.step, total, summary(found["eval"]),
                             " (best so far)" if is_best and recipe.keep == "best" else "")
            if found:
                steps.add_line({"step": state.step} | found)
            if (is_due and task.watch and task.watch(math.ceil(state.step / every), found["eval"])
                    and state.step < total and not stopped):
                raise Pruned(folder, state.step)
            if is_due or stopped:
                keeper.save()
            if stopped:
                raise Stopped(stopped, state.step)
        if stopped := processes.largest(max(received, default=0), accelerator.device):
            raise Stopped(stopped, state.step)
    state.seconds = keeper.seconds()
    keeper.load_best()
    return state


def look(task: Task, model: nn.Module, step: int, evaluate: bool, measure: bool) -> dict:
    """The evaluation and the geometry, each if it is due, as a part of a history line."""
    found = {}
    if measure and task.measure:
        began = time.monotonic()
        found = {"geometry": task.measure(model, step)}
        found["geometry_seconds"] = round(time.monotonic() - began, 4)
    return found | ({"eval": task.evaluate(model)} if evaluate else {})


def summary(evaluation: dict[str, float]) -> str:
    """An evaluation in a few words."""
    return ", ".join(f"dev {name} {value:.4f}" for name, value in evaluation.items())


class Keeper:
    """What of a training outlives the process: its state, checkpoints and best weights."""

    def __init__(self, folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer,
                 scaler: torch.amp.GradScaler | None, average: Average | None) -> None:
        """Goes on from what the folder holds."""
        self.folder, self.model, self.optimizer, self.scaler = folder, model, optimizer, scaler
        self.average = average
        self.state = checkpoint.restore(folder, model, optimizer, scaler, average)
        self.before, self.began = self.state.seconds, time.monotonic()

    def averaged(self) -> AbstractContextManager[None]:
        """The model with the weights that are evaluated and kept: the average, if there is one."""
        return self.average.in_place() if self.average else nullcontext()

    def judge(self, value: float, recipe: Recipe) -> bool:
        """Keeps the weights if the evaluation is the best; counts patience. NaN is never best.

        With keep="last" every evaluation's weights take the place of the one's before.
        """
        state = self.state
        if value > state.best or recipe.keep == "last":
            checkpoint.save_best(self.folder, self.model)
            state.best, state.best_step, state.waiting = value, state.step, 0
            return True
        state.waiting += 1
        state.stopped_early = 0 < recipe.patience <= state.waiting
        return False

    def seconds(self) -> float:
        """Time spent on this training by all the commands that worked on it."""
        return self.before + time.monotonic() - self.began

    def save(self) -> None:
        """Writes everything that the next step depends on."""
        self.state.seconds = self.seconds()
        checkpoint.save_newest(self.folder, self.model, self.optimizer, self.scaler, self.state,
                               self.average)

    def load_best(self) -> None:
        """Leaves the model with the kept evaluation's weights; if none was a number, the last."""
        processes.wait()
        if self.state.best_step >= 0:
            checkpoint.load_best(self.folder, self.model)
        elif self.average:
            self.average.exchange()
