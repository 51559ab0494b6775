"""The report's sections on where a score comes from: test against dev, leaks, training."""

from pipeline.diagnostics import figures
from pipeline.diagnostics.markup import (
    Html,
    details,
    number,
    pair_cell,
    paragraph,
    plot,
    table,
    tag,
    with_interval,
)
from pipeline.diagnostics.sections import Section, run_names, side_by_side


def against_test(found: dict) -> Section:
    """Why dev and leaderboard differ."""
    part, runs = found["test"], run_names(found)
    body = [paragraph("A leaderboard score differs from dev's for four reasons: chance, leaks "
                      "that flatter dev, other text, and other labels. Here is what each may do.")]
    charts: dict = {}
    scores = [possible_scores(found, place) for place in range(len(runs))]
    ends = [row[end] for rows in scores for _, row in rows for end in ("low", "high")] or [0, 1]
    margin = 0.05 * (max(ends) - min(ends))
    for place, rows in enumerate(scores):
        charts[f"chance-{place}"] = figures.forest(rows, "Pearson", (min(ends) - margin,
                                                                     max(ends) + margin))
    body.append(side_by_side("chance", runs, "{run}: dev's score, what a test set like dev may "
                                             "give by chance, and what dev gives in test's mix."))
    body += [tag("h3", "Other text"), *other_text(part["apart"]), *sources(part["sources"]),
             tag("h3", "Other labels"),
             side_by_side("labels", runs, "{run}: labels (dotted) and predictions. Test's labels "
                                          "are unknown; its predictions, and dev's labels "
                                          "weighted to test's text, hint at them.")]
    for place, run in enumerate(runs):
        charts[f"labels-{place}"] = label_chart(part["distributions"], run, place)
    return Section("shift", "Why dev and leaderboard differ", body + leaks(found), charts)


def label_chart(part: dict, run: str, place: int) -> dict:
    """The distributions of labels and of one run's predictions."""
    colours = {"train labels": figures.MUTED, "dev labels": figures.INK,
               "dev labels, weighted to test": "var(--third)",
               f"dev, {run}": f"var(--faint-{place})", f"test, {run}": figures.COLOURS[place]}
    named = {f"dev, {run}": "dev predictions", f"test, {run}": "test predictions"}
    shares = {name: part["shares"][name] for name in colours if name in part["shares"]}
    return figures.distributions(
        part["edges"], {named.get(name, name): share for name, share in shares.items()},
        {named.get(name, name): colour for name, colour in colours.items()})


def possible_scores(found: dict, place: int) -> list[tuple[str, dict]]:
    """The intervals of the forest plot of one run."""
    part = found["test"]
    whole, half = part["expected"][place]
    weighted, leak = part["weighted"][place], found["leaks"]["runs"][place]
    rows = [("dev", found["whole"]["runs"][place]["pearson"]),
            (f"test of {whole['n']}, by chance", whole), (f"half of it ({half['n']})", half)]
    for name, key in (("dev, weighted by text", "text"), ("dev, weighted by source", "source")):
        if weighted[key]:
            rows.append((name, weighted[key]["pearson"]))
    if found["leaks"]["n"] and leak["without"]:
        rows.append(("dev without leaks", leak["without"]))
    return [(name, row) for name, row in rows if row["low"] == row["low"]]


def other_text(part: dict) -> list[Html]:
    """The classifier's verdict and what gives test away."""
    if part["auc"] is None:
        return [paragraph("Too few groups of pairs for a classifier of test against dev.",
                          kind="note")]
    body = [paragraph("A classifier that never sees a label tries to tell test's pairs from "
                      "dev's. AUC is the chance that it gives a test pair the higher score: 0.5 "
                      "is guessing, 1 is certain. Here: AUC ", with_interval(part["auc"]),
                      f" ({part['n'][0]} dev and {part['n'][1]} test pairs, cross-validated).")]
    if part["auc"]["low"] <= 0.5:
        return [*body, paragraph("It cannot tell them apart: the features below are noise.",
                                 kind="note"), details("Features", telling(part["features"]))]
    return [*body, telling(part["features"])]


