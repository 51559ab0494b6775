"""Learns from finished sts runs on pairs without labels (Augmented SBERT, Thakur et al. 2021).

    python run.py stage=distill chain=[distill] distill.teachers=[runs/sts/NAME]
    python run.py stage=sts chain=[distill,sts] distill.teachers=[runs/sts/A,runs/sts/B]

The competition's sentences are put together anew and its own pairs put beside them, test's too;
the mean of the teachers is their label. A cross head thus gets a hundred times the pairs, and what
the teachers know of the other domain; sts then goes on with its encoder and its head.
"""

import logging
from copy import deepcopy
from dataclasses import fields
from pathlib import Path

import numpy as np
import pandas as pd
from accelerate import Accelerator

from pipeline import processes
from pipeline.checkpoint import State
from pipeline.config import Config
from pipeline.corpus import unlabelled
from pipeline.data import SENTENCES, Competition, content_hash
from pipeline.encoder import embed
from pipeline.errors import UserError
from pipeline.files import write_json
from pipeline.heads import load_scorer, to_labels
from pipeline.members import read_members
from pipeline.metrics import normalised, regression
from pipeline.runs import Run, models
from pipeline.sections import Sts, Training
from pipeline.silver import balanced, candidates, own_pairs
from pipeline.stages.chain import carried_out, read_data, start_of
from pipeline.stages.fitting import fit
from pipeline.stages.predict import predicted
from pipeline.stages.sts import print_scores, write_table
from pipeline.training import Watch

log = logging.getLogger(__name__)
FILE = "silver.csv"


def run(config: Config) -> None:
    """Completes the stage and says how good the student is."""
    complete(config)


def complete(config: Config, watch: Watch | None = None) -> Run:
    """The finished distill run of this configuration."""
    competition, settings = read_data(config), config.distill
    if settings.pairs < settings.batch_size:
        raise UserError(f"distill.pairs: expected at least distill.batch_size, "
                        f"{settings.batch_size}, got {settings.pairs}")
    data = {name: content_hash(getattr(competition, name)) for name in ("train", "dev", "test")}
    teachers = read_teachers(config, data)
    start = start_of(config, "distill")

    def work(run: Run, accelerator: Accelerator) -> State:
        pairs = silver_pairs(config, run.folder / FILE, competition, list(teachers), accelerator)
        log.info("distill: %d pairs, as the teachers see them: %s", len(pairs), ", ".join(
            f"{low}-{low + 1}: {count}" for low, count in
            enumerate(np.histogram(pairs["label"], bins=range(6))[0])))
        part = deepcopy(config)
        part.sts = Sts(head=settings.head, **{item.name: getattr(settings, item.name)
                                              for item in fields(Training)})
        state, found = fit(part, run, accelerator, start, pairs, competition.dev,
                           {"dev": competition.dev}, watch)
        if processes.rank() == 0:
            scores = regression(competition.dev["label"].to_numpy(), found["dev"])
            write_json(run.folder / "metrics.json", {
                "dev": scores, "best_step": state.best_step, "steps": state.step,
                "pairs": len(pairs)})
            print_scores("distill: dev", scores)
        return state

    marks = data | {"teachers": sorted(teacher["identity"] for teacher in teachers.values())}
    return carried_out(config, "distill", marks, start, work)


def read_teachers(config: Config, data: dict[str, str]) -> dict[Path, dict]:
    """The teachers' manifests by folder; refuses runs that know dev's labels."""
    teachers = read_members(config.distill.teachers, data, config.trial == "always",
                            key="distill.teachers", least=1)
    for folder, manifest in teachers.items():
        if manifest["shape"]["settings"]["use_dev"]:
            raise UserError("distill.teachers: expected runs that were not trained on dev's pairs "
                            f"(else their student would know them), got {folder} with "
                            "sts.use_dev=true")
    if not any(manifest["shape"]["settings"]["head"] == "bi" for manifest in teachers.values()):
        raise UserError("distill.teachers: expected a run with sts.head=bi among them, whose "
                        "vectors find neighbours, got none")
    return teachers


def silver_pairs(config: Config, file: Path, competition: Competition, teachers: list[Path],
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


def unlabelled_pairs(config: Config, competition: Competition, teachers: list[Path],
                     accelerator: Accelerator) -> tuple[pd.DataFrame, dict[Path, np.ndarray]]:
    """The competition's own pairs, then distill.pairs new ones as the first bi teacher finds them.

    They are drawn by its scores, so that all labels are about as frequent; these come too.
    """
    frames = [competition.train, competition.dev, competition.test]
    model, scorer = next((models(folder)[0], scorer) for folder in teachers
                         if (scorer := load_scorer(models(folder)[0])).head == "bi")
    texts = list(unlabelled(frames, []))
    own = own_pairs(frames, {text: number for number, text in enumerate(texts)})
    scorer.to(accelerator.device)
    with accelerator.autocast():
        vectors = normalised(embed(scorer.encoder, scorer.encoder.tokens(texts),
                                   accelerator.device, "sentences"))

    def labels(pairs: np.ndarray) -> np.ndarray:
        return to_labels(scorer, (vectors[pairs[:, 0]] * vectors[pairs[:, 1]]).sum(axis=1))

    new = candidates(vectors, own, config.distill.pairs, config.seed)
    new = new[balanced(labels(new), config.distill.pairs, config.seed)]
    pairs = np.concatenate([own, new])
    frame = pd.DataFrame(np.array(texts, dtype=object)[pairs], columns=SENTENCES).assign(
        id=[f"silver-{number}" for number in range(len(pairs))], source="")
    return frame, {model: labels(pairs)}
