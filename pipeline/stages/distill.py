"""Learns from finished sts runs on pairs without labels (Augmented SBERT, Thakur et al. 2021).

    python run.py stage=distill chain=[distill] distill.teachers=[runs/sts/NAME]
    python run.py stage=sts chain=[distill,sts] distill.teachers=[runs/sts/A,runs/sts/B]

The competition's sentences are put together anew, beside its own pairs, dev's and test's too; the
mean of the teachers is their label. A cross head thus sees several times the pairs, and those that
it will be asked about; sts then goes on with its encoder and its head.
"""

import logging
from copy import deepcopy
from dataclasses import fields
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from accelerate import Accelerator

from pipeline import processes
from pipeline.checkpoint import State
from pipeline.config import Config
from pipeline.corpus import unlabelled
from pipeline.data import SENTENCES, Competition
from pipeline.encoder import embed
from pipeline.errors import UserError
from pipeline.files import write_json
from pipeline.heads import load_scorer, to_labels
from pipeline.members import read_members
from pipeline.metrics import normalised, regression
from pipeline.runs import Run, models
from pipeline.sections import Sts, Training
from pipeline.silver import FILE, balanced, candidates, own_pairs
from pipeline.stages.chain import carried_out, read_data, start_of
from pipeline.stages.fitting import fit
from pipeline.stages.predict import predicted
from pipeline.stages.sts import print_scores, write_predictions, write_table
from pipeline.training import Watch

log = logging.getLogger(__name__)


def run(config: Config) -> None:
    """Completes the stage and says how good the student is."""
    complete(config)


def complete(config: Config, watch: Watch | None = None) -> Run:
    """The finished distill run of this configuration."""
    competition, settings = read_data(config), config.distill
    data = competition.hashes()
    teachers = read_teachers(config, data)
    start = start_of(config, "distill")

    def work(run: Run, accelerator: Accelerator) -> State:
        with torch.random.fork_rng():  # a run that finds them made draws the same afterwards
            pairs = silver_pairs(config, run.folder / FILE, competition, teachers, accelerator)
        log.info("distill: %d pairs, as the teachers see them: %s", len(pairs), ", ".join(
            f"{low}-{low + 1}: {count}" for low, count in
            enumerate(np.histogram(pairs["label"], bins=range(6))[0])))
        part = deepcopy(config)
        part.sts = Sts(head=settings.head, **{item.name: getattr(settings, item.name)
                                              for item in fields(Training)})
        state, found = fit(part, run, accelerator, start, pairs, competition.dev,
                           {"dev": competition.dev}, watch)
        if processes.rank() == 0:
            write_predictions(run.folder / "predictions" / "dev.csv", competition.dev, found["dev"])
            scores = regression(competition.dev["label"].to_numpy(), found["dev"])
            write_json(run.folder / "metrics.json", {
                "dev": scores, "best_step": state.best_step, "steps": state.step,
                "pairs": len(pairs)})
            print_scores("distill: dev", scores)
        return state

    marks = data | {"teachers": " ".join(manifest["identity"] for manifest in teachers.values())}
    return carried_out(config, "distill", marks, start, work)


def read_teachers(config: Config, data: dict[str, str]) -> dict[Path, dict]:
    """The teachers' manifests by folder, in an order that the command's does not change.

    Refuses runs that know the labels of what is to be judged.
    """
    if config.sts.folds and config.sts.held == "all" and "sts" in config.chain:
        raise UserError("sts.folds: expected 0, or sts.held=dev, with distill in the chain, whose "
                        f"teachers know train's labels, got {config.sts.folds}")
    teachers = read_members(config.distill.teachers, data, config.trial == "always",
                            key="distill.teachers", least=1)
    for folder, manifest in teachers.items():
        if manifest["shape"]["settings"].get("use_dev"):
            raise UserError("distill.teachers: expected runs that were not trained on dev's pairs "
                            f"(else their student would know them), got {folder} with "
                            "sts.use_dev=true")
    if not any(manifest["shape"]["settings"]["head"] == "bi" for manifest in teachers.values()):
        raise UserError("distill.teachers: expected a run with sts.head=bi among them, whose "
                        "vectors find neighbours, got none")
    return dict(sorted(teachers.items(), key=lambda item: item[1]["identity"]))


def silver_pairs(config: Config, file: Path, competition: Competition, teachers: dict[Path, dict],
                 accelerator: Accelerator) -> pd.DataFrame:
    """The silver pairs with the teachers' mean as label, made once and kept in the run's folder."""
    if not processes.from_first(file.exists()):
        frame, known = unlabelled_pairs(config, competition, teachers, accelerator)
        labels = [teacher_labels(folder, frame, known, accelerator,
                                 f"teacher {number} of {len(teachers)}")
                  for number, folder in enumerate(teachers, 1)]
        if processes.rank() == 0:
            write_table(file, frame.assign(label=np.mean(labels, axis=0)))
        processes.wait()
    return pd.read_csv(file, keep_default_na=False)


def teacher_labels(folder: Path, frame: pd.DataFrame, known: dict[Path, np.ndarray],
                   accelerator: Accelerator, desc: str) -> np.ndarray:
    """The mean prediction (n,) of a teacher's models, but for those whose predictions are known."""
    return np.mean([known[model] if model in known else predicted(
        [model], lambda: [frame], len(frame), accelerator, desc) for model in models(folder)],
        axis=0)


def unlabelled_pairs(config: Config, competition: Competition, teachers: dict[Path, dict],
                     accelerator: Accelerator) -> tuple[pd.DataFrame, dict[Path, np.ndarray]]:
    """The competition's own pairs, then distill.pairs new ones as the first bi teacher finds them.

    They are drawn by its scores, so that all labels are about as frequent; these come too.
    """
    frames, count = [competition.train, competition.dev, competition.test], config.distill.pairs
    model = next(models(folder)[0] for folder, manifest in teachers.items()
                 if manifest["shape"]["settings"]["head"] == "bi")
    scorer, texts = load_scorer(model).to(accelerator.device), list(unlabelled(frames, []))
    if len(texts) < 2:
        raise UserError("distill: expected two or more different sentences in the competition's "
                        "files, got one")
    with accelerator.autocast():
        vectors = normalised(embed(scorer.encoder, scorer.encoder.tokens(texts),
                                   accelerator.device, "sentences"))
    own = own_pairs(frames)
    numbers = {text: number for number, text in enumerate(texts)}
    pairs, n = np.stack([own[name].map(numbers) for name in SENTENCES], axis=1), len(own)
    pairs = np.concatenate([pairs, candidates(vectors, pairs, count, config.seed)])
    labels = to_labels(scorer, (vectors[pairs[:, 0]] * vectors[pairs[:, 1]]).sum(axis=1))
    rows = np.concatenate([np.arange(n), n + balanced(labels[n:], count, config.seed)])
    pairs, labels = processes.from_first((pairs[rows], labels[rows]))
    if len(pairs) < n + count:
        log.warning("warning: distill.pairs: %d asked for, all %d there are taken", count,
                    len(pairs) - n)
    drawn = pd.DataFrame(np.array(texts, dtype=object)[pairs[n:]], columns=SENTENCES)
    frame = pd.concat([own, drawn.assign(source="")], ignore_index=True)
    is_marked = bool(scorer.reading.sources)  # its own pairs are to be read with their source
    return frame.assign(id=[f"silver-{number}" for number in range(len(frame))]), (
        {} if is_marked else {model: labels})
