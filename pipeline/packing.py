"""Batches without padding: sequences one after the other, padded only inside attention.

An encoder's linear layers, norms and activations do not care where a sequence ends; attention
does. So a batch's tokens run through the layers as one long row (1, T), and attention alone lays
them out in a few padded groups of like length. The result equals a padded batch's to rounding.
Where sequences of one length stand together, as in reading longest first, they stay as they are.
Architectures whose attention is of another kind (DeBERTa) are run group by group instead.
"""

from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from pipeline.attention import attend

PACKABLE = {"bert", "roberta", "xlm-roberta", "camembert", "electra"}
ATTENTION = "packed"
GROUP_COST = 256  # tokens: what one more group costs, measured in padding that it must save
RUN = 128  # tokens: where runs of one length have so many on average, nothing is laid out anew
ROUND = 64  # tokens: a batch's count is a multiple; a CPU makes and keeps kernels for each count


@dataclass
class Batch:
    """N sequences, and their places when padded in groups (P tokens).

    T tokens in all: `tokens` of the sequences and behind them filler, which nothing reads.
    """

    ids: Tensor  # (T,)
    positions: Tensor  # (T,) counted from 0 in each sequence
    types: Tensor | None  # (T,) 0 for a pair's first sentence, 1 for its second
    lengths: Tensor  # (N,)
    index: Tensor  # (P,) the token at each padded place; padding repeats a token
    real: Tensor  # (P,) whether a padded place is a token
    place: Tensor  # (T,) each token's padded place
    groups: list[tuple[int, int]]  # sequences and length of each group, in the order of index
    tokens: int
    is_dense: bool  # no padding, and every token is in its padded place

    def to(self, device: torch.device) -> "Batch":
        """The same batch on a device."""
        values = (getattr(self, item.name) for item in fields(self))
        return Batch(*(value.to(device, non_blocking=True) if isinstance(value, Tensor) else value
                       for value in values))

    def __len__(self) -> int:
        return len(self.lengths)

    def masks(self) -> list[Tensor]:
        """Each group's mask (n, L): where its padded places are tokens."""
        parts = self.real.split([n * length for n, length in self.groups])
        return [part.view(shape) for part, shape in zip(parts, self.groups, strict=True)]


def pack(sequences: list[np.ndarray], first: np.ndarray | None = None) -> Batch:
    """A batch of token id sequences; first (N,): how many tokens of each have type 0.

    On a machine without a card filler is added: sequences of one token, which fit every encoder.
    """
    count, tokens = len(sequences), sum(map(len, sequences))
    filler = np.zeros((0 if torch.cuda.is_available() else -tokens % ROUND, 1), np.int64)
    sequences = [*sequences, *filler]
    lengths = np.array([len(sequence) for sequence in sequences])
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    positions = np.arange(lengths.sum()) - np.repeat(starts, lengths)
    order = np.arange(len(lengths))
    spans = runs(lengths)
    is_dense = len(positions) >= RUN * len(spans)
    if not is_dense:
        order = np.argsort(lengths, kind="stable")
        spans = cut_by_length(lengths[order])
    index, real, groups = [], [], []
    for begin, end in spans:
        rows = order[begin:end]
        longest = int(lengths[rows].max())
        places = np.arange(longest)[None, :]
        inside = places < lengths[rows][:, None]  # (n, L)
        index.append(np.where(inside, starts[rows][:, None] + places, starts[rows][:, None]))
        real.append(inside)
        groups.append((len(rows), longest))
    flat_index = np.concatenate([part.ravel() for part in index])
    flat_real = np.concatenate([part.ravel() for part in real])
    place = np.empty(len(positions), np.int64)
    place[flat_index[flat_real]] = np.flatnonzero(flat_real)
    types = None
    if first is not None:
        first = np.append(first, np.ones_like(filler))
        types = (positions >= np.repeat(first, lengths)).astype(np.int64)
    ids = np.concatenate(sequences).astype(np.int64)
    return Batch(*(part if part is None else torch.from_numpy(part) for part in
                   (ids, positions, types, lengths[:count], flat_index, flat_real, place)),
                 groups, tokens, is_dense)


def runs(lengths: np.ndarray) -> list[tuple[int, int]]:
    """Where each run of equal lengths begins and ends."""
    ends = [*(np.flatnonzero(np.diff(lengths)) + 1).tolist(), len(lengths)]
    return list(pairwise([0, *ends]))


