"""One regression model: trained on some pairs, judged on others, asked about more.

    python run.py stage=sts sts.head=bi sts.loss=cosent
"""

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import Tensor, nn

from pipeline import augment, processes, sharding
from pipeline.audit import binary_threshold
from pipeline.batching import shuffled
from pipeline.checkpoint import State
from pipeline.config import Config
from pipeline.data import HIGHEST, SENTENCES
from pipeline.errors import UserError
from pipeline.files import written_aside
from pipeline.heads import (
    PairReading,
    Pairs,
    PairScorer,
    fit_scale,
    logistic_link,
    raw_scores,
    to_labels,
)
from pipeline.history import read_history
from pipeline.losses import REGRESSION, SCALE_FREE, r_drop
from pipeline.metrics import pearson, spearman
from pipeline.runs import Run
from pipeline.sections import Sts
from pipeline.stages.chain import Start, recipe
from pipeline.training import Task, Watch, train

log = logging.getLogger(__name__)
SCALED_ON = 2048  # training pairs that a scale-free loss's level is fitted on
CROSS_ONLY = {"swap": False, "both_orders": False, "dropout_samples": 1}


def loss_name(settings: Sts) -> str:
    """The loss that `auto` stands for."""
    if settings.loss != "auto":
        return settings.loss
    return "cosent" if settings.head == "bi" else "mse"


def wanted_dropout(settings: Sts) -> float | None:
    """The dropout that replaces the model's own; None: it stays."""
    return settings.dropout if settings.dropout >= 0 else None


def check_settings(settings: Sts, frame: pd.DataFrame) -> None:
    """Refuses settings that could not have an effect, or cannot work on these training pairs."""
    for name, off in CROSS_ONLY.items():
        if settings.head == "bi" and getattr(settings, name) != off:
            raise UserError(f"sts.{name}: expected {str(off).lower()} with sts.head=bi, whose "
                            "score has no order and no dropout of its own, got "
                            f"{str(getattr(settings, name)).lower()}")
    for name, off in (("r_drop", 0), ("dropout_samples", 1)):
        if settings.dropout == 0 and getattr(settings, name) != off:
            raise UserError(f"sts.{name}: expected {off} with sts.dropout=0, where all passes are "
                            f"alike, got {getattr(settings, name)}")
    if settings.fgm and settings.awp:
        raise UserError("sts.awp: expected 0 with sts.fgm, whose gradient it would discard, got "
                        f"{settings.awp:g}")
    if -1 < settings.dropout < 0:
        raise UserError(f"sts.dropout: expected -1 or from 0 to 0.9, got {settings.dropout:g}")
    if settings.keep == "last" and settings.patience:
        raise UserError("sts.patience: expected 0 with sts.keep=last, got "
                        f"{settings.patience}: stopping early chooses by the best evaluation")
    if settings.binary_weight and sharding.wanted():
        raise UserError("sts.binary_weight: expected 0 with FSDP, where nothing may be computed "
                        f"outside the model, got {settings.binary_weight:g}")
    if settings.binary_weight and "binary-label" not in frame:
        raise UserError("sts.binary_weight: expected 0 without a column binary-label in train.csv, "
                        f"got {settings.binary_weight:g}")
    if settings.binary_weight and set(frame["binary-label"]) != {0.0, 1.0}:
        raise UserError("sts.binary_weight: expected 0 where binary-label in train.csv is not 0 "
                        f"and 1, both of them, got {settings.binary_weight:g}")
    if settings.source_token and not (frame["source"] != "").any():
        raise UserError("sts.source_token: expected false without a column source in train.csv, "
                        "got true")
    if settings.copies and not (frame["label"] == 0).any():
        raise UserError("sts.copies: expected 0 without a pair of label 0 in train.csv, got "
                        f"{settings.copies:g}")
    if settings.zeros < 1 and not 0 < (frame["label"] == 0).sum() < len(frame):
        raise UserError("sts.zeros: expected 1 without pairs of label 0 and others in train.csv, "
                        f"got {settings.zeros:g}")
    if len(frame) < settings.batch_size:
        raise UserError(f"sts.batch_size: expected at most {len(frame)}, the number of "
                        f"training pairs, got {settings.batch_size}")


def training_pairs(settings: Sts, frame: pd.DataFrame, seed: int) -> pd.DataFrame:
    """The frame as it is trained on, after all augmentation.

    Copies come first, so that sentences of pairs that are left out can be copied.
    """
    if settings.copies:
        frame = augment.with_copies(frame, settings.copies, seed)
    if settings.zeros < 1:
        frame = augment.with_fewer_zeros(frame, settings.zeros, seed)
    return augment.swapped(frame) if settings.swap else frame


