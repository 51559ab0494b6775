"""Where and why a run is wrong, or two side by side: a report to read and its figures as JSON.

    python run.py stage=diagnose run=runs/sts/NAME
    python run.py stage=diagnose runs=[runs/sts/ONE,runs/sts/OTHER]
"""

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from transformers import AutoTokenizer

from pipeline import hardware
from pipeline.config import Config
from pipeline.data import content_hash
from pipeline.diagnostics.diagnosis import diagnose, pairs, shown_rows
from pipeline.diagnostics.evidence import Evidence, read_evidence
from pipeline.diagnostics.findings import findings
from pipeline.diagnostics.page import page
from pipeline.diagnostics.probes import judge, read_probes
from pipeline.errors import UserError
from pipeline.files import write_json, write_text
from pipeline.hub import from_hub
from pipeline.reading import recorded
from pipeline.runs import identity, models
from pipeline.stages.predict import predicted

log = logging.getLogger(__name__)


def run(config: Config) -> None:
    """Writes report.html and diagnosis.json and prints the five-range table and the findings."""
    moved = None if config.trial == "always" else Path(config.data.dir)
    runs = [read_evidence(path, moved) for path in asked(config)]
    refuse_different_data(runs)
    probes = read_probes()
    verdicts = [judge(probes, score_with(config, models(one.folder))) for one in runs]
    first = str(models(runs[0].folder)[0])
    found = diagnose(runs, from_hub(AutoTokenizer, first), recorded(first).max_length, verdicts)
    found["findings"] = findings(found)
    folder = Path(config.runs_dir) / "diagnose" / (
        f"{config.name}-{identity({'runs': [one.manifest['identity'] for one in runs]})}")
    dev = runs[0].competition.dev
    predictions = np.stack([one.dev for one in runs])
    shown = pairs(dev, predictions, shown_rows(dev["label"].to_numpy(), predictions))
    write_json(folder / "diagnosis.json", found)
    write_text(folder / "report.html", page(found, shown))
    report(found, folder / "report.html")


def asked(config: Config) -> list[str]:
    """The folders of the one or two runs to be diagnosed."""
    paths = config.runs or [config.run]
    if config.run and config.runs:
        raise UserError("run, runs: expected one of the two, got both")
    if not paths[0]:
        raise UserError("run: expected the folder of a finished sts run (or runs=[A,B]), got none")
    if len(paths) > 2 or len({Path(path).resolve() for path in paths}) < len(paths):
        raise UserError(f"runs: expected one run or two different ones, got [{','.join(paths)}]")
    return paths


def refuse_different_data(runs: list[Evidence]) -> None:
    """Two runs can be compared on the same rows only."""
    for name in ("dev", "test"):
        marks = [content_hash(getattr(one.competition, name)) for one in runs]
        if len(set(marks)) > 1:
            raise UserError(f"runs: expected two runs on the same {name}.csv, got "
                            f"{runs[0].folder} and {runs[1].folder} on different ones")


def score_with(config: Config, folders: list[Path]) -> Callable[[pd.DataFrame], np.ndarray]:
    """A function of a frame of pairs that gives the models' mean scores (n,) from 0 to 5."""
    device = hardware.pick_device(config.device)
    accelerator = hardware.start(device, hardware.pick_precision(config.precision, device),
                                 config.seed, config.deterministic)
    return lambda frame: predicted(folders, lambda: [frame], len(frame), accelerator, "probes")


def report(found: dict, path: Path) -> None:
    """Prints the five-range table, the findings and where the report lies."""
    names = [run["name"] for run in found["runs"]]
    width = max(map(len, names))
    log.info("%-6s %6s  %-*s %22s %24s %7s %9s", "label", "pairs", width, "run",
             "mean |pred - label|", "bias", "RMSE", "Pearson")
    for part in found["ranges"]:
        for place, (name, row) in enumerate(zip(names, part["runs"], strict=True)):
            head = (part["name"].replace("–", "-"), part["n"]) if place == 0 else ("", "")
            log.info("%-6s %6s  %-*s %22s %24s %7.3f %9.3f%s", *head, width, name,
                     shown(row["mae"], ".3f"), shown(row["bias"], "+.3f"), row["rmse"]["value"],
                     row["pearson"]["value"], "  (few)" if part["few"] else "")
    for part in found["findings"]:
        log.info("- %s", part["sentence"])
    if len(names) > 1:
        log.info("(where no run is named, figures are %s's)", names[0])
    log.info("report: %s", path)
    log.info("open: %s", path.resolve().as_uri())


def shown(part: dict, form: str) -> str:
    """A value with its interval, where it has one."""
    if np.isnan(part["low"]):
        return format(part["value"], form)
    return "{} [{}, {}]".format(*(format(part[name], form) for name in ("value", "low", "high")))
