"""Blends against hand-computed values, general optimisers, brute force and simulation.

python -m pytest tests/test_blending.py
"""

from itertools import product

import numpy as np
import pytest
from scipy import optimize, stats

from pipeline import blending
from pipeline.blending import (
    METHODS,
    applied,
    fitted,
    fold_numbers,
    greedy,
    nested,
    nonnegative,
    rank_mean,
)


def simulated(seed: int, n: int, *noises: float) -> tuple[np.ndarray, np.ndarray]:
    """Labels (n,) from 0 to 5 and members (k, n) that are the labels with that much noise."""
    random = np.random.default_rng(seed)
    labels = random.uniform(0, 5, n)
    return labels, np.stack([labels + noise * random.normal(size=n) for noise in noises])


def test_mean_by_hand():
    """Equal weights without an intercept."""
    members = np.array([[1.0, 2.0, 4.0], [3.0, 2.0, 0.0]])
    weights = fitted("mean", members, np.array([0.0, 1.0, 5.0]))
    assert weights[0].tolist() == [0.5, 0.5]
    assert applied("mean", members, weights).tolist() == [2, 2, 2]


def test_clipped():
    """A blend is on the label scale."""
    members = np.array([[-1.0, 2.0, 7.0]] * 2)
    assert applied("weights", members, (np.array([0.5, 0.5]), 0.25)).tolist() == [0, 2.25, 5]


def test_rank_mean_by_hand():
    """Mean ranks 1, 2.5, 2.5 and 4; levels 1, 2.5, 4 and 5; the tie falls between its places."""
    members = np.array([[1.0, 2.0, 4.0, 5.0], [1.0, 4.0, 3.0, 5.0]])
    assert rank_mean(members).tolist() == [1, 3.25, 3.25, 5]


def test_rank_mean_is_of_ranks():
    """Its order is that of the mean ranks, and no increasing change of a member moves it."""
    _, members = simulated(0, 200, 1.0, 2.0, 0.5)
    changed = np.stack([np.exp(members[0]), members[1] ** 3, 0.1 * members[2] + 4])
    order = stats.rankdata(stats.rankdata(members, axis=1).sum(axis=0))
    for part in (members, changed):
        assert stats.rankdata(rank_mean(part)).tolist() == order.tolist()
    assert not np.array_equal(stats.rankdata(members.mean(axis=0)),
                              stats.rankdata(changed.mean(axis=0)))
    assert np.allclose(rank_mean(np.stack([members[0]] * 3)), members[0])


def test_weights_recover_a_mixture():
    """Labels that are a mixture give back its weights and intercept; useless members weigh 0."""
    random = np.random.default_rng(1)
    members = random.uniform(0, 5, (4, 2000))
    labels = 0.6 * members[0] + 0.3 * members[1] - 0.2 * members[3] + 0.5
    weights, intercept = nonnegative(members, labels)
    assert weights[:2] == pytest.approx([0.6, 0.3], abs=0.02)
    assert weights[2:] == pytest.approx([0, 0], abs=0.02)
    assert weights[3] == 0
    labels = 0.6 * members[0] + 0.3 * members[1] + 0.1 * members[3] + 0.5
    weights, intercept = nonnegative(members, labels)
    assert weights == pytest.approx([0.6, 0.3, 0, 0.1], abs=0.005)
    assert intercept == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("seed", range(3))
def test_weights_by_a_general_optimiser(seed):
    """The minimum of ‖y − b − wX‖² + k²σ²‖w − 1/k‖² over w ≥ 0, and σ², found another way."""
    labels, members = simulated(seed, 60, 0.5, 1.0, 1.5)
    members = np.concatenate([members, 5 - members[:1]])  # one to be left out
    k = 4

    def minimum(penalty):
        return optimize.minimize(
            lambda at: (np.sum((labels - at[k] - at[:k] @ members) ** 2)
                        + penalty * np.sum((at[:k] - 1 / k) ** 2)),
            np.full(k + 1, 0.2), method="L-BFGS-B", bounds=[(0, None)] * k + [(None, None)],
            options={"maxiter": 5000, "ftol": 1e-15, "gtol": 1e-9})

    found = minimum(k * k * minimum(0).fun / 60)
    weights, intercept = nonnegative(members, labels)
    assert weights == pytest.approx(found.x[:k], abs=1e-3)
    assert intercept == pytest.approx(found.x[k], abs=5e-3)
    assert weights[3] == 0


