"""Token ids made once, seeded batches of rows, and tensors with little padding.

A batch is an array of row numbers. It becomes tensors in a few chunks of like length, so that
long sentences do not make short ones pay: the model runs the chunks one after the other and puts
the vectors back in the batch's order, and whatever loss follows sees the batch as if padded whole.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

CHUNK_COST = 256  # tokens: what starting one more chunk costs, measured in padding it must save
WRITE_ROWS = 10_000


@dataclass
class Batch:
    """A batch's tensors: chunks of (rows, length), and each batch row's place in their sequence."""

    chunks: list[dict[str, torch.Tensor]]
    order: torch.Tensor  # (N,)

    def to(self, device: torch.device) -> "Batch":
        """The same batch on a device."""
        return Batch([{name: tensor.to(device, non_blocking=True) for name, tensor in chunk.items()}
                      for chunk in self.chunks], self.order.to(device))

    def __len__(self) -> int:
        return len(self.order)


class Tokens:
    """Token ids of many sentences or pairs, flat in Arrow memory (from a file: memory-mapped)."""

    def __init__(self, dataset: Any, pad: int) -> None:
        """Takes a `datasets.Dataset` with the columns ids, first and text, and the padding id."""
        self.dataset, self.pad = dataset, pad
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
        return Tokens(self.dataset.select(rows).flatten_indices(), self.pad)

    def batch(self, rows: np.ndarray) -> Batch:
        """The rows as tensors in chunks of like length."""
        lengths = self.lengths[rows]
        ascending = np.argsort(lengths, kind="stable")
        chunks = [self._padded(rows[ascending[start:end]])
                  for start, end in cut_by_length(lengths[ascending])]
        order = np.empty(len(rows), np.int64)
        order[ascending] = np.arange(len(rows))
        return Batch(chunks, torch.from_numpy(order))

    def _padded(self, rows: np.ndarray) -> dict[str, torch.Tensor]:
        lengths = self.lengths[rows][:, None]
        places = np.arange(lengths.max())[None, :]
        ids = np.full((len(rows), places.shape[1]), self.pad, np.int64)
        mask = places < lengths
        ids[mask] = np.concatenate([self.ids(row) for row in rows])
        tensors = {"input_ids": ids, "attention_mask": mask.astype(np.int64)}
        if self.first is not None:
            tensors["token_type_ids"] = ((places >= self.first[rows][:, None]) & mask).astype(
                np.int64)
        return {name: torch.from_numpy(tensor) for name, tensor in tensors.items()}


def tokenise(texts: Iterable[Any], tokenizer: Any, max_length: int, prefix: str = "",
             file: Path | None = None, types: bool = False) -> Tokens:
    """Token ids of sentences, or of pairs (a, b): the longer of a pair is cut first.

    With `file` they are written there as Arrow in pieces and memory-mapped, so that a corpus of
    millions needs no memory. `types` keeps where the second sentence begins, for encoders with
    token types.
    """
    from datasets import Dataset, Features, List, Value
    from datasets.arrow_writer import ArrowWriter

    columns = {"text": Value("string"), "ids": List(Value("int32"))}
    if types:
        columns["first"] = Value("int32")
    features, stream = Features(columns), iter(texts)
    if file is None:
        pieces = [encoded(piece, tokenizer, max_length, prefix, types)
                  for piece in iter(lambda: list(islice(stream, WRITE_ROWS)), [])]
        whole = {name: [row for piece in pieces for row in piece[name]] for name in columns}
        return Tokens(Dataset.from_dict(whole, features=features), tokenizer.pad_token_id)
    with ArrowWriter(path=str(file), features=features) as writer:
        for piece in iter(lambda: list(islice(stream, WRITE_ROWS)), []):
            writer.write_batch(encoded(piece, tokenizer, max_length, prefix, types))
        writer.finalize()
    return Tokens(Dataset.from_file(str(file)), tokenizer.pad_token_id)


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


def cut_by_length(ascending: np.ndarray) -> list[tuple[int, int]]:
    """Cuts sorted lengths where padding plus CHUNK_COST a chunk is least (dynamic programme)."""
    ends = np.append(np.flatnonzero(np.diff(ascending)) + 1, len(ascending))
    starts = np.concatenate([[0], ends])
    best, cut = np.zeros(len(starts)), np.zeros(len(starts), np.int64)
    for k in range(1, len(starts)):
        cost = best[:k] + (starts[k] - starts[:k]) * int(ascending[starts[k] - 1]) + CHUNK_COST
        cut[k] = cost.argmin()
        best[k] = cost[cut[k]]
    spans, k = [], len(starts) - 1
    while k:
        spans.append((int(starts[cut[k]]), int(starts[k])))
        k = int(cut[k])
    return spans[::-1]


def shuffled(n: int, size: int, seed: int, epoch: int, drop_last: bool) -> list[np.ndarray]:
    """An epoch's batches: every row once in an order that the seed and the epoch fix.

    Raises ValueError when rows are fewer than a batch and the last is to be dropped.
    """
    order = np.random.default_rng([seed, epoch]).permutation(n)
    batches = [order[start:start + size] for start in range(0, n, size)]
    if drop_last and len(batches[-1]) < size:
        batches.pop()
    if not batches:
        raise ValueError(f"{n} rows do not fill one batch of {size}")
    return batches


def grouped_by_length(lengths: np.ndarray, size: int, seed: int, epoch: int,
                      window: int = 20) -> list[np.ndarray]:
    """An epoch's batches of like length: sorted within windows of shuffled batches, then shuffled.

    For losses whose rows do not depend on each other.
    """
    random = np.random.default_rng([seed, epoch])
    order = random.permutation(len(lengths))
    batches: list[np.ndarray] = []
    for start in range(0, len(order), size * window):
        part = order[start:start + size * window]
        part = part[np.argsort(lengths[part], kind="stable")]
        batches += [part[at:at + size] for at in range(0, len(part), size)]
    return [batches[i] for i in random.permutation(len(batches))]


def by_tokens(lengths: np.ndarray, budget: int = 8192) -> Iterator[np.ndarray]:
    """Batches for reading only: longest first, at most `budget` padded tokens each."""
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        end = start + max(1, budget // max(1, int(lengths[order[start]])))
        yield order[start:end]
        start = end