def telling(features: list[dict]) -> Html:
    """The features that tell test from dev."""
    def shown(row: dict, side: str) -> str:
        is_share = row["kind"] == "characters" or row["feature"].startswith("has ")
        return f"{100 * row[side]:.1f}%" if is_share else number(row[side])

    return table(["typical", "of", "in dev", "in test"], [
        [f"“{row['feature'].replace(' ', '␣')}”" if row["kind"] == "characters"
         else row["feature"], row["points_to"], shown(row, "dev"), shown(row, "test")]
        for row in features], numeric=2)


def sources(part: dict) -> list[Html]:
    """The shares of the sources."""
    if len(part["shares"]) < 2:
        return []
    rows = [[row["source"] or "(none)", f"{100 * row['dev']:.1f}%", f"{100 * row['test']:.1f}%"]
            for row in part["shares"]]
    words = [tag("b", f"{100 * part['unseen']:.0f}% of test"),
             " comes from sources that dev does not have: dev says nothing of them."]
    return [*([paragraph(*words)] if part["unseen"] else []),
            table(["source", "dev", "test"], rows, numeric=2)]


def leaks(found: dict) -> list[Html]:
    """Leaks between train and dev, and dev's score without them."""
    part, runs = found["leaks"], run_names(found)
    body = [tag("h3", "Leaks between train and dev"), paragraph(
        f"{part['n']} dev pairs stand in train too: {part['exact']} exactly, {part['swapped']} "
        f"swapped, {part['near-duplicate']} nearly (both sentences {part['least_similarity']:g} "
        "or more alike by character n-grams).")]
    if not part["n"]:
        return body
    body.append(table(["run", "dev Pearson", f"without them ({part['left']} pairs)"], [
        [tag("span", run, class_=f"run run-{place}"), with_interval(row["all"], ".4f"),
         with_interval(row["without"], ".4f")]
        for place, (run, row) in enumerate(zip(runs, part["runs"], strict=True))], numeric=2))
    rows = [[row["kind"], number(row["similarity"]), pair_cell(row), number(row["label"], ".1f"),
             pair_cell(row["twin"]), number(row["twin"]["label"], ".1f")] for row in part["rows"]]
    return [*body, details(f"The closest {len(rows)}", table(
        ["kind", "alike", "in dev", "label", "in train", "label"], rows))]


def training(found: dict) -> Section:
    """The curves of every stage, and loss spikes with their batches."""
    body = [paragraph("Loss per step with its running median, the size of the gradients, the "
                      "learning rate, and the evaluations. Alignment: how close pairs of one "
                      "meaning lie (lower is closer); uniformity: how evenly all sentences spread "
                      "(lower is more even). A spike is a loss far above the running median, "
                      "measured by a robust z-score.")]
    charts: dict = {}
    shown: set[str] = set()
    for run, stages in zip(found["runs"], found["curves"], strict=True):
        for stage in stages:
            if stage["run"] in shown:
                continue
            shown.add(stage["run"])
            name = f"training-{len(shown)}"
            title = f"{stage['stage']}, {stage['run']}"
            body.append(tag("h3", title))
            if not stage["steps"]:
                body.append(paragraph("Its history is empty.", kind="note"))
                continue
            charts[name] = figures.training(stage)
            words = f"{stage['steps']} steps of {stage['stage']}; "
            count = len(stage["spikes"])
            words += (f"{count} loss spike{'s' * (count > 1)}, marked." if count
                      else "no loss spike.")
            body += [plot(name, words), *(spike(part, stage["stage"]) for part in stage["spikes"])]
        if run["missing"]:
            body.append(paragraph(f"The run that {stages[0]['run']} started from "
                                  f"({run['missing']}) is not there any more.", kind="note"))
    return Section("training", "Training", body, charts)


def spike(part: dict, stage: str) -> Html:
    """A loss spike with the sentences of its batch."""
    words = (f"step {part['step']}: loss {part['loss']:.3g}, expected {part['trend']:.3g} "
             f"(robust z {number(part['z'], '.1f')})")
    if part["batch"] is None:
        return paragraph(f"{words}; its batch cannot be made anew: the data have changed, or "
                         "were augmented or split into folds.", kind="note")
    header = {"sts": ["sentence 1", "sentence 2", "label"], "simcse": ["sentence"]}.get(
        stage, ["premise", "hypothesis", "class or contradiction"])
    return details(words, table(header, (
        [tag("span", cell, lang="ko") if isinstance(cell, str) else cell for cell in row]
        for row in part["batch"])))

