"""Tokens and batches: nothing is lost, reordered or padded without need.

python -m pytest tests/test_batching.py
"""

import gc
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow
import pytest
import torch
from transformers import AutoModel

from pipeline import batching
from pipeline.batching import by_tokens, shuffled, tokenise
from pipeline.encoder import load_encoder
from pipeline.packing import GROUP_COST, ROUND, RUN, cut_by_length, pack

TRAIN = Path(__file__).resolve().parent.parent / "data" / "sample" / "train.csv"


@pytest.fixture(scope="module")
def pairs() -> list[tuple[str, str]]:
    """Sixty sentence pairs of the sample."""
    table = pd.read_csv(TRAIN).head(60)
    return list(zip(table["sentence_1"], table["sentence_2"], strict=True))


@pytest.fixture(scope="module")
def texts(pairs) -> list[str]:
    """Sentences of very different lengths: 1 to about 50 characters."""
    return [text[:1 + 5 * (place % 10)] for place, (text, _) in enumerate(pairs)]


def all_ids(tokens):
    """Every row's token ids as lists."""
    return [tokens.ids(row).tolist() for row in range(len(tokens))]


@pytest.mark.parametrize("kind", ["sentences", "pairs"])
def test_file_equals_memory(kind, texts, pairs, tokenizer, tmp_path, monkeypatch):
    """The same ids, lengths, texts and token types, whether or not they pass through a file."""
    monkeypatch.setattr(batching, "WRITE_ROWS", 7)  # several pieces, the last one not full
    chosen, types = (texts, False) if kind == "sentences" else (pairs, True)
    memory = tokenise(chosen, tokenizer, 40, "q ", types=types)
    file = tokenise(iter(chosen), tokenizer, 40, "q ", tmp_path / "tokens.arrow", types=types)
    assert len(memory) == len(file) == len(chosen)
    assert all_ids(memory) == all_ids(file)
    assert memory.lengths.tolist() == file.lengths.tolist() == list(map(len, all_ids(memory)))
    assert [memory.text(row) for row in range(60)] == [file.text(row) for row in range(60)]
    assert (memory.first is None) == (file.first is None) == (not types)
    assert not types or memory.first.tolist() == file.first.tolist()


def test_file_is_memory_mapped(tokenizer, tmp_path):
    """Tokens of a file lie on the disk, not in Arrow's memory."""
    texts = ["가나다라마바사아" * 4] * 5000  # 34 ids each, 4 bytes an id: 680 kB
    gc.collect()
    before = pyarrow.total_allocated_bytes()
    tokens = tokenise(iter(texts), tokenizer, 64, file=tmp_path / "tokens.arrow")
    gc.collect()
    assert tokens.lengths.sum() == 34 * 5000
    assert pyarrow.total_allocated_bytes() - before < 100_000


def test_sentences_are_the_tokenizers_own(texts, tokenizer):
    """Ids equal a direct call, with the prefix before each sentence, cut at the limit."""
    tokens = tokenise(texts, tokenizer, 24, prefix="가 ")
    for row, text in enumerate(texts):
        expected = tokenizer("가 " + text)["input_ids"]
        kept = expected if len(expected) <= 24 else [*expected[:23], tokenizer.sep_token_id]
        assert tokens.ids(row).tolist() == kept
        assert tokens.text(row) == text
    assert tokens.lengths.max() == 24


def test_pairs_are_the_tokenizers_own(pairs, tokenizer):
    """Ids of pairs and where their token types turn to 1 equal direct calls."""
    expected = [tokenizer(*pair, max_length=64, truncation="longest_first",
                          return_token_type_ids=True) for pair in pairs]
    tokens = tokenise(pairs, tokenizer, 64, types=True)
    assert all_ids(tokens) == [row["input_ids"] for row in expected]
    assert tokens.first.tolist() == [row["token_type_ids"].index(1) for row in expected]
    assert max(tokens.lengths) == 64
    assert [tokens.text(row) for row in range(60)] == ["\t".join(pair) for pair in pairs]


def test_types_only_where_asked(pairs, tokenizer):
    """Without types the rows are the same and nothing tells the sentences apart."""
    plain, typed = (tokenise(pairs, tokenizer, 64, types=types) for types in (False, True))
    assert plain.first is None
    assert typed.first is not None
    assert all_ids(plain) == all_ids(typed)


