"""Losses and their gradients against sentence-transformers, scipy, numpy and direct formulas.

python -m pytest tests/test_losses.py
"""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from pipeline.losses import REGRESSION, SCALE_FREE, cosent, info_nce, pearson_loss, r_drop


def random_tensors(*shape, count=2, seed=0):
    """Float64 leaves with gradients."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()
            for _ in range(count)]


def value_and_gradients(loss, *leaves):
    """The loss and the leaves' gradients."""
    return loss.detach(), torch.autograd.grad(loss, leaves)


@pytest.mark.parametrize("temperature", [0.05, 0.5])
def test_info_nce_is_multiple_negatives_ranking(temperature):
    """Value and gradient of sentence-transformers' loss with scale 1 / temperature."""
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    anchors, positives = leaves = random_tensors(9, 6)
    oracle = MultipleNegativesRankingLoss(None, scale=1 / temperature)
    expected = oracle.compute_loss_from_embeddings([anchors, positives], None)
    torch.testing.assert_close(
        value_and_gradients(info_nce(anchors, positives, temperature), *leaves),
        value_and_gradients(expected, *leaves))


def test_info_nce_by_hand():
    """Two pairs with known cosines: −log softmax of the own positive, averaged."""
    anchors = torch.tensor([[3.0, 0.0], [0.0, 2.0]])
    positives = torch.tensor([[1.0, 0.0], [3.0, 4.0]])  # cosines: 1 and 0.6; 0 and 0.8
    rows = [math.log(1 + math.exp((0.6 - 1.0) / 0.1)), math.log(1 + math.exp((0 - 0.8) / 0.1))]
    assert info_nce(anchors, positives, 0.1).item() == pytest.approx(sum(rows) / 2, rel=1e-5)


def test_info_nce_with_hard_negatives():
    """Hard negatives behind the positives, as in a third column of sentence-transformers' loss."""
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    anchors, positives, negatives = leaves = random_tensors(7, 6, count=3)
    oracle = MultipleNegativesRankingLoss(None, scale=20)
    expected = oracle.compute_loss_from_embeddings(list(leaves), None)
    found = info_nce(anchors, torch.cat([positives, negatives]), 0.05)
    torch.testing.assert_close(value_and_gradients(found, *leaves),
                               value_and_gradients(expected, *leaves))
    assert found > info_nce(anchors, positives, 0.05)


def test_info_nce_weights():
    """A weight counts a candidate so many times; the weight 0 leaves it out, without NaN."""
    anchors, candidates = random_tensors(4, 6)
    cosines = torch.nn.functional.cosine_similarity(anchors[:, None], candidates[None], dim=-1)
    weights = torch.ones(4, 4, dtype=torch.float64)
    weights[0, 2], weights[1, 0], weights[3, 1] = 0, 3, 0
    terms = weights * (cosines / 0.1).exp()
    expected = -(terms.diagonal() / terms.sum(1)).log().mean()
    torch.testing.assert_close(
        value_and_gradients(info_nce(anchors, candidates, 0.1, weights.log()), anchors, candidates),
        value_and_gradients(expected, anchors, candidates))


def test_info_nce_cosine_runs_along_features():
    """Scaling a row changes nothing, scaling a feature does; B and d may differ."""
    anchors, positives = random_tensors(5, 8)
    loss = info_nce(anchors, positives, 0.1)
    rows = torch.tensor([0.01, 1, 2, 30, 400])[:, None]
    torch.testing.assert_close(info_nce(anchors * rows, positives * rows.flip(0), 0.1), loss)
    features = torch.tensor([10.0, *[1] * 7])
    assert abs(info_nce(anchors * features, positives * features, 0.1) - loss) > 0.01


def test_info_nce_limits():
    """Equal vectors everywhere give log B; each its own far positive gives about 0."""
    same = torch.ones(7, 3)
    assert info_nce(same, same, 0.05).item() == pytest.approx(math.log(7), rel=1e-6)
    assert info_nce(torch.eye(7), torch.eye(7), 0.05).item() < 1e-6


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("scale", [20.0, 3.0])
def test_cosent_is_that_of_sentence_transformers(ties, scale):
    """Value and gradient with respect to the scores, also where labels are tied."""
    from sentence_transformers.sentence_transformer.losses import CoSENTLoss

    [scores] = random_tensors(12, count=1)
    [labels] = random_tensors(12, count=1, seed=1)
    labels = labels.detach().round() if ties else labels.detach()
    assert (len(labels.unique()) < 12) == ties
    oracle = CoSENTLoss(None, scale=scale, similarity_fct=lambda left, right: left)
    expected = oracle.compute_loss_from_embeddings([scores, scores], labels)
    torch.testing.assert_close(
        value_and_gradients(cosent(scores, labels, scale), scores),
        value_and_gradients(expected, scores))


def test_cosent_by_hand():
    """log(1 + Σ exp(20 (s_j − s_i))) over the pairs with label_i > label_j."""
    scores, labels = [0.5, 0.45, 0.6, 0.55], [0.8, 0.2, 0.2, 0.4]
    total = sum(math.exp(20 * (scores[j] - scores[i])) for i in range(4) for j in range(4)
                if labels[i] > labels[j])
    found = cosent(torch.tensor(scores), torch.tensor(labels))
    assert found.item() == pytest.approx(math.log(1 + total), rel=1e-5)


