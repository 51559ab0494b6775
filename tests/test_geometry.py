"""The geometry probe: one fixed sample, true positives, the same numbers for the same model.

python -m pytest tests/test_geometry.py
"""

import math
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from pipeline.corpus import sentence_table
from pipeline.encoder import embed, load_encoder
from pipeline.geometry import COLLAPSED, SENTENCES, Geometry, collapse_warning

TRAIN = Path(__file__).resolve().parent.parent / "data" / "sample" / "train.csv"
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def encoder(make_encoder):
    """A tiny encoder with mean pooling."""
    return load_encoder(str(make_encoder("bert")), pooling="mean", max_length=32)


@pytest.fixture(scope="module")
def data(encoder):
    """The sample's first 300 pairs: table, tokens, left, right, labels."""
    table = pd.read_csv(TRAIN).head(300)
    texts, left, right = sentence_table(table)
    return table, encoder.tokens(texts), left, right, table["label"].to_numpy()


def sampled(geometry):
    """The probe's sentences and its positive pairs, as texts."""
    texts = [geometry.tokens.text(row) for row in range(len(geometry.tokens))]
    pairs = [(texts[i], texts[j]) for i, j in zip(geometry.left, geometry.right, strict=True)]
    return texts, pairs


def test_sample_is_fixed_by_the_seed(data):
    """The same seed chooses the same sentences, another seed others; none is taken twice."""
    (texts, pairs), again, (other, _) = (sampled(Geometry(*data[1:], seed, 4.0))
                                         for seed in (1, 1, 2))
    assert (texts, pairs) == again
    assert set(texts) != set(other)
    assert len(texts) == len(set(texts)) == SENTENCES


def test_positives_have_labels_above_four(data):
    """Every positive pair stands in the data with a label above 4, and there are some."""
    table, *rest = data
    _, pairs = sampled(Geometry(*rest, 0, 4.0))
    high = {(row.sentence_1, row.sentence_2) for row in table.itertuples() if row.label > 4}
    assert len(high) < len(table)
    assert len(pairs) > 20
    assert set(pairs) <= high


def test_label_four_is_not_positive(data):
    """4.0 itself is no positive; without positives alignment is NaN, the rest is measured."""
    _, tokens, left, right, labels = data
    only = np.where(np.arange(len(labels)) == 5, 4.1, 4.0)
    _, pairs = sampled(Geometry(tokens, left, right, only, 0, 4.0))
    assert pairs == [(tokens.text(left[5]), tokens.text(right[5]))]


def test_no_positives(encoder, data):
    """Without positives alignment is NaN, the rest is measured."""
    _, tokens, left, right, labels = data
    found = Geometry(tokens, left, right, np.full(len(labels), 4.0), 0, 4.0).measure(encoder, CPU)
    assert math.isnan(found["alignment"])
    assert math.isfinite(found["uniformity"])
    assert math.isfinite(found["mean_cosine"])


def test_measures_what_wang_and_isola_define(encoder, data):
    """The three numbers by brute force in float64, over the probe's own sentences."""
    geometry = Geometry(*data[1:], 0, 4.0)
    vectors = embed(encoder, geometry.tokens, CPU).astype(np.float64)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    positives = zip(vectors[geometry.left], vectors[geometry.right], strict=True)
    squares = [((x - y) ** 2).sum() for x, y in combinations(vectors, 2)]
    assert geometry.measure(encoder, CPU) == pytest.approx({
        "alignment": np.mean([((x - y) ** 2).sum() for x, y in positives]),
        "uniformity": np.log(np.mean(np.exp(-2 * np.array(squares)))),
        "mean_cosine": np.mean(1 - np.array(squares) / 2),
    }, rel=1e-4)


def test_measuring_leaves_training_alone(encoder, data):
    """Same model, same numbers, also in training mode; no random number is drawn."""
    geometry = Geometry(*data[1:], 0, 4.0)
    encoder.train()
    state = torch.get_rng_state()
    first = geometry.measure(encoder, CPU)
    assert encoder.training
    assert torch.equal(torch.get_rng_state(), state)
    assert geometry.measure(encoder.eval(), CPU) == first


def test_small_data(encoder):
    """Fewer sentences than the sample's size: all are measured, each once."""
    texts = ["가나다", "나다", "다라 마", "가"]
    geometry = Geometry(encoder.tokens(texts), np.array([0, 2]), np.array([1, 3]),
                        np.array([5.0, 1.0]), 0, 4.0)
    assert sorted(sampled(geometry)[0]) == sorted(texts)
    assert sampled(geometry)[1] == [("가나다", "나다")]


def test_collapse_warning():
    """Words with the number for a collapsed space, nothing otherwise or for NaN."""
    assert "0.97" in collapse_warning(0.97)
    assert "simcse.temperature" in collapse_warning(COLLAPSED + 0.01)
    assert collapse_warning(0.5) == collapse_warning(-1) == collapse_warning(math.nan) == ""


def test_threshold(data):
    """Another threshold takes other pairs for positive."""
    table, *rest = data
    _, pairs = sampled(Geometry(*rest, 0, 2.5))
    high = {(row.sentence_1, row.sentence_2) for row in table.itertuples() if row.label > 2.5}
    assert set(pairs) <= high
    assert not set(pairs) <= {(row.sentence_1, row.sentence_2) for row in table.itertuples()
                              if row.label > 4}


def test_duplicate_groups(encoder):
    """Sentences are grouped over pairs at the threshold and above, and over one another."""
    texts = ["가나다", "나다", "다라 마", "가", "나", "다"]
    left, right = np.array([0, 1, 3, 4]), np.array([1, 2, 4, 5])
    geometry = Geometry(encoder.tokens(texts), left, right, np.array([5.0, 4.0, 3.9, 4.5]), 0, 4.0)
    names = [geometry.tokens.text(row) for row in range(len(texts))]
    found = {}
    for name, group in zip(names, geometry.groups, strict=True):
        found.setdefault(group, set()).add(name)
    assert sorted(map(sorted, found.values())) == [["가"], ["가나다", "나다", "다라 마"],
                                                   ["나", "다"]]
