"""The work that ours and the peers are given: an encoder, the same rows, batch and steps."""

import argparse
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

SEED = 42
LEARNING_RATE = 3e-5
TEMPERATURE = 0.05


@dataclass(frozen=True)
class Work:
    """What is computed, whoever computes it."""

    encoder: str
    data: str
    pooling: str = "auto"
    prefix: str = "auto"
    max_length: int = 192
    batch: int = 64  # rows in a step; of simcse sentences, each twice
    steps: int = 10
    sentences: int = 2000  # to be encoded
    dev: int = 300  # pairs that the score is computed on
    device: str = "auto"

    @cached_property
    def reading(self) -> Any:
        """Pooling, prefix and length, what is "auto" taken from the encoder's folder."""
        from pipeline.reading import reading_of

        return reading_of(self.encoder, self.pooling, self.prefix, self.max_length)

    @cached_property
    def competition(self) -> Any:
        """The data."""
        from pipeline.data import read_competition

        return read_competition(Path(self.data))

    @cached_property
    def texts(self) -> list[str]:
        """All sentences once, in an order that the seed fixes."""
        import numpy as np

        from pipeline.corpus import unlabelled

        every = list(unlabelled([self.competition.train], []))
        return [every[row] for row in np.random.default_rng(SEED).permutation(len(every))]

    def training_texts(self) -> list[str]:
        """The sentences of all steps: an epoch over them is the work."""
        return enough(self.texts, self.batch * self.steps)

    def training_pairs(self) -> Any:
        """The labelled pairs of all steps, as a frame."""
        train = self.competition.train.sample(frac=1, random_state=SEED)
        return enough(train, self.batch * self.steps).reset_index(drop=True)

    def dev_pairs(self) -> Any:
        """The pairs of the score."""
        dev = self.competition.dev
        return dev.sample(min(self.dev, len(dev)), random_state=SEED).reset_index(drop=True)


def enough(rows: Any, count: int) -> Any:
    """The first `count` rows; ends the program when there are fewer."""
    if len(rows) < count:
        raise SystemExit(f"error: --steps: expected at most {len(rows)} rows in all, got {count}")
    return rows[:count]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that make a Work."""
    parser.add_argument("--encoder", required=True, help="a Hugging Face encoder's folder")
    parser.add_argument("--data", required=True, help="a folder with train.csv and dev.csv")
    parser.add_argument("--pooling", default="auto", choices=["auto", "cls", "mean"])
    parser.add_argument("--prefix", default="auto")
    parser.add_argument("--max-length", type=int, default=192)
    parser.add_argument("--steps", type=int, default=10, help="timed steps")
    parser.add_argument("--batch", type=int, default=0,
                        help="rows in a step; 0: 64 sentences for simcse, 32 pairs for cross")
    parser.add_argument("--sentences", type=int, default=2000, help="sentences to encode")
    parser.add_argument("--dev", type=int, default=300, help="dev pairs to score")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])


def from_arguments(asked: argparse.Namespace, task: str) -> Work:
    """The work of a task."""
    return Work(asked.encoder, asked.data, asked.pooling, asked.prefix, asked.max_length,
                asked.batch or {"simcse": 64}.get(task, 32), asked.steps, asked.sentences,
                asked.dev, asked.device)