def fit(config: Config, run: Run, accelerator: Accelerator, start: Start, pairs: pd.DataFrame,
        held: pd.DataFrame, asked: dict[str, pd.DataFrame],
        watch: Watch | None = None) -> tuple[State, dict[str, np.ndarray]]:
    """Trains on `pairs`, chooses by `held`, saves the model; predictions of every asked frame."""
    settings, device, seed = config.sts, accelerator.device, config.seed
    pairs = training_pairs(settings, pairs, seed)
    sources = sorted(set(pairs["source"]) - {""}) if settings.source_token else []
    scorer = PairScorer(start.load(wanted_dropout(settings)), settings.head,
                        PairReading(sources, settings.both_orders), settings.dropout_samples)
    scorer.take_head(Path(start.path))
    if settings.binary_weight:
        scorer.link = logistic_link(binary_threshold(pairs)[0])
    train_pairs, held_pairs = scorer.pairs(pairs), scorer.pairs(held)
    labels = held["label"].to_numpy()
    weights = (augment.flattening(pairs["label"].to_numpy(), settings.flatten)
               if settings.flatten else None)

    def scores(rows: Pairs) -> np.ndarray:
        with accelerator.autocast():
            return raw_scores(scorer, rows, device)

    def evaluate(model: nn.Module) -> dict[str, float]:
        raw = scores(held_pairs)
        return {"pearson": float(pearson(raw, labels)), "spearman": float(spearman(raw, labels))}

    task = Task(
        batches=lambda epoch: shuffled(len(train_pairs), settings.batch_size, seed, epoch,
                                       drop_last=False, weights=weights),
        loss=objective(settings, scorer, train_pairs, pairs, device), evaluate=evaluate,
        watch=watch,
        best_by="spearman" if settings.head == "bi" else "pearson",
        tokens=lambda rows: int(train_pairs.lengths[rows].sum()) * (2 if settings.r_drop else 1),
        texts=lambda rows: ["\t".join(pair) for pair in pairs.iloc[rows][SENTENCES].itertuples(
            index=False)])
    log.info("%s: %d pairs, %s head, %s loss", run.shape["stage"], len(train_pairs),
             settings.head, loss_name(settings))
    first = {name: p.detach().clone() for name, p in scorer.named_parameters()
             } if settings.interpolate < 1 else {}
    state = train(scorer, task, recipe(settings), accelerator, run.folder)
    if processes.rank() == 0:
        began = read_history(run.folder / "history.jsonl")[0]["eval"][task.best_by]
        if began is not None and state.best < began:
            log.warning("warning: no evaluation was better than the model that it began with (dev "
                        "%s %.4f, best %.4f); try a lower learning_rate or more steps",
                        task.best_by, began, state.best)
    with torch.no_grad():  # between the first and the trained weights (Wortsman et al. 2022)
        for name, p in scorer.named_parameters():
            if name in first:
                p.lerp_(sharding.part(first[name].to(p.device), p), 1 - settings.interpolate)
    if loss_name(settings) in SCALE_FREE:
        some = np.random.default_rng(seed).permutation(len(pairs))[:SCALED_ON]
        frame = pairs.iloc[np.sort(some)]
        fit_scale(scorer, scores(scorer.pairs(frame)), frame["label"].to_numpy())
    found = {name: to_labels(scorer, scores(scorer.pairs(frame))) for name, frame in asked.items()}
    sharding.gather(scorer)
    if processes.rank() == 0:
        with written_aside(run.model) as aside:
            scorer.save(aside)
    return state, found


def objective(settings: Sts, scorer: PairScorer, pairs: Pairs, frame: pd.DataFrame,
              device: torch.device) -> Callable[[nn.Module, np.ndarray], Tensor]:
    """The loss of a batch of rows as the settings want it."""
    base = REGRESSION[loss_name(settings)]
    labels = torch.tensor(frame["label"].to_numpy(), dtype=torch.float32)
    threshold = binary_threshold(frame)[0] if settings.binary_weight else 0.0
    passes = 2 if settings.r_drop else 1
    count = passes * settings.dropout_samples  # S: sets of scores of one batch

    def loss(model: nn.Module, rows: np.ndarray) -> Tensor:
        mine = processes.own(rows)
        found = model(pairs.batch(np.tile(mine, passes)).to(device)).float().view(count, len(mine))
        sets = torch.stack([processes.gathered(part, len(rows)) for part in found])  # (S, B)
        targets = labels[rows]
        if settings.label_noise:  # each process draws its own rows'
            drawn = augment.noisy(labels[mine], settings.label_noise).to(device)
            targets = processes.gathered(drawn, len(rows))
        targets = targets.to(device) / HIGHEST
        total = torch.stack([base(part, targets) for part in sets]).mean()
        if settings.r_drop:
            total = total + settings.r_drop * r_drop(sets.view(-1, 2, len(rows)))
        if settings.binary_weight:
            classes = (labels[rows] >= threshold).float().to(device)
            logits = scorer.link(sets.unsqueeze(-1)).squeeze(-1)  # (S, B)
            total = total + settings.binary_weight * F.binary_cross_entropy_with_logits(
                logits, classes.expand_as(logits))
        return total

    return loss