def test_nearly_equal_members_share():
    """Plain NNLS takes one of two near copies and leaves the other; here both count alike."""
    labels, members = simulated(2, 300, 1.0)
    copies = members + 0.001 * np.random.default_rng(3).normal(size=(2, 300))
    plain = optimize.nnls((copies - copies.mean(axis=1, keepdims=True)).T,
                          labels - labels.mean())[0]
    assert plain.min() < 0.05 < plain.max()
    weights, _ = nonnegative(copies, labels)
    assert abs(weights[0] - weights[1]) < 0.01 < weights.min()
    assert nonnegative(np.stack([labels] * 2), labels)[0] == pytest.approx([0.5, 0.5], abs=1e-6)


def slow_greedy(members: np.ndarray, labels: np.ndarray, rounds: int) -> np.ndarray:
    """Caruana's selection, literally."""
    chosen, path = [], []
    for _ in range(rounds):
        scores = [np.corrcoef(np.mean([members[j] for j in [*chosen, new]], axis=0), labels)[0, 1]
                  for new in range(len(members))]
        chosen.append(int(np.argmax(scores)))
        path.append((max(scores), list(chosen)))
    best = max(path, key=lambda item: item[0])[1]
    return np.bincount(best, minlength=len(members)) / len(best)


@pytest.mark.parametrize("seed", range(5))
def test_greedy_literally(seed, monkeypatch):
    """The same as the loop of the paper, and as good as the best of all mixtures of 3 members."""
    labels, members = simulated(seed, 80, 1.0, 1.3, 2.0)
    weights = greedy(members, labels)
    score = np.corrcoef(weights @ members, labels)[0, 1]
    every = [np.corrcoef(np.array(counts) @ members, labels)[0, 1]
             for counts in product(range(13), repeat=3) if sum(counts)]
    assert score == pytest.approx(max(every), abs=2e-4)
    monkeypatch.setattr(blending, "ROUNDS", 12)
    assert greedy(members, labels) == pytest.approx(slow_greedy(members, labels, 12))


def test_greedy_takes_the_best_alone():
    """Members that only spoil the first one are not taken, however many rounds are left."""
    labels, members = simulated(4, 200, 0.1)
    noise = np.random.default_rng(5).uniform(0, 5, (3, 200))
    assert greedy(np.concatenate([noise, members]), labels).tolist() == [0, 0, 0, 1]


def test_folds_keep_groups_together():
    """A group is in one fold; the folds are of about one size; no more folds than groups."""
    groups = np.random.default_rng(6).integers(0, 40, 300)
    folds = fold_numbers(groups)
    for group in range(40):
        assert len(set(folds[groups == group])) == 1
    sizes = np.bincount(folds)
    assert len(sizes) == blending.FOLDS
    assert sizes.max() - sizes.min() < 10
    assert sorted(set(fold_numbers(np.array([7, 7, 9, 8, 8])))) == [0, 1, 2]


@pytest.mark.parametrize("method", METHODS)
def test_no_label_shapes_its_own_prediction(method):
    """Other labels inside a fold leave the fold's blend as it is; the other folds' move."""
    labels, members = simulated(7, 90, 0.5, 1.0, 2.0)
    folds = fold_numbers(np.arange(90) // 2)
    before = nested(method, members, labels, folds)
    spoilt = np.where(folds == 3, 5 - labels, labels)
    after = nested(method, members, spoilt, folds)
    assert after[folds == 3].tolist() == before[folds == 3].tolist()
    assert (after[folds != 3] != before[folds != 3]).any() == (method in ("weights", "greedy"))


@pytest.mark.parametrize("method", ["weights", "greedy"])
@pytest.mark.parametrize("good", [0, 1])
def test_nested_scores_are_honest(method, good):
    """Noise beside a good member, or alone: in-sample it always helps, held out it never does."""
    naive, honest = [], []
    for seed in range(40):
        random = np.random.default_rng(seed)
        labels, noise = random.uniform(0, 5, 100), random.uniform(0, 5, (8, 100))
        members = np.concatenate([noise, *[[labels + random.normal(size=100)]] * good])
        best = max(stats.pearsonr(part, labels).statistic for part in members)
        weights = fitted(method, members, labels)
        naive.append(np.corrcoef(applied(method, members, weights), labels)[0, 1] - best)
        blend = nested(method, members, labels, np.arange(100) % 10)
        honest.append(np.corrcoef(blend, labels)[0, 1] - best)
    assert np.mean(naive) > 0.002
    assert np.mean(honest) < -0.0005
    assert np.mean(naive) - np.mean(honest) > 0.005
