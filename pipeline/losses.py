"""Losses as pure functions of tensors: contrastive for SimCSE, regression for pairs."""

import torch
import torch.nn.functional as F
from torch import Tensor


def info_nce(anchors: Tensor, candidates: Tensor, temperature: float,
             log_weights: Tensor | None = None) -> Tensor:
    """Cross-entropy of each anchor's own positive among all candidates (Gao et al. 2021, eq. 1, 5).

    anchors (B, d); candidates (B, d), the i-th the i-th anchor's positive, or (B + H, d) with hard
    negatives behind them; the cosine is taken along d, the features. log_weights, like the
    logits (B, B + H), is added to them: −inf leaves a candidate out.
    """
    anchors, candidates = F.normalize(anchors, dim=-1), F.normalize(candidates, dim=-1)
    logits = anchors @ candidates.T / temperature  # (B, B + H)
    if log_weights is not None:
        logits = logits + log_weights
    return F.cross_entropy(logits, torch.arange(len(logits), device=logits.device))


def cosent(scores: Tensor, labels: Tensor, scale: float = 20.0) -> Tensor:
    """log(1 + Σ exp(scale·(s_j − s_i))) over all i, j with label_i > label_j; both (B,).

    Su 2022, kexue.fm/archives/8847. Only the order of the scores counts.
    """
    differences = scale * (scores[None, :] - scores[:, None])  # (B, B): row i, column j
    ordered = labels[:, None] > labels[None, :]
    wrong = torch.where(ordered, differences, float("-inf")).flatten()
    return torch.logsumexp(F.pad(wrong, (1, 0)), dim=0)  # the pad's 0 is the 1 in the logarithm


def pearson_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """1 − Pearson correlation of the batch; both (B,).  Undefined for constant labels: then 0."""
    if labels.min() == labels.max():  # before centring, which leaves rounding errors of 0.1
        return (scores * 0).sum()
    scores, labels = scores - scores.mean(), labels - labels.mean()
    norms = scores.norm() * labels.norm()
    return 1 - (scores * labels).sum() / norms.clamp_min(1e-8)


def r_drop(scores: Tensor) -> Tensor:
    """Mean squared difference of two passes with other dropout masks; scores (…, 2, B).

    R-Drop's regulariser for regression (Wu et al. 2021, appendix B: on STS-B, MSE for KL).
    """
    return F.mse_loss(scores[..., 0, :], scores[..., 1, :])


REGRESSION = {
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "huber": lambda scores, labels: F.huber_loss(scores, labels, delta=0.2),
    "cosent": cosent,
    "pearson": pearson_loss,
    "mse+pearson": lambda scores, labels: F.mse_loss(scores, labels) + pearson_loss(scores, labels),
    "mse+cosent": lambda scores, labels: F.mse_loss(scores, labels) + cosent(scores, labels),
    "cosent+pearson": lambda scores, labels: cosent(scores, labels) + pearson_loss(scores, labels),
}
# These leave the scores' level open: it is fitted afterwards.
SCALE_FREE = {"cosent", "pearson", "cosent+pearson"}
