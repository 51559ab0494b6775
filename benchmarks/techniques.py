"""What every technique of `stage=sts` is worth: each against the plain recipe, all else equal.

    python -m benchmarks.techniques preset=offline data.dir=data --steps 180 --out table.json

Words with `=` go to the pipeline as on its command line. Every technique is one run of `--steps`
steps from the plain encoder, compared with the plain recipe of its head by a paired bootstrap over
dev's pairs. Finished runs are reused, so that it may be stopped and started. Calibration is free:
it is measured on the plain run's own predictions.
"""

import argparse
import json
import logging
from pathlib import Path

import pandas as pd

from pipeline import calibration
from pipeline.comparison import holm, paired_difference
from pipeline.data import read_competition
from pipeline.layers import load
from pipeline.metrics import pearson
from pipeline.stages import sts

BI = {
    "dropout 0": ["sts.dropout=0"],
    "EMA 0.99": ["sts.ema=0.99"],
    "interpolate 0.7": ["sts.interpolate=0.7"],
    "layer decay 0.9": ["sts.layer_decay=0.9"],
    "FGM 0.5": ["sts.fgm=0.5"],
    "AWP 0.0002": ["sts.awp=0.0002"],
    "R-Drop 1": ["sts.r_drop=1"],
    "binary-label 0.1": ["sts.binary_weight=0.1"],
    "loss pearson": ["sts.loss=pearson"],
    "loss cosent+pearson": ["sts.loss=cosent+pearson"],
    "loss mse": ["sts.loss=mse"],
    "loss mse+cosent": ["sts.loss=mse+cosent"],
    "flatten 0.5": ["sts.flatten=0.5"],
    "copies 0.05": ["sts.copies=0.05"],
    "zeros 0.5": ["sts.zeros=0.5"],
    "label noise 0.2": ["sts.label_noise=0.2"],
    "source token": ["sts.source_token=true"],
}
CROSS = {
    "loss mse+pearson": ["sts.loss=mse+pearson"],
    "dropout samples 4": ["sts.dropout_samples=4"],
    "swap": ["sts.swap=true"],
    "both orders": ["sts.both_orders=true"],
    "R-Drop 1": ["sts.r_drop=1"],
    "layer decay 0.9": ["sts.layer_decay=0.9"],
}


def measured(words: list[str]) -> dict:
    """One run's dev labels, predictions and training seconds."""
    run = sts.complete(load(words))
    dev = pd.read_csv(run.folder / "predictions" / "dev.csv")
    return {"labels": dev["label"].to_numpy(), "predictions": dev["prediction"].to_numpy(),
            "seconds": run.manifest()["seconds"]}


def rows_of(head: str, techniques: dict[str, list[str]], words: list[str]) -> list[dict]:
    """A row for the head's plain recipe and for every technique."""
    own = [*words, f"sts.head={head}"]
    plain = measured(own)
    labels = plain["labels"]
    found = {name: measured([*own, *keys]) for name, keys in techniques.items()}
    frame = read_competition(Path(load(words).data.dir)).dev
    surface = calibration.Surface.of(frame)(frame)
    for kind in ("monotone", "surface"):
        found[f"calibrate {kind}"] = {"seconds": plain["seconds"], "predictions": (
            calibration.cross_fitted(kind, plain["predictions"], surface, frame))}
    rows = [{"head": head, "technique": "plain", "pearson": pearson(plain["predictions"], labels),
             "seconds": plain["seconds"]}]
    for name, part in found.items():
        rows.append({"head": head, "technique": name, "seconds": part["seconds"],
                     "pearson": float(pearson(part["predictions"], labels)),
                     "difference": paired_difference(labels, plain["predictions"][None],
                                                     part["predictions"][None])})
    for row, p in zip(rows[1:], holm([row["difference"]["p"] for row in rows[1:]]), strict=True):
        row["corrected_p"] = p
    return rows


def main() -> None:
    """Runs what is asked, prints the table and writes it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("words", nargs="*")
    parser.add_argument("--steps", type=int, default=180)
    parser.add_argument("--heads", nargs="+", default=["bi", "cross"], choices=["bi", "cross"])
    parser.add_argument("--out", type=Path)
    asked = parser.parse_intermixed_args()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("pipeline").setLevel(logging.INFO)
    words = [*asked.words, "chain=[sts]", f"sts.max_steps={asked.steps}",
             f"sts.eval_every={asked.steps}"]
    rows = [row for head in asked.heads
            for row in rows_of(head, {"bi": BI, "cross": CROSS}[head], words)]
    for row in rows:
        change = ""
        if "difference" in row:
            value, low, high = (100 * row["difference"][name] for name in ("value", "low", "high"))
            change = f"{value:+6.2f} [{low:+.2f}, {high:+.2f}]  p {row['corrected_p']:.3f}"
        print(f"{row['head']:6s} {row['technique']:20s} {100 * row['pearson']:6.2f}  {change:36s} "
              f"{row['seconds']:6.0f} s")
    if asked.out:
        asked.out.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
