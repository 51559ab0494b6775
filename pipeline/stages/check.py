"""Reads the data and the environment and says what is wrong or risky; trains nothing.

    python run.py stage=check
    python run.py stage=check submission=submissions/NAME.csv
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipeline.audit import findings, shared_sentences
from pipeline.config import Config
from pipeline.data import SENTENCES, Competition, read_competition
from pipeline.metrics import RANGES
from pipeline.reading import reading_of
from pipeline.submission import check_submission


def run(config: Config) -> None:
    """Prints the data's shape and risks, the tokens' lengths, the machine and its memory."""
    folder = Path(config.data.dir)
    competition = read_competition(folder)
    if config.submission:
        table = check_submission(Path(config.submission), competition.order)
        target = table["target"]
        print(f"{config.submission}: correct: {len(target)} ids of test.csv, each once, targets "
              f"from {target.min():.3f} to {target.max():.3f}")
        if target.nunique() == 1:
            print("risk: all targets are equal: Pearson is undefined")
        if table["id"].tolist() != competition.order:
            print("risk: the ids stand in another order than sample_submission.csv, or without it "
                  "test.csv, has them; a platform that goes by rows would mix them up")
        return
    describe(competition, folder)
    risks = findings(competition, folder)
    for line in risks:  # before the encoder, which may not be had
        print(f"risk: {line}")
    risks += tokens_and_memory(config, competition)
    print(f"{len(risks)} risks, no errors")


def describe(competition: Competition, folder: Path) -> None:
    """Prints sizes, labels and sources."""
    print(f"data: {folder}")
    for name in ("train", "dev", "test"):
        frame: pd.DataFrame = getattr(competition, name)
        characters = frame[SENTENCES].map(len).to_numpy()
        sources = frame["source"].value_counts()
        print(f"  {name:<5} {len(frame):>6,} pairs, {np.unique(frame[SENTENCES]).size:,} distinct "
              f"sentences, median {int(np.median(characters))} characters (longest "
              f"{characters.max():,})")
        print("        sources: " + ", ".join(f"{source or 'none'} {count:,}"
                                              for source, count in sources.items()))
        if "label" in frame:
            labels = frame["label"]
            counts = np.histogram(labels, [low for low, _ in RANGES] + [5])[0]
            print(f"        labels: mean {labels.mean():.2f}, SD {labels.std():.2f}, "
                  f"{(labels == 0).mean():.0%} are 0; " + ", ".join(
                      f"{low}-{high}: {count / len(labels):.0%}"
                      for (low, high), count in zip(RANGES, counts, strict=True)))
    for name in ("dev", "test"):
        share = shared_sentences(competition.train, getattr(competition, name))
        print(f"  {share:.0%} of {name}'s sentences stand in train")


def tokens_and_memory(config: Config, competition: Competition) -> list[str]:
    """Prints token lengths, unknown pieces, the machine, a memory estimate; returns the risks."""
    from transformers import AutoConfig, AutoTokenizer

    from pipeline import hardware
    from pipeline.hub import from_hub, located

    path = located(config.encoder.path)
    tokenizer, model = from_hub(AutoTokenizer, path), from_hub(AutoConfig, path)
    frames = [competition.train, competition.dev, competition.test]
    pairs = pd.concat(frames)[SENTENCES]
    prefix = reading_of(path, prefix=config.encoder.prefix).prefix
    ids = whole_ids(tokenizer, *((prefix + pairs[column]).tolist() for column in SENTENCES))
    lengths = np.array([len(row) for row in ids])
    unknown_id = tokenizer.unk_token_id
    unknown = [row.count(unknown_id) for row in ids]
    cut = int((lengths > config.encoder.max_length).sum())
    print(f"encoder: {config.encoder.path} ({model.model_type}, {model.num_hidden_layers} layers, "
          f"width {model.hidden_size})")
    print(f"  tokens of a pair: median {np.median(lengths):.0f}, 99% under "
          f"{np.percentile(lengths, 99):.0f}, longest {lengths.max():,}; {cut} pairs are cut at "
          f"encoder.max_length={config.encoder.max_length}")
    print(f"  unknown pieces: {sum(unknown):,} in {np.count_nonzero(unknown):,} pairs")
    device = hardware.pick_device(config.device)
    precision = hardware.pick_precision(config.precision, device)
    print(f"machine: {json.dumps(hardware.machine(device))}, precision {precision}, memory free "
          f"{hardware.free_memory(device) / 2**30:.1f} GiB")
    tokens = min(int(np.percentile(lengths, 99)), config.encoder.max_length)
    rows = max(config.sts.batch_size, 2 * config.simcse.batch_size)
    need = hardware.training_memory(model, rows * tokens, 4 if precision == "fp32" else 2)
    print(f"  training takes roughly {need / 2**30:.1f} GiB "
          f"({rows} rows of {tokens} tokens in a step)")
    if need <= hardware.free_memory(device):
        return []
    risk = ("that is more than is free: lower simcse.batch_size, sts.batch_size or "
            "encoder.max_length, or take a smaller preset")
    print(f"risk: {risk}")
    return [risk]


def whole_ids(tokenizer: Any, one: list[str], other: list[str]) -> list[list[int]]:
    """Token ids of every pair, nothing cut off."""
    if not tokenizer.is_fast:
        return tokenizer(one, other, return_attention_mask=False)["input_ids"]
    # transformers also asks for every token's place in the text: half as slow again.
    inner = tokenizer.backend_tokenizer
    inner.no_truncation()
    inner.no_padding()
    return [found.ids for found in inner.encode_batch_fast(list(zip(one, other, strict=True)))]