def test_cosent_with_one_label():
    """Without an order there is nothing to learn: value and gradient are 0, not NaN."""
    [scores] = random_tensors(6, count=1)
    loss, [gradient] = value_and_gradients(cosent(scores, torch.full((6,), 0.3)), scores)
    assert loss == 0
    assert (gradient == 0).all()


def test_cosent_does_not_overflow():
    """Scores in the wrong order by far give their distance, not infinity."""
    loss = cosent(torch.tensor([-50.0, 50.0]), torch.tensor([1.0, 0.0]))
    assert loss.item() == pytest.approx(2000)


def test_pearson_loss_against_scipy():
    """1 − r, for any scale and shift of the scores."""
    [scores] = random_tensors(30, count=1)
    labels = (scores.detach() + random_tensors(30, count=1, seed=2)[0].detach()).round()
    expected = 1 - stats.pearsonr(scores.detach().numpy(), labels.numpy()).statistic
    assert pearson_loss(scores, labels).item() == pytest.approx(expected, rel=1e-9)
    assert pearson_loss(scores * 7 - 3, labels).item() == pytest.approx(expected, rel=1e-9)
    assert pearson_loss(-labels, labels).item() == pytest.approx(2)


def test_pearson_loss_gradient():
    """The gradient agrees with finite differences."""
    [scores] = random_tensors(8, count=1)
    labels = torch.linspace(0, 1, 8, dtype=torch.float64).flip(0)
    assert torch.autograd.gradcheck(lambda scores: pearson_loss(scores, labels), [scores])


@pytest.mark.parametrize("value", [0.0, 0.5, 0.1, 0.84])
@pytest.mark.parametrize("size", [1, 3, 6, 32])
def test_pearson_loss_of_constant_labels(value, size):
    """A batch with one label teaches nothing: value and gradient are 0, also for 0.1 in binary."""
    scores = random_tensors(size, count=1)[0].detach().float().requires_grad_()
    loss, [gradient] = value_and_gradients(
        pearson_loss(scores, torch.full((size,), value)), scores)
    assert loss == 0
    assert (gradient == 0).all()


def test_pearson_loss_of_constant_scores():
    """Scores that are all equal give a finite loss and gradient."""
    scores = torch.full((5,), 0.5, requires_grad=True)
    loss, [gradient] = value_and_gradients(pearson_loss(scores, torch.linspace(0, 1, 5)), scores)
    assert loss == pytest.approx(1)
    assert gradient.isfinite().all()


@pytest.mark.parametrize(("name", "expected"), [
    ("mse", lambda e: e**2),
    ("l1", np.abs),
    ("huber", lambda e: np.where(np.abs(e) < 0.2, e**2 / 2, 0.2 * (np.abs(e) - 0.1))),
])
def test_errors_against_numpy(name, expected):
    """Means of the usual error functions; huber turns at 0.2, one label unit."""
    scores, labels = (leaf.detach() for leaf in random_tensors(40))
    errors = (scores - labels).numpy() / 4
    found = REGRESSION[name](scores / 4, labels / 4).item()
    assert (np.abs(errors) < 0.2).any()
    assert (np.abs(errors) > 0.2).any()
    assert found == pytest.approx(expected(errors).mean(), rel=1e-12)


@pytest.mark.parametrize("name", sorted(REGRESSION))
def test_scale_free_losses(name):
    """Exactly the losses named so keep their best score when all scores are shifted."""
    labels = torch.linspace(0, 1, 6)
    shift = REGRESSION[name](labels + 0.5, labels) - REGRESSION[name](labels, labels)
    assert (abs(shift.item()) < 1e-5) == (name in SCALE_FREE)


@pytest.mark.parametrize("name", [name for name in REGRESSION if "+" in name])
def test_mixed_losses_are_sums(name):
    """Value and gradient are those of the two parts, added."""
    scores, labels = random_tensors(12)
    labels = labels.detach()
    one, other = name.split("+")
    torch.testing.assert_close(
        value_and_gradients(REGRESSION[name](scores, labels), scores),
        value_and_gradients(REGRESSION[one](scores, labels) + REGRESSION[other](scores, labels),
                            scores))


def test_mixed_losses_by_hand():
    """Scores 0, 0.5, 1 for labels 0, 1, 0.5: MSE 1/6, Pearson 0.5."""
    scores, labels = torch.tensor([0.0, 0.5, 1.0]), torch.tensor([0.0, 1.0, 0.5])
    order = math.log(1 + math.exp(-10) + math.exp(-20) + math.exp(10))
    assert REGRESSION["mse+pearson"](scores, labels).item() == pytest.approx(1 / 6 + 0.5)
    assert REGRESSION["mse+cosent"](scores, labels).item() == pytest.approx(1 / 6 + order)
    assert REGRESSION["cosent+pearson"](scores, labels).item() == pytest.approx(order + 0.5)


def test_r_drop_by_hand():
    """The mean squared difference of the two passes, over all samples; its gradient pulls both."""
    scores = torch.tensor([[[0.1, 0.5], [0.3, 0.5]], [[0.0, 1.0], [0.4, 0.8]]], requires_grad=True)
    loss, [gradient] = value_and_gradients(r_drop(scores), scores)
    assert loss.item() == pytest.approx((0.04 + 0 + 0.16 + 0.04) / 4)
    assert gradient.flatten().tolist() == pytest.approx([-0.1, 0, 0.1, 0, -0.2, 0.1, 0.2, -0.1])
    assert r_drop(scores[:, :1].expand(2, 2, 2)).item() == 0
