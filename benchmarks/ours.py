"""This project's stages as the benchmarks time them: its own loop, objective and encoding."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from benchmarks.measuring import (
    TokenCount,
    both_clocks,
    matmul_parameters,
    passed,
    peak_gib,
    useful_flops,
)
from benchmarks.work import LEARNING_RATE, SEED, TEMPERATURE, Work
from pipeline import hardware
from pipeline.batching import shuffled
from pipeline.encoder import Encoder, embed, load_encoder
from pipeline.gradcache import vectors
from pipeline.heads import PairScorer, raw_scores
from pipeline.history import read_history
from pipeline.losses import info_nce
from pipeline.metrics import pearson, spearman
from pipeline.recipe import Recipe
from pipeline.sections import Sts
from pipeline.stages.fitting import objective
from pipeline.training import Task, train


def loaded(work: Work) -> Encoder:
    """The work's encoder."""
    reading = work.reading
    return load_encoder(work.encoder, reading.pooling, reading.prefix, reading.max_length)


def started(work: Work, precision: str) -> Any:
    """The accelerator; precision "auto" is what the pipeline chooses by itself."""
    device = hardware.pick_device(work.device)
    return hardware.start(device, hardware.pick_precision(precision, device), SEED, False)


def simcse(work: Work, precision: str = "auto") -> dict[str, Any]:
    """Contrastive training on the work's sentences; the score is dev's Spearman of cosines."""
    accelerator = started(work, precision)
    encoder = loaded(work).to(accelerator.device)
    tokens = encoder.tokens(work.training_texts())

    def loss(model: nn.Module, rows: np.ndarray) -> Tensor:
        both = vectors(model, tokens, np.concatenate([rows, rows]), 0, accelerator.device)
        return info_nce(*both.chunk(2), TEMPERATURE)

    def score() -> float:
        dev, scorer = work.dev_pairs(), PairScorer(encoder, "bi")
        raw = raw_scores(scorer, scorer.pairs(dev), accelerator.device)
        return float(spearman(raw, dev["label"].to_numpy()))

    return timed(work, accelerator, encoder, len(tokens), loss, score)


def cross(work: Work, precision: str = "auto") -> dict[str, Any]:
    """A cross-encoder's regression on the work's pairs; the score is dev's Pearson."""
    accelerator = started(work, precision)
    frame, dev = work.training_pairs(), work.dev_pairs()
    scorer = PairScorer(loaded(work), "cross").to(accelerator.device)
    pairs = scorer.pairs(frame)
    loss = objective(Sts(), scorer, pairs, frame, accelerator.device)

    def score() -> float:
        raw = raw_scores(scorer, scorer.pairs(dev), accelerator.device)
        return float(pearson(raw, dev["label"].to_numpy()))

    return timed(work, accelerator, scorer, len(pairs), loss, score)


def timed(work: Work, accelerator: Any, model: nn.Module, n: int,
          loss: Callable[[nn.Module, np.ndarray], Tensor],
          score: Callable[[], float]) -> dict[str, Any]:
    """An epoch over n rows in the pipeline's loop, after a step's loss and gradient to warm up.

    The loop evaluates before the first step and after the last: that is where the clocks are read.
    """
    count, clocks = TokenCount(model), []

    def read_clocks(model: nn.Module) -> dict[str, float]:
        clocks.append(both_clocks(accelerator.device.type))
        return {"step": 0.0}

    task = Task(batches=lambda epoch: shuffled(n, work.batch, SEED, epoch, True), loss=loss,
                tokens=lambda rows: len(rows), texts=lambda rows: [],
                evaluate=read_clocks, best_by="step", measure_every=work.steps)
    model.train()
    with accelerator.autocast():
        loss(model, task.batches(1)[0]).backward()
    model.zero_grad()
    count.restart()
    recipe = Recipe(epochs=1, max_steps=0, learning_rate=LEARNING_RATE, warmup_ratio=0.1,
                    weight_decay=0.01, max_grad_norm=1.0, eval_every=work.steps, patience=0)
    with tempfile.TemporaryDirectory() as folder:
        train(model, task, recipe, accelerator, Path(folder))
        lines = [line for line in read_history(Path(folder) / "history.jsonl") if "loss" in line]
    found = {**passed(*clocks), "real": int(count.real), "processed": count.processed,
             "gib": peak_gib(),
             "loss": float(np.mean([line["loss"] for line in lines])),
             "flops": useful_flops(matmul_parameters(model), int(count.real), True)}
    with accelerator.autocast():
        return found | {"score": score()}


def encode(work: Work, precision: str = "auto") -> dict[str, Any]:
    """Sentences to vectors, tokenising included, after 32 of them to warm up."""
    accelerator = started(work, precision)
    encoder, texts = loaded(work).to(accelerator.device), work.texts[:work.sentences]
    count = TokenCount(encoder)
    with accelerator.autocast():
        embed(encoder, encoder.tokens(texts[:32]), accelerator.device)
        count.restart()
        began = both_clocks(accelerator.device.type)
        tokens = encoder.tokens(texts)
        tokenised = both_clocks(accelerator.device.type)
        found = embed(encoder, tokens, accelerator.device)
        ended = both_clocks(accelerator.device.type)
    return {**passed(began, ended), "tokenising": passed(began, tokenised)["seconds"],
            "real": int(count.real), "processed": count.processed, "gib": peak_gib(),
            "flops": useful_flops(matmul_parameters(encoder), int(count.real), False),
            "norm": float(np.linalg.norm(found, axis=1).mean())}
