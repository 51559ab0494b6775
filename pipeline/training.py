"""The one training loop, whole on these pages: every stage that trains runs through it.

    python run.py stage=simcse preset=debug

A stage hands over a Task of plain functions; the loop owns steps, schedule, clipping, evaluation,
the best weights, early stopping, history and checkpoints. The order of batches is a function of
seed and epoch and the learning rate one of the step, so that a resumed run repeats them exactly.
"""

import logging
import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from torch import Tensor, nn
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from pipeline import processes, sharding
from pipeline.adversarial import perturbed, shifted
from pipeline.averaging import Average
from pipeline.checkpoint import State
from pipeline.errors import Pruned, Stopped
from pipeline.history import StepLog
from pipeline.keeper import Keeper
from pipeline.optimizer import adamw
from pipeline.recipe import Recipe

log = logging.getLogger(__name__)
Watch = Callable[[int, dict[str, float]], bool]
FLUSH = 10  # steps whose losses are read at once: reading one makes a GPU wait


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
            if recipe.awp:
                with perturbed(bare, recipe.awp):
                    optimizer.zero_grad()
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
