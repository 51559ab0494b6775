"""The strongest findings of a diagnosis in plain sentences, each with what to do about it."""

from pipeline.comparison import sentence

MOST = 7


def findings(found: dict) -> list[dict]:
    """The findings, most urgent first: section (where the report shows it) and sentence."""
    every = [part for finding in (two_runs, leak, other_text, worst_range, probe, corner, labels,
                                  spike, recalibration, worst_slice, chance)
             for part in finding(found)]
    every.sort(key=lambda part: -part["urgency"])
    return [{"section": part["section"], "sentence": part["sentence"]} for part in every[:MOST]]


def finding(urgency: float, section: str, words: str) -> list[dict]:
    """One finding."""
    return [{"urgency": urgency, "section": section, "sentence": words}]


def two_runs(found: dict) -> list[dict]:
    """Whether the second run is really better than the first."""
    if "pearson_difference" not in found["whole"]:
        return []
    part = found["whole"]["pearson_difference"]
    names = [run["name"] for run in found["runs"]]
    words = sentence(names[1], names[0], part, part["p"]).replace("corrected p", "p")
    if not part["p"] < 0.05:
        words += "; more seeds or more dev rows would tell"
    return finding(100, "ranges", words + ".")


def leak(found: dict) -> list[dict]:
    """Pairs that stand in train and dev."""
    part = found["leaks"]
    if not part["n"]:
        return []
    run = part["runs"][0]
    if run["without"] is None:
        words = "all of dev leaks: its score says nothing"
        change = 1.0
    else:
        change = abs(run["all"]["value"] - run["without"]["value"])
        words = (f"without them dev Pearson is {run['without']['value']:.4f} instead of "
                 f"{run['all']['value']:.4f}")
    return finding(95 if change > 0.005 else 40, "shift", (
        f"{part['n']} of {found['rows']['dev']} dev pairs stand in train too ({part['exact']} "
        f"exactly, {part['swapped']} swapped, {part['near-duplicate']} nearly): {words}. Take "
        "them out of one of the two."))


def other_text(found: dict) -> list[dict]:
    """A test set that reads differently."""
    auc, unseen = found["test"]["apart"]["auc"], found["test"]["sources"]["unseen"]
    if auc is None or not (auc["low"] > 0.6 or unseen > 0.02):
        return []
    words = (f"Test reads differently from dev: a classifier tells their pairs apart with AUC "
             f"{auc['value']:.2f} (0.5 would be guessing)")
    if unseen > 0.02:
        words += f", and {100 * unseen:.0f}% of test comes from sources that dev does not have"
    return finding(90, "shift", words + ". Dev's score may not carry over: look at what gives "
                                        "test away, and train on text like it.")


def worst_range(found: dict) -> list[dict]:
    """The label range with the largest error."""
    judged = [part for part in found["ranges"] if not part["few"]]
    if not judged:
        return []
    part = max(judged, key=lambda part: part["runs"][0]["mae"]["value"])
    run, whole = part["runs"][0], found["whole"]["runs"][0]["mae"]["value"]
    bias = run["bias"]["value"]
    words = (f"Errors are largest for labels {part['name']}: {run['mae']['value']:.2f} points on "
             f"average against {whole:.2f} over all")
    if abs(bias) > 0.1:
        words += f"; predictions there are {abs(bias):.2f} too {'high' if bias > 0 else 'low'}"
    return finding(85, "ranges", words + ". Read the pairs of that range first.")


def probe(found: dict) -> list[dict]:
    """The kind of contrast pairs that the first run fails most."""
    if not found["probes"]:
        return []
    part = min(found["probes"][0], key=lambda part: part["rate"])
    if part["high"] > 0.9:
        return []
    return finding(80 if part["high"] < 0.7 else 60, "probes", (
        f"Of the contrast pairs the model is weakest on {part['kind']}: it gets "
        f"{100 * part['rate']:.0f}% of {part['n']} right [{100 * part['low']:.0f}%, "
        f"{100 * part['high']:.0f}%]. More training pairs of this kind would help."))


