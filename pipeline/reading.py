"""How an encoder makes a vector of a sentence: pooling, prefix and maximum length.

They are part of a saved model: they stand in `sentence_encoder.json` beside the weights and are
read back, never guessed.

    python run.py stage=simcse encoder.path=klue/roberta-large encoder.pooling=cls
"""

import json
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import UserError

RECORD = "sentence_encoder.json"
POOLINGS = ("cls", "cls_mlp", "mean", "first_last_mean", "pooler")


@dataclass(frozen=True)
class Reading:
    """How an encoder reads a sentence and makes a vector of it."""

    pooling: str = "mean"
    prefix: str = ""
    max_length: int = 128


def reading_of(path: str, pooling: str = "auto", prefix: str = "auto",
               max_length: int = 0) -> Reading:
    """How a model is read: as asked, and where nothing is ("auto", 0) as its folder records it."""
    reading = recorded(path)
    return Reading(reading.pooling if pooling == "auto" else pooling,
                   reading.prefix if prefix == "auto" else prefix,
                   max_length or reading.max_length)


def recorded(path: str) -> Reading:
    """What the model's folder records, else the defaults."""
    file = Path(path) / RECORD
    if not file.exists():
        return Reading()
    try:
        reading = Reading(**json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise UserError(f"{file}: expected pooling, prefix and max_length, got: {error}") from None
    if (reading.pooling not in POOLINGS or not isinstance(reading.prefix, str)
            or not isinstance(reading.max_length, int)):
        raise UserError(f"{file}: expected pooling (one of {', '.join(POOLINGS)}), a prefix and a "
                        f"whole max_length, got {reading}")
    return reading
