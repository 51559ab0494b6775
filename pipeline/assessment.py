"""What a blend and each of its members are worth, scored on rows that its weights have not seen.

    python run.py stage=ensemble runs=[runs/sts/A,runs/sts/B]
"""

import numpy as np

from pipeline.blending import METHODS, applied, fitted, fold_numbers, nested
from pipeline.comparison import holm, scores
from pipeline.errors import UserError
from pipeline.members import Rows
from pipeline.splits import groups


def assess(sets: dict[str, Rows], asked: str) -> tuple[dict, dict[str, np.ndarray]]:
    """The blend, its scores and its members' worth; and the held-out blends of the sets' rows.

    sets: dev, and before it oof where there is one; weights are fitted on the first. The second
    part also has the fold of each of its rows. asked: auto or one of METHODS.
    """
    name, rows = next(iter(sets.items()))
    numbers = groups(rows.frame)
    if len(np.unique(numbers)) < 2:
        raise UserError(f"data.dir: expected {name} rows that do not all share sentences, so that "
                        "some can be held out, got one group")
    folds, k = fold_numbers(numbers), len(rows.predictions)
    held = {method: nested(method, rows.predictions, rows.labels, folds) for method in METHODS}
    methods = compare_methods(rows, held)
    method, why = choose(methods, asked)
    weights = fitted(method, rows.predictions, rows.labels)
    blends = {"folds": folds, name: held[method]}
    if name == "oof":
        is_dev = (rows.frame["part"] == "dev").to_numpy()
        blends["dev"] = (held[method][is_dev] if is_dev.any() else
                         applied(method, sets["dev"].predictions, weights))
    members = [{"weight": float(weight), "spread": float(part.std())}
               for weight, part in zip(weights[0], rows.predictions, strict=True)]
    for member, found in zip(members, left_out(rows, method, held[method], folds), strict=True):
        member["without"] = found
    blend, gain = {}, {}
    for part, its in sets.items():
        scored = scores(its.labels, np.stack([*its.predictions, blends[part]]))
        best = int(scored.values[:k].argmax())
        for place, member in enumerate(members):
            member[part] = scored.interval(place)
        blend[part] = scored.interval(k)
        gain[part] = {"over": best, **scored.difference(best, k)}
    return {
        "method": method, "why": why, "fitted_on": name, "rows": len(rows.labels),
        "groups": len(np.unique(numbers)), "folds": len(np.unique(folds)),
        "intercept": weights[1], "members": members, "methods": methods, "blend": blend,
        "gain": gain, "correlations": {
            "predictions": np.corrcoef(rows.predictions).tolist(),
            "errors": np.corrcoef(rows.predictions - rows.labels).tolist()}}, blends


def compare_methods(rows: Rows, held: dict[str, np.ndarray]) -> list[dict]:
    """Every method's nested score, and its difference to the plain mean and to the best member."""
    k = len(rows.predictions)
    scored = scores(rows.labels, np.stack([*rows.predictions, *held.values()]))
    best = int(scored.values[:k].argmax())
    return [{"method": method, "pearson": scored.interval(k + place),
             "difference": scored.difference(k + METHODS.index("mean"), k + place),
             "gain": scored.difference(best, k + place)} for place, method in enumerate(held)]


def choose(methods: list[dict], asked: str) -> tuple[str, str]:
    """The method, and why: auto prefers the plain mean unless another is beyond its interval."""
    if asked != "auto":
        return asked, f"ensemble.method={asked}"
    better = [row for row in methods if row["difference"]["low"] > 0]
    if not better:
        return "mean", ("auto takes the plain mean: no other method is better than it beyond its "
                        "paired interval")
    first = max(better, key=lambda row: row["difference"]["value"])
    value, low, high = (100 * first["difference"][name] for name in ("value", "low", "high"))
    return first["method"], (f"auto takes {first['method']}: better than the plain mean by "
                             f"{value:+.2f} [{low:+.2f}, {high:+.2f}] points of Pearson")


def left_out(rows: Rows, method: str, blend: np.ndarray, folds: np.ndarray) -> list[dict]:
    """For each member the score of the blend without it, weights fitted anew, minus the blend's.

    Negative: leaving it out costs that much. p-values are Holm-corrected over the members.
    """
    k = len(rows.predictions)
    without = [nested(method, np.delete(rows.predictions, place, axis=0), rows.labels, folds)
               for place in range(k)]
    scored = scores(rows.labels, np.stack([blend, *without]))
    found = [scored.difference(0, place + 1) for place in range(k)]
    corrected = holm([part["p"] for part in found])
    return [part | {"corrected_p": p} for part, p in zip(found, corrected, strict=True)]
