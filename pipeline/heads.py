"""The two ways to score a pair: a cross-encoder reads it at once, a bi-encoder compares vectors.

Scores are 0–1 inside (label / 5) and 0–5 outside.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from pipeline.batching import Tokens
from pipeline.corpus import sentence_table
from pipeline.data import HIGHEST, LOWEST, SENTENCES
from pipeline.dropout import Dropout
from pipeline.encoder import Encoder, embed, load_encoder, outputs
from pipeline.errors import UserError
from pipeline.files import write_json
from pipeline.metrics import normalised
from pipeline.packing import Batch

RECORD, WEIGHTS = "head.json", "head.safetensors"


@dataclass
class Pairs:
    """Pairs as token ids: whole pairs for a cross head, each sentence once for a bi head."""

    tokens: Tokens
    left: np.ndarray | None = None  # (n,) rows of tokens; None: a pair is one row of tokens
    right: np.ndarray | None = None
    swapped: "Pairs | None" = None  # in the other order, for a head that reads both

    def __len__(self) -> int:
        return len(self.tokens if self.left is None else self.left)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of every pair (n,)."""
        if self.left is None:
            return self.tokens.lengths
        return self.tokens.lengths[self.left] + self.tokens.lengths[self.right]

    def batch(self, rows: np.ndarray) -> Batch:
        """The pairs' tensors: B sequences, or for a bi head 2B, all left then all right."""
        return self.tokens.batch(rows if self.left is None else
                                 np.concatenate([self.left[rows], self.right[rows]]))


def pairs_for(encoder: Encoder, head: str, frame: pd.DataFrame) -> Pairs:
    """The frame's sentence_1 and sentence_2 as the encoder reads them under this head."""
    if head == "cross":
        return Pairs(encoder.tokens(zip(frame["sentence_1"], frame["sentence_2"], strict=True)))
    texts, left, right = sentence_table(frame)
    return Pairs(encoder.tokens(texts), left, right)


def linear(width: int, classes: int) -> nn.Linear:
    """A head's last layer, initialised as BERT initialises its own."""
    layer = nn.Linear(width, classes)
    nn.init.normal_(layer.weight, std=0.02)
    nn.init.zeros_(layer.bias)
    return layer


def logistic_link(threshold: float) -> nn.Linear:
    """From scores to logits of a label from the threshold on, in labels above it to begin with.

    From a random slope near 0, as other layers start, it would teach the scores next to nothing.
    """
    layer = nn.Linear(1, 1)
    nn.init.constant_(layer.weight, HIGHEST)
    nn.init.constant_(layer.bias, -threshold)
    return layer


