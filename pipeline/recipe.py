"""How long and how fast a training goes, and what of it is kept.

    python run.py stage=sts sts.epochs=5 sts.learning_rate=2e-5 sts.warmup_ratio=0.1
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """The keys that every training stage has, and those of sts that concern the loop."""

    epochs: float
    max_steps: int
    learning_rate: float
    warmup_ratio: float
    weight_decay: float
    max_grad_norm: float
    eval_every: float
    patience: int
    keep: str = "best"  # which evaluation's weights: the best one's or the last one's
    ema: float = 0.0
    layer_decay: float = 1.0
    fgm: float = 0.0
    awp: float = 0.0

    def steps(self, per_epoch: int) -> int:
        """Optimizer steps of the whole training."""
        return self.max_steps or max(1, round(self.epochs * per_epoch))

    def interval(self, per_epoch: int) -> int:
        """Steps between evaluations."""
        every = self.eval_every * per_epoch if self.eval_every < 1 else self.eval_every
        return max(1, round(every))

    def rate(self, step: int, total: int) -> float:
        """Learning rate of a step counted from 0: linear up to the peak, linear down to 0."""
        warmup = math.ceil(self.warmup_ratio * total)
        if step < warmup:
            return self.learning_rate * (step + 1) / warmup
        return self.learning_rate * (total - step) / max(1, total - warmup)
