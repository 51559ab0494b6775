"""Unsupervised SimCSE on every sentence of the competition (Gao et al. 2021, section 3).

    python run.py stage=simcse

A sentence's two views differ in their dropout masks alone; the batch's other sentences are the
negatives. No label is used but dev's, to choose the best weights.
"""

import hashlib
import logging
from pathlib import Path

import numpy as np
from accelerate import Accelerator
from torch import Tensor, nn

from pipeline.batching import shuffled
from pipeline.config import Config
from pipeline.corpus import sentence_table, unlabelled
from pipeline.data import content_hash, read_competition
from pipeline.encoder import embed
from pipeline.errors import UserError
from pipeline.files import write_json, written_aside
from pipeline.geometry import Geometry, collapse_warning
from pipeline.losses import info_nce
from pipeline.metrics import interval, normalised, pearson, spearman
from pipeline.runs import Run
from pipeline.stages.chain import carried_out, recipe, start_of
from pipeline.training import Task, read_history, train

log = logging.getLogger(__name__)


def run(config: Config) -> None:
    """Completes the stage and says what it gained."""
    complete(config)


def complete(config: Config) -> Run:
    """The finished simcse run of this configuration."""
    competition = read_competition(Path(config.data.dir))
    frames = [competition.train, competition.dev, competition.test]
    extra = [Path(name) for name in config.data.extra]
    mark, count = hashlib.sha256(), 0
    for text in unlabelled(frames, extra):
        mark.update(text.encode() + b"\n")
        count += 1
    settings = config.simcse
    if settings.drop_last and count < settings.batch_size:
        raise UserError(f"simcse.batch_size: expected at most {count}, the number of sentences, "
                        f"got {settings.batch_size}")
    start = start_of(config, "simcse")

    def work(run: Run, accelerator: Accelerator) -> None:
        if settings.dropout == 0:
            log.warning("warning: simcse.dropout=0 makes the two views equal: nothing is learnt")
        encoder = start.load(settings.dropout)
        encoder.to(accelerator.device)
        corpus = run.folder / "checkpoints" / "corpus.arrow"
        corpus.parent.mkdir(exist_ok=True)
        tokens = encoder.tokens(unlabelled(frames, extra), corpus)
        texts, left, right = sentence_table(competition.dev)
        dev = encoder.tokens(texts)
        labels = competition.dev["label"].to_numpy()
        geometry = Geometry(dev, left, right, labels, config.seed)

        def loss(model: nn.Module, rows: np.ndarray) -> Tensor:
            both = tokens.batch(np.concatenate([rows, rows])).to(accelerator.device)
            first, second = model(both).chunk(2)  # (B, d) each
            return info_nce(first, second, settings.temperature)

        def cosines(model: nn.Module) -> np.ndarray:
            vectors = normalised(embed(model, dev, accelerator.device))
            return (vectors[left] * vectors[right]).sum(axis=1)

        def evaluate(model: nn.Module) -> dict[str, float]:
            scores = cosines(model)
            return {"spearman": float(spearman(scores, labels)),
                    "pearson": float(pearson(scores, labels))}

        def measure(model: nn.Module) -> dict[str, float]:
            return geometry.measure(model, accelerator.device)

        task = Task(
            batches=lambda epoch: shuffled(len(tokens), settings.batch_size, config.seed, epoch,
                                           settings.drop_last),
            loss=loss, evaluate=evaluate, best_by="spearman",
            tokens=lambda rows: 2 * int(tokens.lengths[rows].sum()),
            texts=lambda rows: [tokens.text(row) for row in rows],
            measure=measure, measure_every=settings.geometry_every)
        log.info("simcse: %d sentences, %d real tokens", len(tokens), int(tokens.lengths.sum()))
        state = train(encoder, task, recipe(settings), accelerator, run.folder)
        with accelerator.autocast():
            scores, after = cosines(encoder), measure(encoder)
        with written_aside(run.model) as aside:
            encoder.save(aside)
        history = read_history(run.folder / "history.jsonl")
        write_json(run.folder / "metrics.json", {
            "dev": {"n": len(labels), "pearson": interval(pearson, scores, labels),
                    "spearman": interval(spearman, scores, labels)},
            "before": history[0], "geometry": after, "best_step": state.best_step,
            "steps": state.step, "sentences": len(tokens)})
        report(history, state.step, settings.batch_size, state.best_step, after)

    data = {"sentences": mark.hexdigest(), "dev": content_hash(competition.dev)}
    return carried_out(config, "simcse", data, start, work)


def report(history: list[dict], steps: int, batch_size: int, best_step: int,
           after: dict[str, float]) -> None:
    """Says in a few lines what the stage did to the space."""
    before, evaluated = history[0], {line["step"]: line["eval"] for line in history
                                     if "eval" in line}
    seconds = [line["seconds"] for line in history if "loss" in line]
    log.info("simcse: %d steps, %.1f sentences a second", steps,
             batch_size * len(seconds) / max(sum(seconds), 1e-9))
    log.info("simcse: dev Spearman %.4f -> %.4f (best, step %d), alignment %.3f -> %.3f, "
             "uniformity %.3f -> %.3f, mean cosine %.3f -> %.3f",
             before["eval"]["spearman"], evaluated[best_step]["spearman"], best_step,
             *(value for name in ("alignment", "uniformity", "mean_cosine")
               for value in (before["geometry"][name] or float("nan"), after[name])))
    if evaluated[best_step]["spearman"] < before["eval"]["spearman"]:
        log.warning("warning: no evaluation was better than the encoder it began with; "
                    "try a lower simcse.learning_rate or chain=[sts]")
    if words := collapse_warning(after["mean_cosine"]):
        log.warning("warning: %s", words)