@dataclass(frozen=True)
class PairReading:
    """How a scorer reads a pair, besides its encoder; part of the saved model."""

    sources: list[str] = field(default_factory=list)  # sources that have a token of their own
    both_orders: bool = False  # a cross head's score is the mean of both orders

    def marked(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The frame with its source's token before every sentence, for the known sources."""
        if not self.sources:
            return frame
        before = frame["source"].map({name: source_token(name) + " " for name in self.sources})
        return frame.assign(**{column: before.fillna("") + frame[column] for column in SENTENCES})


def source_token(source: str) -> str:
    """The special token of a source of the competition."""
    return f"[{source}]"


class PairClassifier(nn.Module):
    """An encoder with a class head: batches to logits (N, classes); bi reads [u, v, |u − v|]."""

    def __init__(self, encoder: Encoder, head: str, classes: int) -> None:
        super().__init__()
        self.encoder, self.head = encoder.without_mlp(), head
        self.dropout = Dropout(encoder.own_dropout.get("hidden_dropout_prob", 0.1))
        self.linear = linear(encoder.width * (1 if head == "cross" else 3), classes)

    def forward(self, batch: Batch) -> Tensor:
        """Logits of N pairs (bi: of 2N sentences, all left then all right)."""
        vectors = self.encoder(batch)
        if self.head == "bi":
            left, right = vectors.chunk(2)
            vectors = torch.cat([left, right, (left - right).abs()], dim=1)  # (N, 3d)
        return self.linear(self.dropout(vectors))

    def pairs(self, frame: pd.DataFrame) -> Pairs:
        """The frame's pairs as this classifier reads them."""
        return pairs_for(self.encoder, self.head, frame)


class PairScorer(nn.Module):
    """An encoder with a head: batches to raw scores (N,)."""

    def __init__(self, encoder: Encoder, head: str, reading: PairReading = PairReading(),
                 dropout_samples: int = 1) -> None:
        """dropout_samples: with a cross head, dropout masks of each vector in training."""
        super().__init__()
        self.encoder, self.head, self.reading = encoder.without_mlp(), head, reading
        self.dropout_samples = dropout_samples
        self.scale, self.shift = 1.0, 0.0
        encoder.add_tokens(map(source_token, reading.sources))
        if head == "cross":
            self.dropout = Dropout(getattr(encoder.backbone.config, "hidden_dropout_prob", 0.1))
            self.linear = linear(encoder.width, 1)
        self.link: nn.Linear | None = None  # from scores to binary-label's logits, in training only

    def forward(self, batch: Batch) -> Tensor:
        """Scores (N,) of N pairs, or for a bi head of 2N sentences, all left then all right.

        In training those of all dropout samples, one after the other (Inoue 2019).
        """
        vectors = self.encoder(batch)
        if self.head == "cross":
            samples = self.dropout_samples if self.training else 1
            # In fp32: bf16 has three digits, and ties would blur the ranks.
            with torch.autocast(vectors.device.type, enabled=False):
                vectors = vectors.to(self.linear.weight.dtype)  # bf16 in shards alone
                return torch.cat([self.linear(self.dropout(vectors)).squeeze(-1)
                                  for _ in range(samples)])
        left, right = vectors.float().chunk(2)
        return F.cosine_similarity(left, right)

    def pairs(self, frame: pd.DataFrame) -> Pairs:
        """The frame's pairs as this scorer reads them."""
        frame = self.reading.marked(frame)
        found = pairs_for(self.encoder, self.head, frame)
        if self.reading.both_orders:
            other = dict(zip(SENTENCES, reversed(SENTENCES), strict=True))
            found.swapped = pairs_for(self.encoder, self.head, frame.rename(columns=other))
        return found

    def take_head(self, folder: Path) -> None:
        """Begins with the head of the cross-encoder in this folder, if a run left one there."""
        file = folder / RECORD
        if (self.head == "cross" and file.exists()
                and json.loads(file.read_text(encoding="utf-8"))["head"] == "cross"):
            self.linear.load_state_dict(load_file(folder / WEIGHTS))

    def save(self, folder: Path) -> None:
        """The encoder's folder with the head beside it; the caller renames it into place."""
        self.encoder.save(folder)
        if self.head == "cross":
            save_file(self.linear.state_dict(), folder / WEIGHTS)
        write_json(folder / RECORD, {"head": self.head, "scale": self.scale, "shift": self.shift,
                                     **asdict(self.reading)})


def read_record(folder: Path) -> dict:
    """What stands beside a scorer's weights: its head, scale and reading."""
    file = folder / RECORD
    if not file.exists():
        raise UserError(f"{file}: expected a model that scores pairs (a finished sts run), "
                        "got none")
    return json.loads(file.read_text(encoding="utf-8"))


def load_scorer(folder: Path) -> PairScorer:
    """A finished run's model with its head."""
    record = read_record(folder)
    reading = PairReading(record.get("sources", []), record.get("both_orders", False))
    scorer = PairScorer(load_encoder(str(folder)), record["head"], reading)
    scorer.scale, scorer.shift = record["scale"], record["shift"]
    scorer.take_head(folder)
    return scorer


def raw_scores(scorer: PairScorer, pairs: Pairs, device: torch.device,
               desc: str = "") -> np.ndarray:
    """Raw scores (n,) float32; a bi head encodes each sentence once. desc: shows progress."""
    if pairs.left is None:
        both = [pairs, pairs.swapped] if scorer.reading.both_orders else [pairs]
        return np.mean([outputs(scorer, 1, part.tokens, device, desc)[:, 0] for part in both],
                       axis=0)
    was_training = scorer.training
    scorer.eval()
    vectors = normalised(embed(scorer.encoder, pairs.tokens, device, desc))
    scorer.train(was_training)
    return (vectors[pairs.left] * vectors[pairs.right]).sum(axis=1)


def fit_scale(scorer: PairScorer, raw: np.ndarray, labels: np.ndarray) -> None:
    """Sets scale and shift by least squares, for losses that leave the scores' level open."""
    if np.ptp(raw) > 0:
        scale, shift = np.polyfit(raw.astype(np.float64), labels / HIGHEST, 1)
        scorer.scale, scorer.shift = float(scale), float(shift)


def to_labels(scorer: PairScorer, raw: np.ndarray) -> np.ndarray:
    """Raw scores on the label scale, clipped to 0–5."""
    return np.clip((raw * scorer.scale + scorer.shift) * HIGHEST, LOWEST, HIGHEST)