@pytest.mark.parametrize("swap", [False, True])
def test_longer_sentence_is_cut_first(swap, tokenizer):
    """A short sentence beside a long one stays whole; two long ones share the room."""
    long, short = "가나다라마바사아자차카타파하" * 3, "영화가좋다"
    pair = (short, long) if swap else (long, short)
    whole = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in pair]
    kept = [ids if len(ids) == 5 else ids[:20 - 3 - 5] for ids in whole]
    tokens = tokenise([pair, (long, long)], tokenizer, 20, types=True)
    start, end = tokenizer.cls_token_id, tokenizer.sep_token_id
    assert tokens.ids(0).tolist() == [start, *kept[0], end, *kept[1], end]
    assert tokens.lengths.tolist() == [20, 20]
    first = tokens.ids(1).tolist().index(end) - 1
    assert first in (8, 9)


@pytest.mark.parametrize("rows", [[7, 3, 50, 3], [10, 11, 12]])
@pytest.mark.parametrize("on_disk", [False, True])
def test_subset(pairs, tokenizer, tmp_path, rows, on_disk):
    """A subset holds the asked rows alone, scattered or contiguous, in the asked order."""
    tokens = tokenise(pairs, tokenizer, 64, types=True,
                      file=tmp_path / "tokens.arrow" if on_disk else None)
    part = tokens.subset(np.array(rows))
    assert all_ids(part) == [tokens.ids(row).tolist() for row in rows]
    assert [part.text(at) for at in range(len(part))] == ["\t".join(pairs[row]) for row in rows]
    assert part.lengths.tolist() == tokens.lengths[rows].tolist()
    assert part.first.tolist() == tokens.first[rows].tolist()


def test_no_texts(tokenizer):
    """No sentences are no rows, not an error."""
    assert len(tokenise([], tokenizer, 16)) == 0


@pytest.mark.parametrize("kind", ["bert", "roberta", "camembert", "electra", "deberta-v2"])
@pytest.mark.parametrize("repeats", [1, 2])
def test_forward_equals_padded_forward(kind, repeats, texts, tokenizer, make_encoder):
    """Each row once and in order: the vectors are those of one batch padded by the tokenizer."""
    encoder = load_encoder(str(make_encoder(kind)), pooling="mean", max_length=60).eval()
    tokens = encoder.tokens(texts)
    assert len(cut_by_length(np.sort(tokens.lengths))) > 1  # worth more than one group
    rows = np.tile(np.random.default_rng(1).permutation(len(texts)), repeats)
    batch = tokens.batch(rows)
    assert len(batch) == len(rows)
    plain = AutoModel.from_pretrained(make_encoder(kind)).eval()
    padded = tokenizer([texts[row] for row in rows], padding=True, return_tensors="pt")
    with torch.no_grad():
        states, mask = plain(**padded).last_hidden_state, padded["attention_mask"][..., None]
        torch.testing.assert_close(encoder(batch), (states * mask).sum(1) / mask.sum(1),
                                   rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["sentences", "pairs"])
def test_filler(kind, texts, pairs, tokenizer):
    """A batch has a round number of tokens; those behind its own are single ones of type 0."""
    tokens = tokenise(texts if kind == "sentences" else pairs, tokenizer, 60, types=kind == "pairs")
    counts = set()
    for size in range(1, len(tokens)):
        batch = tokens.batch(np.arange(size))
        counts.add(len(batch.ids) - batch.tokens)
        assert len(batch.ids) % ROUND == 0
        assert batch.tokens == batch.lengths.sum() == tokens.lengths[:size].sum()
        assert len(batch) == size
        assert not batch.positions[batch.tokens:].any()
        if kind == "pairs":
            assert len(batch.types) == len(batch.ids)
            assert not batch.types[batch.tokens:].any()
    assert min(counts) >= 0
    assert max(counts) < ROUND
    assert len(counts) > 10


