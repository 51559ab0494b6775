"""Everything the report shows of one run or of two, as one dict of plain values.

    python run.py stage=diagnose run=runs/sts/NAME
"""

import numpy as np
import pandas as pd
from tqdm import tqdm

from pipeline.data import HIGHEST, LOWEST, Competition
from pipeline.diagnostics import parts, shift, slices, suspects
from pipeline.diagnostics.calibration import calibration
from pipeline.diagnostics.chance import expected_score, reweighted
from pipeline.diagnostics.curves import curves
from pipeline.diagnostics.evidence import Evidence, chain
from pipeline.diagnostics.leaks import leaks, without
from pipeline.features import features, unknown_pieces
from pipeline.runs import read_manifest

EDGES = np.linspace(LOWEST, HIGHEST, 11)
SHOWN = 50


def diagnose(runs: list[Evidence], tokenizer: object, max_length: int,
             probes: list[list[dict]]) -> dict:
    """The diagnosis of one run, or of two on the same data.

    tokenizer and max_length are the first run's; probes (runs) are the contrast sets' verdicts.
    """
    competition = runs[0].competition
    dev, labels = competition.dev, competition.dev["label"].to_numpy()
    predictions = np.stack([run.dev for run in runs])
    table = features(dev)
    table["unknown pieces"] = np.where(unknown_pieces(dev, tokenizer, max_length) > 0, "some",
                                       "none")
    overlaps = table["overlap"].to_numpy()

    def described(rows: np.ndarray) -> list[dict]:
        return pairs(dev, predictions, rows)

    def corners() -> dict:
        found = slices.corners(overlaps, labels, predictions)
        return {name: part | {"rows": described(part["rows"])} for name, part in found.items()}

    work = {
        "whole": lambda: parts.whole(labels, predictions),
        "ranges": lambda: parts.ranges(labels, predictions),
        "calibration": lambda: [calibration(labels, row) for row in predictions],
        "slices": lambda: slices.slices(dev, table, labels, predictions),
        "grid": lambda: slices.grid(overlaps, labels, predictions),
        "corners": corners,
        "worst": lambda: described(suspects.worst(labels, predictions, SHOWN)),
        "different": lambda: described(suspects.most_different(predictions, SHOWN)
                                       if len(runs) == 2 else []),
        "wrong_labels": lambda: wrong_labels(runs),
        "leaks": lambda: leaking(competition, predictions),
        "test": lambda: against_test(runs),
        "curves": lambda: [curves(run.folder, competition) for run in runs]}
    found: dict = {"runs": [about(run, name) for run, name in zip(runs, names(runs), strict=True)],
                   "rows": {name: len(getattr(competition, name))
                            for name in ("train", "dev", "test")}}
    with tqdm(work.items(), desc="diagnose", unit="part") as bar:
        for name, part in bar:
            bar.set_postfix_str(name)
            found[name] = part()
    return found | {"probes": probes}


def names(runs: list[Evidence]) -> list[str]:
    """What the runs are called: the shortest names that tell them apart."""
    short = [run.name for run in runs]
    return short if len(set(short)) == len(short) else [run.folder.name for run in runs]


def about(run: Evidence, name: str) -> dict:
    """What identifies a run; missing is the identity of a run of its chain that is gone."""
    manifests = [read_manifest(path) for path in chain(run.folder)]
    return {"name": name, "folder": str(run.folder), "identity": run.manifest["identity"],
            "chain": ">".join(manifest["stage"] for manifest in manifests),
            "missing": manifests[0]["shape"]["start"].get("run"),
            "encoder": run.manifest.get("encoder", ""), "seed": run.manifest["shape"]["seed"],
            "out_of_fold": run.train is not None}


def pairs(frame: pd.DataFrame, predictions: np.ndarray, rows: np.ndarray | list[int]) -> list[dict]:
    """The rows' pairs with label and every run's prediction."""
    return [{**{name: frame[name].iloc[row] for name in ("id", "source", "sentence_1",
                                                         "sentence_2")},
             "label": float(frame["label"].iloc[row]),
             "predictions": [round(float(value), 4) for value in predictions[:, row]]}
            for row in rows]


