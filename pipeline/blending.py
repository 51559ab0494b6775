"""Blends of several models' predictions as pure functions of arrays, with honest scores.

    python run.py stage=ensemble runs=[runs/sts/A,runs/sts/B]

predictions are (members, n) on the label scale. A method that learns from labels is scored by
nested cross-validation: its weights for a row are fitted on rows that share no sentence with it.
"""

import numpy as np
from scipy import stats
from scipy.optimize import nnls
from sklearn.model_selection import GroupKFold

from pipeline.data import HIGHEST, LOWEST

METHODS = ("mean", "rank", "weights", "greedy")  # the simplest first
FOLDS, ROUNDS = 10, 50
Weights = tuple[np.ndarray, float]  # one a member, and the intercept


def fitted(method: str, predictions: np.ndarray, labels: np.ndarray) -> Weights:
    """The method's weights and intercept; mean and rank learn nothing and weigh all alike."""
    if method == "weights":
        return nonnegative(predictions, labels)
    if method == "greedy":
        return greedy(predictions, labels), 0.0
    return np.full(len(predictions), 1 / len(predictions)), 0.0


def applied(method: str, predictions: np.ndarray, weights: Weights) -> np.ndarray:
    """The blend (n,) of the members' predictions, on the label scale and so clipped to it."""
    blend = rank_mean(predictions) if method == "rank" else weights[0] @ predictions + weights[1]
    return blend.clip(LOWEST, HIGHEST)


def rank_mean(predictions: np.ndarray) -> np.ndarray:
    """The mean of the members' ranks, put back on the label scale.

    A blend's k-th smallest value is the mean of the members' k-th smallest predictions of the same
    rows. So nothing is learnt from labels, and a test set with another spread of labels than the
    training set keeps its own. The order depends on the members' orders alone.
    """
    ranks = stats.rankdata(predictions, axis=1).mean(axis=0)
    levels = np.sort(predictions, axis=1).mean(axis=0)
    places = np.arange(1, len(levels) + 1)
    return np.interp(stats.rankdata(ranks), places, levels)  # ties fall between two places


def nonnegative(predictions: np.ndarray, labels: np.ndarray) -> Weights:
    """Least-squares weights ≥ 0 with an intercept, drawn towards the plain mean.

    The prior of each weight has mean and SD 1/k, as in mixtures drawn uniformly: a ridge around
    1/k with penalty k²σ², where σ² is the error variance that is left without it. Nearly equal
    members, which plain NNLS would choose among by chance, share their weight; what the rows do
    show is hardly changed.
    """
    k, n = predictions.shape
    x, y = predictions - predictions.mean(axis=1, keepdims=True), labels - labels.mean()
    triangle = np.linalg.qr(np.column_stack([x.T, y]), mode="r")  # least squares in k + 1 rows
    left = nnls(triangle[:, :k], triangle[:, k])[1] ** 2 / n
    penalty = k * np.sqrt(max(left, 1e-9))
    system = np.vstack([triangle, np.column_stack([penalty * np.eye(k),
                                                   np.full(k, penalty / k)])])
    weights = nnls(system[:, :k], system[:, k])[0]
    return weights, float(labels.mean() - weights @ predictions.mean(axis=1))


def greedy(predictions: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Weights by forward selection with replacement (Caruana et al. 2004).

    Each round adds the member, which may be in already, that gives the mean of the chosen the
    highest Pearson; the best of the rounds is kept, the earliest of equals.
    """
    x = predictions - predictions.mean(axis=1, keepdims=True)
    gram, product = x @ x.T, x @ (labels - labels.mean())
    counts, best, kept = np.zeros(len(x)), -np.inf, np.zeros(len(x))
    for _ in range(ROUNDS):
        tried = counts + np.eye(len(x))  # (k, k): a row with each member added
        variances = np.einsum("ij,jk,ik->i", tried, gram, tried).clip(1e-12)
        scores = tried @ product / np.sqrt(variances)
        counts = tried[scores.argmax()]
        if scores.max() > best + 1e-12 * abs(scores.max()):
            best, kept = scores.max(), counts
    return kept / kept.sum()


def fold_numbers(groups: np.ndarray) -> np.ndarray:
    """A fold for every row (n,), of about equal sizes; the rows of a group share theirs."""
    numbers = np.empty(len(groups), int)
    folds = GroupKFold(min(FOLDS, len(np.unique(groups))))
    for fold, (_, outside) in enumerate(folds.split(groups, groups=groups)):
        numbers[outside] = fold
    return numbers


def nested(method: str, predictions: np.ndarray, labels: np.ndarray,
           folds: np.ndarray) -> np.ndarray:
    """The blend (n,) with each row's weights fitted on the rows of the other folds."""
    if method in ("mean", "rank"):  # no label has shaped them
        return applied(method, predictions, fitted(method, predictions, labels))
    blend = np.empty(len(labels))
    for fold in np.unique(folds):
        inside = folds != fold
        weights = fitted(method, predictions[:, inside], labels[inside])
        blend[~inside] = applied(method, predictions[:, ~inside], weights)
    return blend
