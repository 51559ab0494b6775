"""What simcse and contrastive nli share: dev similarity and geometry around the training loop."""

import logging
from collections.abc import Callable

import numpy as np
from accelerate import Accelerator
from torch import Tensor, nn

from pipeline import processes, sharding
from pipeline.checkpoint import State
from pipeline.config import Config
from pipeline.data import Competition
from pipeline.diagnostics.clusters import agreement
from pipeline.diagnostics.sketches import save_sketch
from pipeline.encoder import Encoder
from pipeline.files import write_json, written_aside
from pipeline.geometry import Geometry, collapse_warning
from pipeline.heads import PairScorer, raw_scores
from pipeline.history import read_history
from pipeline.metrics import effective_rank, interval, pearson, spearman
from pipeline.runs import Run
from pipeline.sections import Data, Training
from pipeline.stages.chain import recipe
from pipeline.training import Task, Watch, train

log = logging.getLogger(__name__)


def measured_besides(config: Config, traced: bool = False) -> dict[str, object]:
    """What is measured otherwise than always, as a part of the run's identity."""
    above = config.data.positive_above
    return (({"positive_above": above} if above != Data().positive_above else {})
            | ({"traced": True} if traced else {}))


def train_contrastive(run: Run, accelerator: Accelerator, encoder: Encoder,
                      competition: Competition, settings: Training, geometry_every: int, seed: int,
                      batches: Callable[[int], list[np.ndarray]],
                      loss: Callable[[nn.Module, np.ndarray], Tensor],
                      tokens: Callable[[np.ndarray], int],
                      texts: Callable[[np.ndarray], list[str]], facts: dict[str, int],
                      positive_above: float, traced: bool = False,
                      watch: Watch | None = None) -> State:
    """Trains the encoder by `loss`, keeps the best dev Spearman, writes model/ and metrics.json.

    facts are sizes that metrics.json records too. traced: every measurement also has effective
    rank and clusters, and leaves a sketch of the weights in trajectory/. No random number of
    training's is drawn for it.
    """
    device, scorer = accelerator.device, PairScorer(encoder, "bi")
    dev = scorer.pairs(competition.dev)
    labels = competition.dev["label"].to_numpy()
    geometry = Geometry(dev.tokens, dev.left, dev.right, labels, seed, positive_above)

    def cosines() -> np.ndarray:
        with accelerator.autocast():
            return raw_scores(scorer, dev, device)

    def evaluate(model: nn.Module) -> dict[str, float]:
        scores = cosines()
        return {"spearman": float(spearman(scores, labels)),
                "pearson": float(pearson(scores, labels))}

    def measure(model: nn.Module, step: int) -> dict[str, float]:
        with accelerator.autocast():
            vectors = geometry.vectors(encoder, device)
        found = geometry.numbers(vectors)
        if traced:
            if processes.rank() == 0:
                save_sketch(encoder.backbone, run.folder, step)
            found |= {"effective_rank": effective_rank(vectors),
                      **agreement(vectors, geometry.groups, seed)}
        return found

    task = Task(batches=batches, loss=loss, tokens=tokens, texts=texts, evaluate=evaluate,
                best_by="spearman", measure=measure, measure_every=geometry_every,
                watch=watch)
    state = train(encoder, task, recipe(settings), accelerator, run.folder)
    with accelerator.autocast():
        scores, after = cosines(), geometry.measure(encoder, device)
    sharding.gather(encoder)
    if processes.rank() > 0:
        return state
    with written_aside(run.model) as aside:
        encoder.save(aside)
    history = read_history(run.folder / "history.jsonl")
    write_json(run.folder / "metrics.json", {
        "dev": {"n": len(labels), "pearson": interval(pearson, scores, labels),
                "spearman": interval(spearman, scores, labels)},
        "before": {"dev": history[0]["eval"], "geometry": history[0]["geometry"]},
        "geometry": after, "best_step": state.best_step, "steps": state.step, **facts})
    report(run.shape["stage"], history, settings.batch_size, state.best_step, after)
    return state


def number(value: float | None) -> float:
    """A number of the history, where NaN is null."""
    return float("nan") if value is None else value


def report(stage: str, history: list[dict], batch_size: int, best_step: int,
           after: dict[str, float]) -> None:
    """Says in a few lines what the stage did to the space."""
    before, steps = history[0], [line for line in history if "loss" in line]
    seconds = sum(line["seconds"] for line in steps)
    log.info("%s: %d steps, %.1f rows and %.0f real tokens a second", stage, len(steps),
             batch_size * len(steps) / seconds, sum(line["tokens"] for line in steps) / seconds)
    measuring = sum(line.get("geometry_seconds", 0) for line in history)
    log.info("%s: measuring the geometry took %.1f s, %.1f%% of the steps' time%s", stage,
             measuring, 100 * measuring / seconds,
             f"; a higher {stage}.geometry_every costs less" if measuring > seconds / 10 else "")
    start, best = (next((line["eval"]["spearman"] for line in history
                         if "eval" in line and line["step"] == step), None)
                   for step in (0, best_step))
    if start is None or best is None:
        log.warning("warning: dev Spearman was never a number: are dev's labels constant?")
        return
    log.info("%s: dev Spearman %.4f -> %.4f (best, step %d)", stage, start, best, best_step)
    log.info("%s: %s", stage, ", ".join(
        f"{name.replace('_', ' ')} {number(before['geometry'][name]):.3f} -> {value:.3f}"
        for name, value in after.items()))
    if best < start:
        log.warning("warning: no evaluation was better than the encoder it began with; try a lower "
                    "%s.learning_rate or a chain without %s", stage, stage)
    if words := collapse_warning(after["mean_cosine"]):
        log.warning("warning: %s", words)
