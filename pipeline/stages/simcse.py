"""Unsupervised SimCSE on every sentence of the competition (Gao et al. 2021, section 3).

    python run.py stage=simcse

A sentence's two views differ in their dropout masks alone; the batch's other sentences are the
negatives. No label is used but dev's, to choose the best weights.
"""

import hashlib
import logging
from pathlib import Path

import numpy as np
import pandas as pd
from accelerate import Accelerator
from torch import Tensor, nn

from pipeline import processes
from pipeline.batching import shuffled
from pipeline.checkpoint import State
from pipeline.config import Config
from pipeline.corpus import unlabelled
from pipeline.data import content_hash
from pipeline.errors import UserError
from pipeline.gradcache import vectors
from pipeline.losses import info_nce
from pipeline.runs import Run
from pipeline.stages.chain import carried_out, read_data, start_of
from pipeline.stages.contrastive import measured_besides, train_contrastive
from pipeline.training import Watch

log = logging.getLogger(__name__)


def run(config: Config) -> None:
    """Completes the stage and says what it gained."""
    complete(config)


def complete(config: Config, watch: Watch | None = None, traced: bool = False) -> Run:
    """The finished simcse run of this configuration; traced: with what stage=dynamics reads."""
    competition, settings = read_data(config), config.simcse
    frames = [competition.train, competition.dev, competition.test]
    extra = [Path(name) for name in config.data.extra]
    mark = checked_sentences(frames, extra, settings.batch_size if settings.drop_last else 0)
    start = start_of(config, "simcse")

    def work(run: Run, accelerator: Accelerator) -> State:
        if settings.dropout == 0:
            log.warning("warning: simcse.dropout=0 makes the two views equal: nothing is learnt")
        encoder = start.load(settings.dropout)
        corpus = run.folder / "checkpoints" / f"corpus-{processes.rank()}.arrow"
        corpus.parent.mkdir(exist_ok=True)
        tokens = encoder.tokens(unlabelled(frames, extra), corpus)
        log.info("simcse: %d sentences, %d real tokens", len(tokens), int(tokens.lengths.sum()))

        def loss(model: nn.Module, rows: np.ndarray) -> Tensor:
            both = vectors(model, tokens, np.concatenate([rows, rows]), settings.micro_batch,
                           accelerator.device)
            first, second = both.chunk(2)  # (B, d) each
            return info_nce(first, second, settings.temperature)

        return train_contrastive(
            run, accelerator, encoder, competition, settings, settings.geometry_every, config.seed,
            batches=lambda epoch: shuffled(len(tokens), settings.batch_size, config.seed, epoch,
                                           settings.drop_last),
            loss=loss, tokens=lambda rows: 2 * int(tokens.lengths[rows].sum()),
            texts=lambda rows: [tokens.text(row) for row in rows],
            facts={"sentences": len(tokens)}, positive_above=config.data.positive_above,
            traced=traced, watch=watch)

    data = {"sentences": mark, "dev": content_hash(competition.dev)}
    return carried_out(config, "simcse", data, start, work, measured_besides(config, traced))


def checked_sentences(frames: list[pd.DataFrame], extra: list[Path], batch_size: int) -> str:
    """SHA-256 of all sentences; refuses fewer than a batch."""
    mark, count = hashlib.sha256(), 0
    for text in unlabelled(frames, extra):
        mark.update(text.encode() + b"\n")
        count += 1
    if count < batch_size:
        raise UserError(f"simcse.batch_size: expected at most {count}, the number of sentences, "
                        f"got {batch_size}")
    return mark.hexdigest()