@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize(("n", "is_dense"), [(RUN // 8 - 1, False), (RUN // 8, True)])
def test_runs_of_one_length_are_left_as_they_are(n, is_dense, is_reversed):
    """Where runs of RUN tokens or more stand, long ones first or last, nothing is padded."""
    lengths = np.repeat([4, 8, 12], n)[::-1 if is_reversed else 1]
    batch = pack([np.full(length, 7) for length in lengths])
    assert batch.is_dense == is_dense
    if is_dense:
        runs = [(n, int(length)) for length in lengths[::n]]
        assert batch.groups[:3] == runs
        assert batch.real.all()
        assert batch.index.tolist() == batch.place.tolist() == list(range(len(batch.ids)))


def test_cuts_are_optimal():
    """No way of cutting sorted rows costs less in padding and groups: tried by brute force."""
    random = np.random.default_rng(0)
    numbers = set()
    for trial in range(60):
        lengths = np.sort(random.integers(1, [30, 400, 1500][trial % 3], size=1 + trial % 8))
        n = len(lengths)

        def cost(spans, lengths=lengths):
            return sum((end - start) * lengths[end - 1] + GROUP_COST
                       for start, end in spans)

        spans = cut_by_length(lengths)
        assert [row for start, end in spans for row in range(start, end)] == list(range(n))
        best = min(cost(list(zip([0, *cuts], [*cuts, n], strict=True)))
                   for k in range(n) for cuts in combinations(range(1, n), k))
        assert cost(spans) == best
        numbers.add(len(spans))
    assert len(numbers) > 2  # one group, two, more: the cases are not all trivial


def test_shuffled():
    """Every row once an epoch; the order is fixed by seed and epoch."""
    batches = shuffled(103, 10, seed=3, epoch=0, drop_last=False)
    order = np.concatenate(batches)
    assert [len(rows) for rows in batches] == [10] * 10 + [3]
    assert sorted(order) == list(range(103))
    assert order.tolist() != list(range(103))
    again, epoch, seed = (np.concatenate(shuffled(103, 10, seed=s, epoch=e, drop_last=False))
                          for s, e in ((3, 0), (3, 1), (4, 0)))
    assert np.array_equal(again, order)
    assert not np.array_equal(epoch, order)
    assert not np.array_equal(seed, order)
    assert not np.array_equal(seed, epoch)


def test_shuffled_drops_the_last():
    """drop_last drops a batch that is not full and keeps one that is."""
    assert [len(rows) for rows in shuffled(103, 10, 0, 0, drop_last=True)] == [10] * 10
    assert [len(rows) for rows in shuffled(100, 10, 0, 0, drop_last=True)] == [10] * 10


@pytest.mark.parametrize("n", [0, 7])
def test_shuffled_without_a_full_batch(n):
    """Fewer rows than a batch, when the last is dropped, is an error."""
    with pytest.raises(ValueError, match=f"{n} rows"):
        shuffled(n, 10, 0, 0, drop_last=True)


@pytest.mark.parametrize("budget", [10, 100, 8192])
def test_by_tokens(budget):
    """Every row once, longest first, each batch within the budget unless it is a single row."""
    lengths = np.random.default_rng(0).integers(1, 60, size=500)
    batches = list(by_tokens(lengths, budget))
    order = np.concatenate(batches)
    assert sorted(order) == list(range(500))
    assert (np.diff(lengths[order]) <= 0).all()
    assert all(len(rows) == 1 or len(rows) * lengths[rows].max() <= budget for rows in batches)
    assert all((len(rows) + 1) * lengths[rows].max() > budget for rows in batches[:-1])
    assert list(by_tokens(np.zeros(0, int), budget)) == []


def test_shuffled_by_weight():
    """A row comes as often as its weight's whole part, and maybe once more; batches stay full."""
    weights = np.array([0.0, 0.5, 1.0, 2.25, 1.25] * 20)
    drawn = np.zeros(100)
    for epoch in range(200):
        batches = shuffled(100, 8, 3, epoch, drop_last=False, weights=weights)
        assert [len(rows) for rows in batches] == [8] * 12 + [4]
        counts = np.bincount(np.concatenate(batches), minlength=100)
        assert ((counts == np.floor(weights)) | (counts == np.ceil(weights))).all()
        drawn += counts / 200
    assert drawn == pytest.approx(weights, abs=0.2)
    assert drawn.reshape(20, 5).mean(axis=0) == pytest.approx(weights[:5], abs=0.03)


def test_shuffled_by_weight_is_seeded():
    """Seed and epoch fix what is drawn and its order; equal weights draw every row once."""
    weights = np.array([0.5, 1.5] * 30)
    once, again, epoch, seed = (
        np.concatenate(shuffled(60, 8, s, e, drop_last=False, weights=weights))
        for s, e in ((3, 0), (3, 0), (3, 1), (4, 0)))
    assert np.array_equal(once, again)
    for other in (epoch, seed):
        assert not np.array_equal(once, other)
        assert not np.array_equal(np.sort(once), np.sort(other))
    assert (np.diff(once) < 0).any()
    even = np.concatenate(shuffled(60, 8, 3, 0, drop_last=False, weights=np.ones(60)))
    assert sorted(even) == list(range(60))


def test_rows_drawn_twice_are_not_neighbours():
    """The two draws of a row are spread over the epoch, not put in one batch."""
    weights = np.array([2.0] * 100 + [0.0] * 100)
    rows = np.concatenate(shuffled(200, 10, 0, 0, drop_last=False, weights=weights))
    gaps = [np.ptp(np.flatnonzero(rows == row)) for row in range(100)]
    assert np.mean(gaps) == pytest.approx(200 / 3, rel=0.25)