def corner(found: dict) -> list[dict]:
    """The corner of overlap against label with the larger bias."""
    sure = [(name, part) for name, part in found["corners"].items() if part["n"] >= 5
            and part["runs"][0]["bias"]["low"] * part["runs"][0]["bias"]["high"] > 0]
    if not sure:
        return []
    name, part = max(sure, key=lambda item: abs(item[1]["runs"][0]["bias"]["value"]))
    bias = part["runs"][0]["bias"]["value"]
    return finding(75 if abs(bias) > 0.5 else 35, "corners", (
        f"The model follows the words: pairs with {name} ({part['meaning']}) are predicted "
        f"{abs(bias):.2f} too {'high' if bias > 0 else 'low'} ({part['n']} dev pairs)."))


def labels(found: dict) -> list[dict]:
    """Labels that look wrong."""
    counts = found["wrong_labels"]["counts"].values()
    n, sure = (sum(part[name] for part in counts) for name in ("n", "contradicted"))
    if not n:
        return []
    words = f"{n} labels are {found['wrong_labels']['far']} or more from every prediction"
    if sure:
        words += f", {sure} of them also from the labels of near-duplicate pairs"
    return finding(70 if sure else 45, "labels", words + ". Read them before training again.")


def spike(found: dict) -> list[dict]:
    """Loss spikes in a stage of the first run's chain."""
    leaps = [(stage, spike) for stage in found["curves"][0] for spike in stage["spikes"]]
    if not leaps:
        return []
    stage, largest = max(leaps, key=lambda leap: leap[1]["z"])
    return finding(65, "training", (
        f"The loss leapt {len(leaps)} time{'s' * (len(leaps) > 1)}, highest at step "
        f"{largest['step']} of {stage['stage']}: {largest['loss']:.3g} where "
        f"{largest['trend']:.3g} was expected. Look at that batch; if it is sound, lower the "
        "learning rate or max_grad_norm."))


def recalibration(found: dict) -> list[dict]:
    """A gain by a monotone map, where it is certain."""
    gain = found["calibration"][0]["gain"]
    if gain is None:
        return []
    part, error = gain["pearson"], gain["mae"]
    if part["low"] > 0:
        return finding(72, "calibration", (
            f"A monotone recalibration would raise Pearson by {part['value']:.4f} "
            f"[{part['low']:.4f}, {part['high']:.4f}] on rows it has not seen: fit one on dev."))
    if error["high"] < -0.02:
        return finding(30, "calibration", (
            f"Predictions sit on a bent scale: recalibrated, the mean error would be "
            f"{-error['value']:.2f} smaller. Pearson would hardly change."))
    return []


def worst_slice(found: dict) -> list[dict]:
    """The slice whose error stands out most from the whole."""
    whole = found["whole"]["runs"][0]["mae"]
    out = [(name, part, part["runs"][0]["mae"]["value"] - whole["value"])
           for name, rows in found["slices"].items() for part in rows
           if not part["few"] and part["runs"][0]["mae"]["low"] > whole["high"]]
    if not out:
        return []
    name, part, excess = max(out, key=lambda item: item[2])
    return finding(50, "slices", (
        f"{name} “{part['name']}” stands out: mean error {whole['value'] + excess:.2f} against "
        f"{whole['value']:.2f} over all ({part['n']} dev pairs)."))


def chance(found: dict) -> list[dict]:
    """The range of test scores that mean nothing."""
    expected = found["test"]["expected"][0][0]
    score = found["whole"]["runs"][0]["pearson"]["value"]
    if expected["low"] != expected["low"]:
        return []
    return finding(55, "shift", (
        f"By chance alone a test set of {expected['n']} pairs like dev's scores anywhere from "
        f"{expected['low']:.3f} to {expected['high']:.3f} (dev {score:.3f}): a leaderboard score "
        "inside that range is no news."))
