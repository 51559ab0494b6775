"""Encoders without fine-tuning on the same pairs: scores, geometry, probes, and is one collapsed?

    python run.py stage=compare "compare.encoders=[encoder,runs/simcse/NAME,klue/roberta-base:cls]"

Dev's pairs are scored by cosine. pairs=FILE shows pairs of your own on the 0–5 scale.
"""

import logging
from pathlib import Path

import pandas as pd
import torch

from pipeline import hardware, hub, processes
from pipeline.config import Config
from pipeline.data import HIGHEST, Competition, content_hash, is_labelled, read_pairs
from pipeline.diagnostics.contestants import Contestant, contestants
from pipeline.diagnostics.drawings import draw_cosines
from pipeline.diagnostics.examples import example_pairs
from pipeline.diagnostics.probes import judge, read_probes
from pipeline.diagnostics.spaces import calibration, cosines, measures, on_scale, verdict
from pipeline.encoder import Encoder, embed, fingerprint
from pipeline.errors import UserError
from pipeline.files import write_json, write_text
from pipeline.heads import PairScorer, raw_scores
from pipeline.metrics import normalised
from pipeline.runs import identity
from pipeline.stages.chain import read_data

log = logging.getLogger(__name__)
CALIBRATED_ON = 1000  # pairs of train: two numbers are fitted
SHAPE = ("alignment", "uniformity", "mean_cosine", "effective_rank")


def run(config: Config) -> None:
    """Examines every encoder that can be had, prints the tables and writes them."""
    wanted, competition = named(config), read_data(config)
    pairs, probes = chosen_pairs(config.pairs), read_probes()
    train = competition.train.sample(min(CALIBRATED_ON, len(competition.train)),
                                     random_state=config.seed)
    device = hardware.pick_device(config.device)
    precision = hardware.pick_precision(config.precision, device)
    accelerator = hardware.start(device, precision, config.seed, config.deterministic)
    is_hub_open = all(one.is_local for one in wanted) or hub.answers()
    rows, scores, unreached = [], {}, []
    for one in wanted:
        try:
            encoder = one.load(is_hub_open).to(accelerator.device)
        except UserError as error:
            if one.is_local:
                raise
            unreached.append({"encoder": one.path, "reason": str(error)})
            continue
        with accelerator.autocast():
            row, scores[one.label] = examine(one, encoder, competition, train, pairs, probes,
                                             config.data.positive_above, accelerator.device)
        rows.append(row)
    if not rows:
        raise UserError("compare.encoders: expected at least one encoder that can be had, got "
                        + "; ".join(part["reason"] for part in unreached))
    if processes.rank() > 0:
        return
    mark = identity({"encoders": [row.pop("identity") for row in rows], "precision": precision,
                     "dev": content_hash(competition.dev), "train": content_hash(train),
                     "pairs": pairs.to_csv(), "positive_above": config.data.positive_above})
    folder = Path(config.runs_dir) / "compare" / f"{config.name}-{mark}"
    shown = pairs_table(pairs, rows)
    write_json(folder / "compare.json", {"encoders": rows, "pairs": shown.to_dict("records"),
                                         "unreached": unreached})
    write_text(folder / "table.csv", flat(rows).to_csv(index=False))
    write_text(folder / "pairs.csv", shown.to_csv(index=False))
    draw_cosines(scores, competition.dev["label"].to_numpy(), folder / "figure.png")
    report(rows, shown, folder)
    if unreached:
        log.warning("not compared, because the Hub could not give them: %s",
                    ", ".join(part["encoder"] for part in unreached))


def named(config: Config) -> list[Contestant]:
    """The configured encoders to be compared."""
    own, path = config.encoder, config.encoder.path
    if "encoder" in config.compare.encoders:
        path = hub.located(path)
    return contestants(config.compare.encoders, Contestant(
        f"{Path(own.path).name} (encoder)", path, own.pooling, own.prefix, own.max_length))


