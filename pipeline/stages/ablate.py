"""Which stages are worth it: arms (chains) × seeds, with significance against the first arm.

    python run.py stage=ablate ablate.arms=[sts,simcse>sts] ablate.seeds=[1,2,3]

Runs are shared and reused as everywhere: an arm's stage that another arm has done is not done
again. In a shell, quote arms with `>`.
"""

import logging
from copy import deepcopy
from pathlib import Path

import numpy as np
import pandas as pd

from pipeline.comparison import holm, paired_difference, sentence
from pipeline.config import Config
from pipeline.data import read_competition
from pipeline.errors import UserError
from pipeline.files import write_json, write_text, written_aside
from pipeline.metrics import RANGES, by_range, pearson, spearman
from pipeline.nli import read_nli
from pipeline.runs import Run, identity
from pipeline.stages import TRAINING, sts
from pipeline.stages.distill import read_teachers

log = logging.getLogger(__name__)


def run(config: Config) -> None:
    """Completes every arm and seed, then writes the table, the figure and the sentences."""
    arms, seeds = config.ablate.arms, config.ablate.seeds
    check_settings(arms, seeds)
    if any("nli" in arm.split(">") for arm in arms):
        read_nli(Path(config.data.nli_dir))
    if any("distill" in arm.split(">") for arm in arms):
        read_teachers(config, read_competition(Path(config.data.dir)).hashes())
    runs: dict[str, list[Run]] = {}
    for arm in arms:
        for seed in seeds:
            log.info("ablate: %s, seed %s", arm, seed)
            part = deepcopy(config)
            part.chain, part.seed = arm.split(">"), int(seed)
            runs.setdefault(arm, []).append(sts.complete(part))
    labels, predictions = read_predictions(runs)
    rows = [arm_row(arm, labels, predictions[arm]) for arm in arms]
    compare(rows, labels, predictions)
    mark = identity({"arms": {arm: [run.identity for run in part] for arm, part in runs.items()}})
    folder = Path(config.runs_dir) / "ablate" / f"{config.name}-{mark}"
    write_json(folder / "ablation.json", {
        "arms": rows, "seeds": seeds,
        "runs": {arm: [str(run.folder) for run in part] for arm, part in runs.items()}})
    write_text(folder / "table.csv", pd.json_normalize(rows).to_csv(index=False))
    draw(rows, folder / "figure.png")
    report(rows, folder)


def check_settings(arms: list[str], seeds: list[str]) -> None:
    """Refuses arms that do not end in sts and seeds that are no numbers."""
    for arm in arms:
        stages = arm.split(">")
        if (stages[-1] != "sts" or not set(stages) <= set(TRAINING)
                or len(set(stages)) < len(stages)):
            raise UserError(f"ablate.arms: expected chains that end in sts, such as simcse>sts, "
                            f"got {arm!r}")
    if len(arms) < 2 or len(set(arms)) < len(arms):
        raise UserError(f"ablate.arms: expected two or more different arms, got [{','.join(arms)}]")
    if (not seeds or not all(seed.isdecimal() and int(seed) < 2**32 for seed in seeds)
            or len({int(seed) for seed in seeds}) < len(seeds)):
        raise UserError(f"ablate.seeds: expected different whole numbers, got [{','.join(seeds)}]")


def read_predictions(runs: dict[str, list[Run]]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The labels (n,) and every arm's dev predictions (seeds, n), rows in one order."""
    tables = {arm: [pd.read_csv(run.folder / "predictions" / "dev.csv") for run in part]
              for arm, part in runs.items()}
    labels = next(iter(tables.values()))[0]["label"].to_numpy()
    return labels, {arm: np.stack([table["prediction"] for table in part])
                    for arm, part in tables.items()}


def arm_row(arm: str, labels: np.ndarray, predictions: np.ndarray) -> dict:
    """Mean and spread over seeds, and the error in every label range."""
    row: dict = {"arm": arm, "seeds": len(predictions)}
    for name, statistic in (("pearson", pearson), ("spearman", spearman)):
        scores = [float(statistic(part, labels)) for part in predictions]
        row[name] = {"mean": float(np.mean(scores)),
                     "sd": float(np.std(scores, ddof=1)) if len(scores) > 1 else float("nan")}
    ranges = [by_range(labels, part) for part in predictions]
    row["mae"] = {f"{low}-{high}": float(np.mean([part[place]["mae"] for part in ranges]))
                  for place, (low, high) in enumerate(RANGES)}
    return row


def compare(rows: list[dict], labels: np.ndarray, predictions: dict[str, np.ndarray]) -> None:
    """Adds to every row but the first its difference to the first, and a sentence."""
    first, *others = rows
    found = [paired_difference(labels, predictions[first["arm"]], predictions[row["arm"]])
             for row in others]
    for row, difference, p in zip(others, found, holm([part["p"] for part in found]), strict=True):
        row["difference"] = difference | {"corrected_p": p}
        row["sentence"] = sentence(row["arm"], first["arm"], difference, p)


def report(rows: list[dict], folder: Path) -> None:
    """Prints the table and the sentences."""
    log.info("%-18s %18s %18s   mean |prediction - label| in %s", "arm", "dev Pearson (SD)",
             "dev Spearman (SD)", ", ".join(rows[0]["mae"]))
    for row in rows:
        scores = [f"{row[name]['mean']:.4f} "
                  + (f"({row[name]['sd']:.4f})" if row["seeds"] > 1 else "(one seed)")
                  for name in ("pearson", "spearman")]
        log.info("%-18s %18s %18s   %s", row["arm"], *scores,
                 "  ".join(f"{value:.2f}" for value in row["mae"].values()))
    for row in rows[1:]:
        log.info("%s", row["sentence"])
    log.info("ablate: %s", folder)


def draw(rows: list[dict], path: Path) -> None:
    """Differences to the first arm with their intervals, and the error by label range."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 0.6 * len(rows) + 2.6),
                                            layout="constrained")
    for place, row in enumerate(rows[1:]):
        part = row["difference"]
        value, low, high = (100 * part[name] for name in ("value", "low", "high"))
        # With few rows a percentile interval may lie beside the value.
        left.errorbar(value, place, xerr=[[max(0, value - low)], [max(0, high - value)]], fmt="o",
                      capsize=4, color="black")
    left.axvline(0, color="grey", linewidth=1)
    left.set_yticks(range(len(rows) - 1), [row["arm"] for row in rows[1:]])
    left.set_ylim(len(rows) - 1.4, -0.6)  # the first arm on top, as in the table
    left.set_xlabel(f"dev Pearson × 100, difference to {rows[0]['arm']} (95% interval)")
    width = 0.8 / len(rows)
    for place, row in enumerate(rows):
        right.bar(np.arange(len(RANGES)) + place * width, row["mae"].values(), width,
                  label=row["arm"])
    right.set_xticks(np.arange(len(RANGES)) + 0.4 - width / 2, rows[0]["mae"])
    right.set_xlabel("label")
    right.set_ylabel("mean |prediction − label|")
    figure.legend(loc="outside lower center", ncols=len(rows))
    with written_aside(path) as aside:
        figure.savefig(aside, format="png", dpi=130)
    pyplot.close(figure)
