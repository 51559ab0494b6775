"""Which of several predictions of the same rows to submit, and which are as good as it.

    python run.py stage=board

By the score on labels that were not trained on, with a paired bootstrap between candidates; never
by a public score, which is of a few hundred rows and has been looked at as often as it was asked.
A run that took its best step by dev is flattered by dev a little: mind it beside one with folds.
"""

from dataclasses import dataclass

import numpy as np

from pipeline.comparison import Scores, holm, scores


@dataclass
class Candidate:
    """A finished run or blend: what it is called and what it predicted."""

    name: str
    predictions: np.ndarray  # (n,), of rows whose labels it was not trained on
    public: float = float("nan")  # its leaderboard score, where one was recorded


def recommendation(candidates: list[Candidate], labels: np.ndarray, rows: str,
                   public_rows: int) -> list[str]:
    """Sentences: what to submit, what cannot be told apart from it, what public scores mean.

    labels (n,) of the rows (oof or dev) that all candidates predicted. public_rows: how many a
    public score is of (half of test). Constant predictions have no score and are no candidates.
    """
    candidates = [candidate for candidate in candidates if np.ptp(candidate.predictions) > 0]
    if not candidates or np.ptp(labels) == 0:
        return []
    scored = scores(labels, np.stack([candidate.predictions for candidate in candidates]))
    best = int(scored.values.argmax())
    others = [place for place in np.argsort(-scored.values) if place != best]
    found = [scored.difference(best, place) for place in others]
    corrected = holm([part["p"] for part in found]) if found else []
    score = scored.interval(best)
    lines = [f"submit {candidates[best].name}: {rows} Pearson {score['value']:.4f} "
             f"[{score['low']:.4f}, {score['high']:.4f}] ({len(labels)} pairs), "
             + (f"the highest of {len(candidates)} candidates" if others else "the only candidate")]
    alike = [(candidates[place].name, part, p)
             for place, part, p in zip(others, found, corrected, strict=True) if not p < 0.05]
    if alike:
        lines.append("not distinguishable from it (paired bootstrap on the same rows, "
                     "Holm-corrected):")
        lines += [f"  {name}: {100 * part['value']:+.2f} [{100 * part['low']:+.2f}, "
                  f"{100 * part['high']:+.2f}] points of Pearson, corrected p {p:.3f}"
                  for name, part, p in alike]
    if len(alike) < len(others):
        lines.append(f"worse than it: {len(others) - len(alike)} of the other {len(others)}")
    return lines + disagreement(candidates, scored, len(labels), rows, public_rows)


def disagreement(candidates: list[Candidate], scored: Scores, n: int, rows: str,
                 public_rows: int) -> list[str]:
    """What it means that a public score ranks another candidate first; nothing when it does not.

    The SD of a public score, and of the difference of two, is that of the bootstrap on these n
    rows, scaled to the number of public rows.
    """
    public = np.array([candidate.public for candidate in candidates])
    is_known = np.isfinite(public)
    if is_known.sum() < 2 or public_rows < 2:
        return []
    mine = int(np.where(is_known, scored.values, -np.inf).argmax())
    first = int(np.where(is_known, public, -np.inf).argmax())
    gap = public[first] - public[mine]
    if gap <= 0:
        return []
    scale = np.sqrt(n / public_rows)
    alone = scale * np.nanstd(scored.drawn[:, first])
    expected = scored.values[first] - scored.values[mine]
    spread = scale * np.nanstd(scored.drawn[:, first] - scored.drawn[:, mine])
    is_chance = gap - expected <= 2 * spread
    return [
        f"public ranks {candidates[first].name} first ({public[first]:.4f}, and "
        f"{public[mine]:.4f} for {candidates[mine].name}), {rows} does not: a public score of "
        f"{public_rows} rows has an SD of about {alone:.4f}, the difference of these two "
        f"{spread:.4f}; {rows} foretells {expected:+.4f}, public says {gap:+.4f}: "
        + ("within chance, no reason to change the choice" if is_chance else
           f"more than chance explains: test may differ from {rows}; look at both (stage=check) "
           "before choosing, the choice stays")]
