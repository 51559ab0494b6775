"""Sentences without labels: the competition's own and those of extra files, each once."""

import unicodedata
from collections.abc import Iterator
from itertools import compress, islice
from pathlib import Path

import numpy as np
import pandas as pd

from pipeline.data import PART, SENTENCES
from pipeline.errors import UserError
from pipeline.hashes import hashes, known, merged
from pipeline.tables import is_empty, read_tables, text_encoding

TEXT_COLUMNS = [*SENTENCES, "sentence", "text", "premise", "hypothesis"]


def unlabelled(frames: list[pd.DataFrame], extra: list[Path]) -> Iterator[str]:
    """Every distinct sentence of the frames' pairs and of the extra files, in order."""
    stream, seen = all_sentences(frames, extra), np.zeros(0, np.uint64)
    for part in iter(lambda: list(islice(stream, PART)), []):
        texts = list(dict.fromkeys(part))
        marks = hashes(texts)
        is_new = ~known(seen, marks)
        yield from compress(texts, is_new)
        seen = merged(seen, marks[is_new])


def all_sentences(frames: list[pd.DataFrame], extra: list[Path]) -> Iterator[str]:
    """Every sentence, repeated ones too."""
    for frame in frames:
        for pair in zip(frame["sentence_1"], frame["sentence_2"], strict=True):
            yield from pair
    for path in extra:
        yield from extra_sentences(path)


def extra_sentences(path: Path) -> Iterator[str]:
    """The sentences of a text file (one a line) or of a CSV's sentence columns."""
    if path.suffix not in (".txt", ".csv"):
        raise UserError(f"{path}: expected a .txt or a .csv of sentences, got {path.suffix!r}")
    if path.suffix == ".txt":
        with open(path, encoding=text_encoding(path)) as lines:
            for line in lines:
                if not is_empty(line):
                    yield unicodedata.normalize("NFC", line.strip())
        return
    header = list(next(read_tables(path, 1)))[:-1]
    columns = [name for name in TEXT_COLUMNS if name in header]
    if not columns:
        raise UserError(f"{path}: row 1: expected one of the columns {', '.join(TEXT_COLUMNS)}, "
                        f"got {', '.join(map(str, header))}")
    for column in columns:  # read once for each, so that memory does not grow with the file
        for table in read_tables(path, PART):
            yield from (text for text in table[column] if not is_empty(text))


def sentence_table(frame: pd.DataFrame) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Each sentence once, and for every pair the places of its two sentences: (n,), (n,)."""
    codes, texts = pd.factorize(pd.concat([frame["sentence_1"], frame["sentence_2"]]))
    return list(texts), codes[:len(frame)], codes[len(frame):]
