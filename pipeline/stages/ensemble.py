"""A blend of finished sts runs: weights, what each member is worth, an honest score, a submission.

    python run.py stage=ensemble runs=[runs/sts/A,runs/sts/B] ensemble.method=auto
    python run.py stage=ensemble runs=[runs/sts/A,runs/sts/B] ensemble.calibrate=surface

Weights are fitted on out-of-fold predictions where all members have them (sts.folds), else on
dev. Every score is of rows that the weights have not seen; test gets the weights of all rows.
"""

import logging
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
from omegaconf import OmegaConf

from pipeline import calibration, hardware, processes
from pipeline.assessment import assess
from pipeline.blending import applied
from pipeline.comparison import paired_difference, sentence
from pipeline.config import Config, recorded
from pipeline.data import Competition
from pipeline.files import write_json, write_text, written_aside
from pipeline.members import labelled_rows, read_members, read_predictions
from pipeline.metrics import by_range, regression
from pipeline.runs import Run, claimed
from pipeline.stages.chain import read_data
from pipeline.stages.sts import print_scores, write_table
from pipeline.submission import write_submission

log = logging.getLogger(__name__)
VERSION = 1  # raise it when the same members would now give another blend


def run(config: Config) -> None:
    """Blends the members, writes the run's folder and the submission, and reports."""
    if processes.rank() > 0:
        return
    began, is_trial = time.monotonic(), config.trial == "always"
    competition = read_data(config)
    calibration.require_groups("ensemble.calibrate", config.ensemble.calibrate, competition.dev)
    data = competition.hashes()
    members = read_members(config.runs, data, is_trial)
    folders, manifests = list(members), list(members.values())
    sets = labelled_rows(folders, competition)
    test = np.stack([read_predictions(folder, "test", competition.test) for folder in folders])
    found, blends = assess(sets, config.ensemble.method)
    found["members"] = [
        {"run": str(folder), "encoder": manifest["encoder"], "seed": manifest["shape"]["seed"],
         "head": manifest["shape"]["settings"]["head"], **member}
        for folder, manifest, member in zip(folders, manifests, found["members"], strict=True)]
    weights = np.array([member["weight"] for member in found["members"]])
    blends["test"] = applied(found["method"], test, (weights, found["intercept"]))
    labels = sets["dev"].labels
    if config.ensemble.calibrate != "none":
        found["calibration"] = calibrate(config.ensemble.calibrate, blends, competition)
    metrics = {"dev": regression(labels, blends["dev"]), "ranges": by_range(labels, blends["dev"])}
    frames = {name: rows.frame for name, rows in sets.items()} | {"test": competition.test}
    shape = {"version": VERSION, "stage": "ensemble", "settings": asdict(config.ensemble),
             "data": data, "start": {}, "trial": is_trial,
             "runs": [manifest["identity"] for manifest in manifests]}
    with claimed(Path(config.runs_dir), config.name, shape) as made:
        made.clear()
        made.begin(OmegaConf.to_yaml(recorded(config)),
                   ", ".join(sorted({manifest["encoder"] for manifest in manifests})),
                   hardware.machine("cpu"))
        write(made, found, metrics, frames, blends)
        made.finish(time.monotonic() - began)
        report(found, metrics)
        log.info("ensemble: %s", made.folder)
    path = Path(config.submissions_dir) / f"{made.folder.name}.csv"
    write_submission(path, competition.test["id"].tolist(), blends["test"], competition.order, {
        "runs": [str(folder) for folder in folders], "identity": made.identity,
        "chain": ["ensemble"], "trial": is_trial, "dev": metrics["dev"],
        "method": found["method"], "weights": weights.tolist(), "config": recorded(config)})
    log.info("submission: %s (%d rows)", path, len(competition.test))


def calibrate(kind: str, blends: dict[str, np.ndarray], competition: Competition) -> dict:
    """Calibrates the blends in place, dev's by fits that did not see it; its gain on dev."""
    dev, labels, before = competition.dev, competition.dev["label"].to_numpy(), blends["dev"]
    blends["dev"], mapped = calibration.fitted(kind, before, dev)
    blends["test"] = mapped(blends["test"], competition.test)
    if "oof" in blends:  # train's rows, and dev's behind them where the members were trained on it
        n = len(competition.train)
        oof = mapped(blends["oof"][:n], competition.train)
        blends["oof"] = np.concatenate([oof, blends["dev"]]) if len(blends["oof"]) > n else oof
    return {"kind": kind, **paired_difference(labels, before[None], blends["dev"][None])}


def write(made: Run, found: dict, metrics: dict, frames: dict[str, pd.DataFrame],
          blends: dict[str, np.ndarray]) -> None:
    """Writes ensemble.json, table.csv, figure.png, metrics.json and the blend's predictions."""
    write_json(made.folder / "ensemble.json", found)
    write_json(made.folder / "metrics.json", metrics)
    write_text(made.folder / "table.csv", pd.json_normalize(found["members"]).to_csv(index=False))
    draw(found, made.folder / "figure.png")
    for name, frame in frames.items():
        kept = frame[[column for column in ("id", "label") if column in frame]]
        table = kept.assign(prediction=blends[name])
        if name == "oof":
            table.insert(1, "fold", blends["folds"])
        write_table(made.folder / "predictions" / f"{name}.csv", table)


