"""Training on inference pairs: contrastive as in supervised SimCSE, or three-way classification.

    python run.py stage=nli data.nli_dir=data/nli
    python run.py stage=sts chain=[nli,sts] nli.objective=classification

Contrastive (Gao et al. 2021, section 4): the premise is the anchor, its entailment the positive,
its contradiction a hard negative. Classification: [u, v, |u-v|] (bi; Reimers & Gurevych 2019) or
the pair at once (cross); the encoder goes on to the next stage, the class head does not.
"""

import hashlib
import logging
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import Tensor, nn

from pipeline import processes, sharding
from pipeline.batching import shuffled
from pipeline.checkpoint import State
from pipeline.config import Config
from pipeline.data import Competition, content_hash
from pipeline.encoder import outputs
from pipeline.errors import UserError
from pipeline.files import write_json, written_aside
from pipeline.gradcache import vectors
from pipeline.heads import PairClassifier
from pipeline.losses import info_nce
from pipeline.metrics import interval
from pipeline.nli import LABELS, log_weights, read_nli, triplets
from pipeline.runs import Run
from pipeline.stages.chain import Start, carried_out, read_data, recipe, start_of
from pipeline.stages.contrastive import measured_besides, train_contrastive
from pipeline.training import Task, Watch, train

log = logging.getLogger(__name__)


def run(config: Config) -> None:
    """Completes the stage and says what it gained."""
    complete(config)


def complete(config: Config, watch: Watch | None = None) -> Run:
    """The finished nli run of this configuration."""
    competition, settings = read_data(config), config.nli
    pairs, dev = read_nli(Path(config.data.nli_dir))
    rows = len(pairs)
    if settings.objective == "contrastive":
        rows = int((pairs["label"] == 0).sum())
    if rows < settings.batch_size:
        raise UserError(f"nli.batch_size: expected at most {rows}, the number of training rows, "
                        f"got {settings.batch_size}")
    start = start_of(config, "nli")

    def work(run: Run, accelerator: Accelerator) -> State:
        if settings.objective == "contrastive":
            return contrast(config, run, accelerator, start, competition, pairs, watch)
        return classify(config, run, accelerator, start, pairs, dev, watch)

    data = hashes(pairs, dev) | {"dev": content_hash(competition.dev)}
    besides = measured_besides(config) if settings.objective == "contrastive" else {}
    return carried_out(config, "nli", data, start, work, besides)


def hashes(pairs: pd.DataFrame, dev: pd.DataFrame) -> dict[str, str]:
    """SHA-256 of the training and the dev pairs."""
    return {name: hashlib.sha256(frame.to_csv(index=False).encode()).hexdigest()
            for name, frame in (("nli_train", pairs), ("nli_dev", dev))}


def contrast(config: Config, run: Run, accelerator: Accelerator, start: Start,
             competition: Competition, pairs: pd.DataFrame, watch: Watch | None) -> State:
    """Supervised SimCSE on the triplets of the pairs."""
    settings, device = config.nli, accelerator.device
    encoder = start.load()
    sentences, table = triplets(pairs)  # (n, 3)
    tokens = encoder.tokens(sentences)
    log.info("nli: %d triplets, %d of them with a contradiction", len(table),
             int((table[:, 2] >= 0).sum()))

    def loss(model: nn.Module, rows: np.ndarray) -> Tensor:
        batch = table[rows]
        negatives = batch[batch[:, 2] >= 0, 2]
        found = vectors(model, tokens, np.concatenate([batch[:, 0], batch[:, 1], negatives]),
                        settings.micro_batch, device)
        weights = torch.from_numpy(log_weights(batch, settings.hard_negative_weight)).to(device)
        return info_nce(found[:len(rows)], found[len(rows):], settings.temperature, weights)

    return train_contrastive(
        run, accelerator, encoder, competition, settings, settings.geometry_every, config.seed,
        batches=lambda epoch: shuffled(len(table), settings.batch_size, config.seed, epoch,
                                       drop_last=True),
        loss=loss, tokens=lambda rows: int(tokens.lengths[table[rows][table[rows] >= 0]].sum()),
        texts=lambda rows: [tokens.text(row) for row in table[rows].ravel() if row >= 0],
        facts={"triplets": len(table)}, positive_above=config.data.positive_above, watch=watch)


def classify(config: Config, run: Run, accelerator: Accelerator, start: Start,
             pairs: pd.DataFrame, dev: pd.DataFrame, watch: Watch | None) -> State:
    """Three-way classification; keeps the best dev accuracy's encoder."""
    settings, device = config.nli, accelerator.device
    classifier = PairClassifier(start.load(), settings.head, len(LABELS))
    names = {"premise": "sentence_1", "hypothesis": "sentence_2"}
    train_pairs, dev_pairs = (classifier.pairs(part.rename(columns=names)) for part in (pairs, dev))
    targets = torch.from_numpy(pairs["label"].to_numpy(copy=True))
    labels = dev["label"].to_numpy()
    log.info("nli: %d pairs, %s head", len(pairs), settings.head)

    def loss(model: nn.Module, rows: np.ndarray) -> Tensor:
        mine = train_pairs.batch(processes.own(rows)).to(device)
        logits = processes.gathered(model(mine).float(), len(rows))  # (B, 3)
        return F.cross_entropy(logits, targets[rows].to(device))

    def right() -> np.ndarray:
        with accelerator.autocast():
            logits = outputs(classifier, len(LABELS), dev_pairs, device)  # (n, 3)
        return (logits.argmax(axis=1) == labels).astype(float)

    task = Task(
        batches=lambda epoch: shuffled(len(pairs), settings.batch_size, config.seed, epoch,
                                       drop_last=False),
        loss=loss, evaluate=lambda model: {"accuracy": float(right().mean())},
        best_by="accuracy", watch=watch, tokens=lambda rows: int(train_pairs.lengths[rows].sum()),
        texts=lambda rows: ["\t".join(pair) for pair in pairs.iloc[rows][
            ["premise", "hypothesis"]].itertuples(index=False)])
    state = train(classifier, task, recipe(settings), accelerator, run.folder)
    accuracy = interval(np.mean, right())
    sharding.gather(classifier)
    if processes.rank() > 0:
        return state
    with written_aside(run.model) as aside:
        classifier.encoder.save(aside)
    write_json(run.folder / "metrics.json", {
        "nli_dev": {"n": len(labels), "accuracy": accuracy},
        "best_step": state.best_step, "steps": state.step, "pairs": len(pairs)})
    log.info("nli: dev accuracy %.4f [%.4f, %.4f] (%d pairs; the commonest class alone: %.4f)",
             accuracy["value"], accuracy["low"], accuracy["high"], len(labels),
             np.bincount(labels).max() / len(labels))
    return state
