"""Sketches of weights: cosines within their error, the same for the same weights.

python -m pytest tests/test_sketches.py
"""

import numpy as np
import pytest
import torch
from transformers import AutoModel

from pipeline.diagnostics import sketches
from pipeline.diagnostics.sketches import (
    BUCKETS,
    directions,
    folded,
    layer_names,
    read_sketches,
    save_sketch,
    sketch,
)


def test_cosines_within_two_per_cent():
    """Over 40 pairs of changes with known cosines: no bias, and the standard error as stated."""
    random, errors = torch.Generator().manual_seed(0), []
    for n in range(40):
        c = (0.0, 0.3, 0.7, 0.95)[n % 4]
        x, y = torch.linalg.qr(torch.randn(200_000, 2, generator=random))[0].T
        a, b = folded(x), folded(c * x + (1 - c * c) ** 0.5 * y)
        errors.append((a @ b / np.linalg.norm(a) / np.linalg.norm(b) - c) / (1 - c * c))
    assert np.std(errors) == pytest.approx(BUCKETS**-0.5, rel=0.4)
    assert abs(np.mean(errors)) < 3 * BUCKETS**-0.5 / 40**0.5
    assert max(np.abs(errors)) < 4 * BUCKETS**-0.5


def test_rows_and_columns_do_not_share_buckets():
    """Structured changes, as those of a few rows or columns of a matrix, are kept as well."""
    for axis in (0, 1):
        one, other = torch.zeros(512, 512), torch.zeros(512, 512)
        one.select(axis, 3).fill_(1)
        other.select(axis, 5).fill_(1)
        a, b, both = (folded(part.flatten()) for part in (one, other, one + other))
        assert a @ b / np.linalg.norm(a) / np.linalg.norm(b) == pytest.approx(0, abs=0.045)
        expected = pytest.approx(0.5**0.5, abs=0.03)
        assert a @ both / np.linalg.norm(a) / np.linalg.norm(both) == expected


def test_slices_make_no_difference(monkeypatch):
    """A long tensor is folded piece by piece into the same numbers."""
    weights = torch.randn(10_000, generator=torch.Generator().manual_seed(1))
    whole = folded(weights)
    monkeypatch.setattr(sketches, "SLICE", 777)
    np.testing.assert_allclose(folded(weights), whole, atol=1e-5)
    assert np.count_nonzero(whole) > 5000


@pytest.mark.parametrize("kind", ["bert", "electra", "deberta-v2"])
def test_layers(make_encoder, kind):
    """Every trained weight belongs to one layer: embeddings and the two layers by number."""
    model = AutoModel.from_pretrained(make_encoder(kind))
    found = layer_names(model)
    assert [*found][:3] == ["embeddings", "layer 0", "layer 1"]
    assert sorted(name for names in found.values() for name in names) == sorted(
        name for name, _ in model.named_parameters())
    assert all("layer.1." in name for name in found["layer 1"])


def test_directions_by_hand(monkeypatch):
    """A change half-way to the end has cosine 1 with it, one at right angles 0."""
    weights = np.array([[[2.0, 0, 0]], [[2, 1, 0]], [[2, 1, 1]], [[4, 0, 0]]])
    end, start = directions(weights)
    assert end[:, 0] == pytest.approx([np.nan, 0, 0, 1], nan_ok=True)
    assert start[:, 0] == pytest.approx([np.nan, 0, 0, 1], nan_ok=True)
    end, _ = directions(weights[:3])
    assert end[:, 0] == pytest.approx([np.nan, 0.5**0.5, 1], nan_ok=True)


def test_saved_and_read(make_encoder, tmp_path):
    """In the order of the steps; no random number is drawn, and one step's change is seen."""
    model = AutoModel.from_pretrained(make_encoder("bert"))
    state = torch.get_rng_state()
    save_sketch(model, tmp_path, 0)
    with torch.no_grad():
        model.encoder.layer[1].output.dense.weight += 1e-3
    save_sketch(model, tmp_path, 100)
    assert torch.equal(torch.get_rng_state(), state)
    steps, names, found = read_sketches(tmp_path)
    assert steps.tolist() == [0, 100]
    assert names == list(layer_names(model))
    assert (found[1] == sketch(model)).all()
    changed = (found[0] != found[1]).any(axis=1)
    assert [name for name, is_changed in zip(names, changed, strict=True) if is_changed] == [
        "layer 1"]