def cut_by_length(ascending: np.ndarray) -> list[tuple[int, int]]:
    """Cuts sorted lengths where padding plus GROUP_COST a group is least (dynamic programme)."""
    starts = np.array([0, *(end for _, end in runs(ascending))])
    best, cut = np.zeros(len(starts)), np.zeros(len(starts), np.int64)
    for k in range(1, len(starts)):
        cost = best[:k] + (starts[k] - starts[:k]) * int(ascending[starts[k] - 1]) + GROUP_COST
        cut[k] = cost.argmin()
        best[k] = cost[cut[k]]
    spans, k = [], len(starts) - 1
    while k:
        spans.append((int(starts[cut[k]]), int(starts[k])))
        k = int(cut[k])
    return spans[::-1]


class Pad(torch.autograd.Function):
    """(T, d) to (P, d). Its gradient is a look-up too, since padding has none."""

    @staticmethod
    def forward(ctx: Any, packed: Tensor, index: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(place)
        return packed.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (place,) = ctx.saved_tensors
        return gradient.index_select(0, place), None, None


def attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, _mask: None,
              dropout: float = 0.0, scaling: float | None = None, batch: Batch | None = None,
              **_: Any) -> tuple[Tensor, None]:
    """Attention of packed sequences: (1, heads, T, d) three times to (1, T, heads, d)."""
    heads, width = query.shape[1], query.shape[3]
    # squeeze, and not x[0]: an index's gradient is a whole tensor of zeros with a copy in it.
    padded = [x.squeeze(0).transpose(0, 1).reshape(-1, heads * width)
              for x in (query, key, value)]  # (T, heads * d) each
    masks = [None] * len(batch.groups)
    if not batch.is_dense:
        padded = [Pad.apply(x, batch.index, batch.place) for x in padded]  # (P, heads * d) each
        masks = [real[:, None, None, :] for real in batch.masks()]
    scaling = width**-0.5 if scaling is None else scaling
    # split, and not slices: a slice's gradient is a whole tensor of zeros around its part.
    sizes, outputs = [n * length for n, length in batch.groups], []
    parts = zip(*(x.split(sizes) for x in padded), strict=True)
    for part, (n, length), mask in zip(parts, batch.groups, masks, strict=True):
        q, k, v = (x.view(n, length, heads, width).transpose(1, 2) for x in part)
        # (n, heads, L, d) each
        context = attend(q, k, v, mask, dropout, scaling)
        outputs.append(context.transpose(1, 2).reshape(n * length, heads * width))
    context = torch.cat(outputs)
    if not batch.is_dense:
        context = context.index_select(0, batch.place)
    return context.view(1, -1, heads, width), None


AttentionInterface.register(ATTENTION, attention)
AttentionMaskInterface.register(ATTENTION, lambda *args, **options: None)


def hidden_states(backbone: nn.Module, batch: Batch, both: bool = False) -> Tensor:
    """The sequences' last hidden states (tokens, d); both: the mean of first and last layer's."""
    if backbone.config._attn_implementation == ATTENTION:
        types = {} if batch.types is None else {"token_type_ids": batch.types[None]}
        ids = F.pad(batch.ids[:batch.tokens], (0, len(batch.ids) - batch.tokens),
                    value=backbone.config.pad_token_id)  # the filler is padding
        places = batch.positions[None] + first_position(backbone.config)
        states = backbone(input_ids=ids[None], position_ids=places,
                          output_hidden_states=both, batch=batch, **types)
        return chosen(states, both).squeeze(0)[:batch.tokens]
    outputs, start = [], 0
    for (n, length), real in zip(batch.groups, batch.masks(), strict=True):
        index = batch.index[start:start + n * length]
        ids = torch.where(real, batch.ids[index].view(n, length), backbone.config.pad_token_id)
        types = ({} if batch.types is None else
                 {"token_type_ids": batch.types[index].view(n, length)})
        states = backbone(input_ids=ids, attention_mask=real.long(), output_hidden_states=both,
                          **types)
        outputs.append(chosen(states, both).flatten(0, 1))
        start += n * length
    return torch.cat(outputs).index_select(0, batch.place[:batch.tokens])


def first_position(config: Any) -> int:
    """The position id of a sequence's first token: RoBERTa and its kind count from padding's id."""
    is_roberta = "roberta" in config.model_type or config.model_type == "camembert"
    return config.pad_token_id + 1 if is_roberta else 0


def chosen(states: Any, both: bool) -> Tensor:
    """The last hidden states, or the mean of the first layer's and the last."""
    last = states.last_hidden_state
    return (states.hidden_states[1] + last) / 2 if both else last


def use_packing(backbone: nn.Module) -> None:
    """Switches a backbone whose attention can be packed to packed attention."""
    config = backbone.config
    if config.model_type in PACKABLE and config._attn_implementation == "sdpa":
        backbone.set_attn_implementation(ATTENTION)