def wrong_labels(runs: list[Evidence]) -> dict:
    """Rows whose label looks wrong: of dev, and of train where out-of-fold predictions are."""
    competition = runs[0].competition
    known = pd.concat([competition.train, competition.dev], ignore_index=True)
    folded = [run.train for run in runs if run.train is not None]
    looked = {"dev": (competition.dev, np.stack([run.dev for run in runs]))}
    if folded:
        looked["train"] = (competition.train, np.stack(folded))
    found, counts = [], {}
    for name, (frame, predictions) in looked.items():
        table = suspects.wrong_labels(frame, predictions, known)
        counts[name] = {"n": len(table), "contradicted": int((table["twins"] > 0).sum())}
        for row in table.head(SHOWN).to_dict("records"):
            pair = pairs(frame, predictions, [row["row"]])[0]
            twin = known.iloc[int(row["twin"])] if row["twins"] else None
            found.append(pair | {
                "set": name, "gap": row["gap"], "twins": row["twins"],
                "twin_label": row["twin_label"],
                "twin": None if twin is None else {
                    **{key: twin[key] for key in ("id", "source", "sentence_1", "sentence_2")},
                    "label": float(twin["label"])}})
    return {"far": suspects.FAR, "counts": counts, "rows": found}


def leaking(competition: Competition, predictions: np.ndarray) -> dict:
    """Leaks between train and dev, with the pairs, closest first."""
    dev, train = competition.dev, competition.train
    table = leaks(train, dev)
    rows = [{"kind": row["kind"], "similarity": row["similarity"],
             **pairs(dev, predictions, [row["row"]])[0],
             "twin": {**{key: train[key].iloc[row["other"]] for key in
                         ("id", "source", "sentence_1", "sentence_2")},
                      "label": float(train["label"].iloc[row["other"]])}}
            for row in table.head(SHOWN).to_dict("records")]
    return without(table, dev["label"].to_numpy(), predictions) | {"rows": rows}


def against_test(runs: list[Evidence]) -> dict:
    """Why the leaderboard may differ from dev: chance, other text, other sources, other labels."""
    competition = runs[0].competition
    dev, test = competition.dev, competition.test
    labels, size = dev["label"].to_numpy(), len(test)
    apart, sources = shift.tell_apart(dev, test), shift.by_source(dev, test)
    weights = apart.pop("weights")
    judged = None if weights is None else np.isfinite(weights)
    source_weights = sources.pop("weights")
    distributions = {"train labels": histogram(competition.train["label"]),
                     "dev labels": histogram(labels)}
    if judged is not None:
        distributions["dev labels, weighted to test"] = histogram(labels[judged], weights[judged])
    for run, name in zip(runs, names(runs), strict=True):
        distributions[f"dev, {name}"] = histogram(run.dev)
        distributions[f"test, {name}"] = histogram(run.test)
    return {
        "expected": [[expected_score(labels, run.dev, rows) for rows in (size, size // 2)]
                     for run in runs],
        "apart": apart, "sources": sources,
        "weighted": [{
            "text": None if judged is None else reweighted(labels[judged], run.dev[judged],
                                                           weights[judged]),
            "source": None if source_weights is None else reweighted(labels, run.dev,
                                                                     source_weights)}
                     for run in runs],
        "distributions": {"edges": EDGES.tolist(), "shares": distributions}}


def histogram(values: np.ndarray, weights: np.ndarray | None = None) -> list[float]:
    """The share of the values in each half point of the label scale."""
    counts = np.histogram(values, EDGES, weights=weights)[0]
    return (counts / counts.sum()).tolist()


def shown_rows(labels: np.ndarray, predictions: np.ndarray, most: int = 4000) -> np.ndarray:
    """The rows that the page's charts hold: all, or the worst tenth of `most` and a random rest."""
    if len(labels) <= most:
        return np.arange(len(labels))
    order = np.argsort(-np.abs(predictions - labels).mean(axis=0), kind="stable")
    rest = np.random.default_rng(0).permutation(order[most // 10:])[:most - most // 10]
    return np.sort(np.concatenate([order[:most // 10], rest]))