def points(found: dict[str, float]) -> str:
    """A difference in points of Pearson with its interval."""
    return "{:+.2f} [{:+.2f}, {:+.2f}]".format(*(100 * found[name]
                                                 for name in ("value", "low", "high")))


def score(found: dict[str, float]) -> str:
    """A score with its interval."""
    return "{value:.4f} [{low:.4f}, {high:.4f}]".format(**found)


def report(found: dict, metrics: dict) -> None:
    """Prints members, methods, correlations, the choice and the gain over the best member."""
    rows, members = found["fitted_on"], found["members"]
    log.info("weights are fitted on %s: %d pairs in %d groups that share no sentence; every score "
             "is of pairs held out (%d folds)%s", rows, found["rows"], found["groups"],
             found["folds"], "" if rows == "oof" else
             "; not all members have out-of-fold predictions")
    sets = [name for name in ("oof", "dev") if name in found["blend"]]
    log.info("%3s  %-34s %s %7s  %s", "", "member",
             " ".join(f"{f'{name} Pearson':<24}" for name in sets), "weight",
             f"points without it ({rows})")
    for place, member in enumerate(members, 1):
        log.info("%3d  %-34s %s %7.3f  %s", place, Path(member["run"]).name,
                 " ".join(f"{score(member[name]):<24}" for name in sets), member["weight"],
                 points(member["without"]))
    log.info("%-8s %-24s points over the mean", "method", f"nested {rows} Pearson")
    for row in found["methods"]:
        log.info("%-8s %-24s %s", row["method"], score(row["pearson"]), points(row["difference"]))
    log.info("correlation of errors (of predictions)")
    for place in range(1, len(members)):
        pairs = zip(found["correlations"]["errors"][place],
                    found["correlations"]["predictions"][place], strict=True)
        log.info("%3d  %s", place + 1, "  ".join(
            f"{error:.2f} ({both:.2f})" for error, both in list(pairs)[:place]))
    log.info("%s", found["why"])
    if "calibration" in found:
        log.info("calibrated (%s): %s points of Pearson on dev over the blend as it was",
                 found["calibration"]["kind"], points(found["calibration"]))
    print_scores("dev", metrics["dev"])
    blend = "the blend before calibration" if "calibration" in found else "the blend"
    for name, gain in found["gain"].items():
        best = Path(members[gain["over"]]["run"]).name
        log.info("%s: %s", name, sentence(blend, f"its best member {best}", gain, gain["p"]))


def draw(found: dict, path: Path) -> None:
    """Weights, correlations of the members' errors, and gains over the best member."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    members, methods = found["members"], found["methods"]
    names = [f"{place} {Path(member['run']).name}" for place, member in enumerate(members, 1)]
    places, numbers = np.arange(len(members)), range(1, len(members) + 1)
    figure, (left, middle, right) = pyplot.subplots(
        1, 3, figsize=(15, 0.35 * len(members) + 3.2), layout="constrained")
    left.barh(places, [member["weight"] for member in members], color="tab:blue")
    left.set_yticks(places, names)
    left.invert_yaxis()
    left.set_xlabel(f"weight ({found['method']})")
    errors = np.array(found["correlations"]["errors"])
    image = middle.imshow(errors, vmin=min(0, errors.min()), vmax=1, cmap="viridis")
    middle.set_xticks(places, numbers)
    middle.set_yticks(places, numbers)
    middle.set_title("correlation of the members' errors", fontsize="medium")
    if len(members) <= 10:
        for i in places:
            for j in places:
                middle.text(j, i, f"{errors[i, j]:.2f}", ha="center", va="center",
                            color="black" if errors[i, j] > 0.6 else "white", fontsize="small")
    figure.colorbar(image, ax=middle, shrink=0.8)
    for place, row in enumerate(methods):
        value, low, high = (100 * row["gain"][name] for name in ("value", "low", "high"))
        right.errorbar(value, place, xerr=[[max(0, value - low)], [max(0, high - value)]], fmt="o",
                       capsize=4, color="tab:red" if row["method"] == found["method"] else "black")
    right.axvline(0, color="grey", linewidth=1)
    right.set_yticks(range(len(methods)), [row["method"] for row in methods])
    right.set_ylim(len(methods) - 0.5, -0.5)
    right.set_title(f"{found['fitted_on']} Pearson × 100 over the best member", fontsize="medium")
    right.set_xlabel("held-out rows, 95% interval; red: the method taken")
    with written_aside(path) as aside:
        figure.savefig(aside, format="png", dpi=130)
    pyplot.close(figure)