def chosen_pairs(file: str) -> pd.DataFrame:
    """The user's pairs, or the ten that come with the pipeline."""
    if not file:
        return example_pairs()
    labelled = is_labelled(Path(file))
    pairs = read_pairs(Path(file), labelled)
    return pairs[["id", "sentence_1", "sentence_2", *(["label"] if labelled else [])]]


def examine(one: Contestant, encoder: Encoder, competition: Competition, train: pd.DataFrame,
            pairs: pd.DataFrame, probes: pd.DataFrame, positive_above: float,
            device: torch.device) -> tuple[dict, object]:
    """Everything that is said of an encoder, and its cosines of dev's pairs (n,)."""
    scorer = PairScorer(encoder, "bi")

    def score(frame: pd.DataFrame, desc: str = "") -> object:
        return raw_scores(scorer, scorer.pairs(frame), device, desc)

    dev, labels = scorer.pairs(competition.dev), competition.dev["label"].to_numpy()
    vectors = normalised(embed(encoder, dev.tokens, device, f"{one.label}: dev"))
    found = measures(vectors, dev.left, dev.right, labels, positive_above)
    slope, intercept = calibration(score(train, f"{one.label}: train"), train["label"].to_numpy())
    raw = score(pairs)
    reading = encoder.reading
    return {"encoder": one.label, "path": one.path, "pooling": reading.pooling,
            "prefix": reading.prefix, "max_length": reading.max_length, **found,
            "verdict": verdict(found), "slope": slope, "intercept": intercept,
            "raw": (HIGHEST * raw).tolist(),
            "calibrated": on_scale(raw, slope, intercept).tolist(),
            "probes": judge(probes, score),
            "identity": [fingerprint(encoder.backbone.config._name_or_path), vars(reading)],
            }, cosines(vectors, dev.left, dev.right)


def pairs_table(pairs: pd.DataFrame, rows: list[dict]) -> pd.DataFrame:
    """Pair × encoder: the cosine times 5, and the label that it stands for by train's pairs."""
    return pairs.assign(**{f"{row['encoder']} {name}": row.pop(kind) for row in rows
                           for name, kind in (("x5", "raw"), ("calibrated", "calibrated"))})


def flat(rows: list[dict]) -> pd.DataFrame:
    """A row an encoder: every number, and the pass rate of each kind of probes."""
    return pd.json_normalize([
        {name: value for name, value in row.items() if name != "probes"}
        | {"probes": {part["kind"]: part["rate"] for part in row["probes"]}} for row in rows])


def report(rows: list[dict], shown: pd.DataFrame, folder: Path) -> None:
    """Prints the tables and the verdicts."""
    width = max(len(row["encoder"]) for row in rows)
    log.info("%-*s  %-23s  %-23s  %s", width, "encoder", "dev Pearson", "dev Spearman",
             "  ".join(name.replace("_", " ") for name in SHAPE))
    for row in rows:
        bounds = "  ".join("{value:7.4f} [{low:.3f}, {high:.3f}]".format(**row[name])
                           for name in ("pearson", "spearman"))
        log.info("%-*s  %s  %s", width, row["encoder"], bounds,
                 "  ".join(f"{row[name]:{len(name)}.{1 if name == 'effective_rank' else 3}f}"
                           for name in SHAPE))
    log.info("\nprobes passed")
    rates = pd.DataFrame({row["encoder"]: {part["kind"]: part["rate"] for part in row["probes"]}
                          for row in rows})
    log.info("%s", rates.to_string(float_format="{:.2f}".format))
    log.info("\nsimilarity on 0-5: cosine x 5 | calibrated on train's pairs")
    for pair in shown.to_dict("records"):
        log.info("%s: %s / %s", pair["id"], pair["sentence_1"], pair["sentence_2"])
        for row in rows:
            x5, calibrated = (pair[f"{row['encoder']} {name}"] for name in ("x5", "calibrated"))
            log.info("  %-*s  %5.2f | %4.2f", width, row["encoder"], x5, calibrated)
    for row in rows:
        log.info("%s: %s", row["encoder"], row["verdict"])
    log.info("compare: %s", folder)
