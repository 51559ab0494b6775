"""Token ids made once, and seeded batches of rows.

A batch is an array of row numbers; `Tokens.batch` makes tensors of it.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.packing import Batch, pack

WRITE_ROWS = 10_000


class Tokens:
    """Token ids of many sentences or pairs, flat in Arrow memory (from a file: memory-mapped)."""

    def __init__(self, dataset: Any) -> None:
        """Takes a `datasets.Dataset` with the columns ids, text and maybe first."""
        self.dataset = dataset
        chunks = dataset.data.column("ids").chunks
        self.starts = np.cumsum([0] + [len(chunk) for chunk in chunks])
        self.values = [chunk.values.to_numpy() for chunk in chunks]
        self.offsets = [chunk.offsets.to_numpy() for chunk in chunks]
        self.lengths = np.concatenate(  # (n,)
            [np.diff(offsets) for offsets in self.offsets] or [np.zeros(0, np.int64)])
        self.first = (dataset.data.column("first").to_numpy() if "first" in dataset.column_names
                      else None)

    def __len__(self) -> int:
        return len(self.lengths)

    def ids(self, row: int) -> np.ndarray:
        """One row's token ids, without a copy."""
        chunk = int(np.searchsorted(self.starts, row, side="right")) - 1
        offsets, place = self.offsets[chunk], row - self.starts[chunk]
        return self.values[chunk][offsets[place]:offsets[place + 1]]

    def text(self, row: int) -> str:
        """One row's text."""
        return self.dataset[int(row)]["text"]

    def subset(self, rows: np.ndarray) -> "Tokens":
        """These rows alone, in this order."""
        return Tokens(self.dataset.select(rows).flatten_indices())

    def batch(self, rows: np.ndarray) -> Batch:
        """The rows as tensors without padding, in this order."""
        return pack([self.ids(row) for row in rows],
                    None if self.first is None else self.first[rows])


def tokenise(texts: Iterable[Any], tokenizer: Any, max_length: int, prefix: str = "",
             file: Path | None = None, types: bool = False) -> Tokens:
    """Token ids of sentences, or of pairs (a, b): the longer of a pair is cut first.

    With `file` they are written there as Arrow in pieces and memory-mapped, so that a corpus of
    millions needs no memory. `types` keeps where the second sentence begins, for encoders with
    token types.
    """
    from datasets import Dataset, Features, List, Value, disable_progress_bars
    from datasets.arrow_writer import ArrowWriter

    disable_progress_bars()
    columns = {"text": Value("string"), "ids": List(Value("int32"))}
    if types:
        columns["first"] = Value("int32")
    features, stream = Features(columns), iter(texts)
    if file is None:
        pieces = [encoded(piece, tokenizer, max_length, prefix, types)
                  for piece in iter(lambda: list(islice(stream, WRITE_ROWS)), [])]
        whole = {name: [row for piece in pieces for row in piece[name]] for name in columns}
        return Tokens(Dataset.from_dict(whole, features=features))
    with ArrowWriter(path=str(file), features=features) as writer:
        for piece in iter(lambda: list(islice(stream, WRITE_ROWS)), []):
            writer.write_batch(encoded(piece, tokenizer, max_length, prefix, types))
        writer.finalize()
    return Tokens(Dataset.from_file(str(file)))


def encoded(texts: list[Any], tokenizer: Any, max_length: int, prefix: str,
            types: bool) -> dict[str, list]:
    """One piece of a corpus as columns."""
    is_pair = not isinstance(texts[0], str)
    sides = list(zip(*texts, strict=True)) if is_pair else [texts]
    made = tokenizer(*([prefix + text for text in side] for side in sides), max_length=max_length,
                     truncation="longest_first", return_attention_mask=False,
                     return_token_type_ids=types)
    columns = {"text": ["\t".join(text) for text in texts] if is_pair else list(texts),
               "ids": made["input_ids"]}
    if types:
        columns["first"] = [len(row) - sum(row) for row in made["token_type_ids"]]
    return columns


def shuffled(n: int, size: int, seed: int, epoch: int, drop_last: bool,
             weights: np.ndarray | None = None) -> list[np.ndarray]:
    """An epoch's batches: every row once in an order that the seed and the epoch fix.

    With weights (n,) of mean 1 a row comes as often as its weight says: its whole part for sure,
    and once more with the rest for probability. Raises ValueError when rows are fewer than a
    batch and the last is to be dropped.
    """
    random = np.random.default_rng([seed, epoch])
    order = random.permutation(n)
    if weights is not None:
        # n points one apart on the line of the shuffled rows' weights: systematic sampling.
        places = np.searchsorted(weights[order].cumsum(), np.arange(n) + random.random())
        order = random.permutation(order[np.minimum(places, n - 1)])
    batches = [order[start:start + size] for start in range(0, n, size)]
    if drop_last and n % size:
        batches.pop()
    if not batches:
        raise ValueError(f"{n} rows do not fill one batch of {size}")
    return batches


def by_tokens(lengths: np.ndarray, budget: int) -> Iterator[np.ndarray]:
    """Batches for reading only: longest first, at most `budget` padded tokens each."""
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        end = start + max(1, budget // max(1, int(lengths[order[start]])))
        yield order[start:end]
        start = end
