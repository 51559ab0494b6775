"""What several tests of training share: a toy regression for the loop, tiny settings for stages."""

import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import nn

from pipeline import hardware
from pipeline.batching import shuffled
from pipeline.checkpoint import State
from pipeline.history import read_history
from pipeline.recipe import Recipe
from pipeline.training import Task, train

ROWS, BATCH, PER_EPOCH = 22, 4, 6  # the last batch of an epoch has two rows
X = torch.randn(ROWS, 5, generator=torch.Generator().manual_seed(1))
Y = torch.randn(ROWS, generator=torch.Generator().manual_seed(2))

MODEL = {"model/config.json", "model/model.safetensors", "model/sentence_encoder.json",
         "model/tokenizer.json", "model/tokenizer_config.json"}
RUN = MODEL | {"config.yaml", "manifest.json", "history.jsonl", "metrics.json", "log.txt"}
STS = {"model/head.json", "predictions/dev.csv", "predictions/test.csv"}


def toy_model(seed: int = 0) -> nn.Module:
    """Two layers with a norm and dropout, so that weight decay and the generators count."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.Dropout(0.2), nn.Linear(8, 1))


def toy_loss(model: nn.Module, rows: np.ndarray) -> torch.Tensor:
    """Mean squared error of a batch."""
    return ((model(X[rows]).squeeze(-1) - Y[rows]) ** 2).mean()


def toy_batches(epoch: int) -> list[np.ndarray]:
    """An epoch's batches."""
    return shuffled(ROWS, BATCH, 7, epoch, drop_last=False)


def jagged(model: nn.Module) -> dict[str, float]:
    """A score that goes up and down and differs as soon as a single weight does."""
    weights = torch.cat([p.detach().flatten().double() for p in model.parameters()])
    return {"score": math.sin(3000 * float(weights.sum()))}


def scripted(*values: float) -> Callable[[nn.Module], dict[str, float]]:
    """An evaluation that gives these values one after the other; the first is of step 0."""
    left = iter(values)
    return lambda model: {"score": next(left)}


def toy_task(**changes: object) -> Task:
    """The toy regression as a Task."""
    parts = {"batches": toy_batches, "loss": toy_loss, "evaluate": jagged, "best_by": "score",
             "tokens": lambda rows: 10 * len(rows),
             "texts": lambda rows: [f"sentence {row}." for row in rows]}
    return Task(**parts | changes)


def toy_recipe(**changes: object) -> Recipe:
    """26 steps of five epochs of six, evaluated every four."""
    parts = {"epochs": 1.0, "max_steps": 26, "learning_rate": 0.03, "warmup_ratio": 0.2,
             "weight_decay": 0.1, "max_grad_norm": 0.5, "eval_every": 4, "patience": 0}
    return Recipe(**parts | changes)


def toy_train(folder: Path, task: Task | None = None, model: nn.Module | None = None,
              **changes: object) -> tuple[nn.Module, State]:
    """Trains the toy as a stage would, from the first step or from what the folder holds."""
    accelerator = hardware.start("cpu", "fp32", 0, False)
    model = model or toy_model()
    torch.manual_seed(5)
    return model, train(model, task or toy_task(), toy_recipe(**changes), accelerator, folder)


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """A copy of the weights."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Whether two sets of weights have the same names and bits."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def timeless(lines: list[dict]) -> list[dict]:
    """History lines without the seconds, which no two runs share."""
    return [{name: value for name, value in line.items() if not name.endswith("seconds")}
            for line in lines]


class Crash(Exception):
    """What a test's loss function raises."""


def stopping(at: int, how: int | None) -> Callable:
    """The toy's loss that at the given call sends a signal to this process, or raises."""
    calls = []

    def loss(model, rows):
        calls.append(rows)
        if len(calls) == at:
            if how is None:
                raise Crash
            os.kill(os.getpid(), how)
        return toy_loss(model, rows)

    return loss


def assert_same(folder: Path, model: nn.Module, state: State, undisturbed: tuple) -> None:
    """The training's end and history are those of the undisturbed one, but for the clock."""
    expected, end, history = undisturbed
    assert equal(weights(model), expected)
    state.seconds = end.seconds
    assert state == end
    assert timeless(read_history(folder / "history.jsonl")) == timeless(history)


def read_csv(path: Path) -> pd.DataFrame:
    """A table whose ids stay text."""
    return pd.read_csv(path, dtype={"id": str})


def done(command: Callable, *words: str) -> str:
    """Runs a command that has to succeed; returns what it wrote to stdout and stderr."""
    code, out, err = command(*words)
    assert code == 0, err
    return out + err


def small(encoder: Path, *words: str, data: Path | str = "data") -> list[str]:
    """A command line for a tiny encoder and a few steps; later words win."""
    settings = dict(word.split("=", 1) for word in (
        f"data.dir={data}", f"encoder.path={encoder}", "encoder.max_length=32", "precision=fp32",
        "simcse.max_steps=4", "simcse.batch_size=8", "simcse.eval_every=2",
        "simcse.learning_rate=1e-3", "sts.max_steps=4", "sts.batch_size=8", "sts.eval_every=2",
        "sts.learning_rate=1e-3", *words))
    return [f"{name}={value}" for name, value in settings.items() if value != "none"]


def finished_chain(command: Callable, words: list[str], folder: Path, cache: Path) -> None:
    """Puts runs/ and submissions/ of a finished stage=sts in folder: trained once a cache."""
    for name in ("runs", "submissions"):
        if (cache / name).exists():
            shutil.copytree(cache / name, folder / name)
    if not (cache / "runs").exists():
        done(command, "stage=sts", *words)
        for name in ("runs", "submissions"):
            shutil.copytree(folder / name, cache / name)


def only(folder: Path, pattern: str = "*-*") -> Path:
    """The one path of the folder that fits the pattern."""
    found = sorted(folder.glob(pattern))
    assert len(found) == 1, f"{folder}: expected one {pattern}, got {found}"
    return found[0]


def read_json(path: Path) -> dict:
    """A JSON file's content."""
    return json.loads(path.read_text(encoding="utf-8"))


def files_of(folder: Path) -> set[str]:
    """Every file below the folder, by relative path."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
