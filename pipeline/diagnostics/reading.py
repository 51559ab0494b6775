"""The report's sections that list pairs to read: the worst, suspected labels, contrast sets."""

from pipeline.diagnostics import figures
from pipeline.diagnostics.markup import (
    Html,
    details,
    joined,
    number,
    pair_cell,
    pairs_table,
    paragraph,
    plot,
    table,
    tag,
)
from pipeline.diagnostics.sections import Section, run_names


def worst(found: dict, pairs: list[dict]) -> Section:
    """The worst pairs, and those on which two runs differ most."""
    runs, rows = run_names(found), found["worst"]
    body = [paragraph("Largest |prediction − label| first. Are these the model's mistakes, or the "
                      "labels'?"), first_rows(rows, runs)]
    charts = {}
    if len(runs) == 2:
        body += [tag("h3", "Where the two runs differ most"),
                 plot("agreement", "Each point is a pair: far from the dotted line the two runs "
                                   "disagree."),
                 first_rows(found["different"], runs)]
        charts["agreement"] = figures.agreement(pairs, runs)
    return Section("worst", "The worst pairs", body, charts)


def first_rows(rows: list[dict], runs: list[str], shown: int = 10) -> Html:
    """A table of pairs of which all but the first are folded away."""
    parts = [pairs_table(rows[:shown], runs)]
    if len(rows) > shown:
        parts.append(details(f"{len(rows) - shown} more", pairs_table(rows[shown:], runs)))
    return joined(parts)


def labels(found: dict) -> Section:
    """Likely wrong labels."""
    part = found["wrong_labels"]
    body = [paragraph(f"Pairs whose label is {part['far']} points or more from every prediction, "
                      "all on one side. Where nearly the same pair stands elsewhere in the data "
                      "with a label that agrees, the model is at fault and the pair is left out. "
                      "Pairs that a near-duplicate speaks against come first.")]
    if "train" in part["counts"]:
        body.append(paragraph("Train's rows are judged by the folds that did not see them.",
                              kind="note"))
    else:
        body.append(paragraph("Train's labels are not judged: the run has seen them. A run with "
                              "sts.folds has predictions for them by models that did not.",
                              kind="note"))
    rows = [[pair_cell(row), row["set"], number(row["label"], ".1f"),
             " / ".join(number(value) for value in row["predictions"]), twin(row)]
            for row in part["rows"]]
    if rows:
        header = ["pair", "set", "label", "prediction", "near-duplicates say"]
        body.append(table(header, rows[:10]))
        if len(rows) > 10:
            body.append(details(f"{len(rows) - 10} more", table(header, rows[10:])))
        left = sum(count["n"] for count in part["counts"].values()) - len(rows)
        if left:
            body.append(paragraph(f"{left} more are not listed.", kind="note"))
    else:
        body.append(paragraph("None."))
    return Section("labels", "Likely wrong labels", body)


def twin(row: dict) -> Html:
    """What near-duplicates of a row say of its label."""
    if not row["twins"]:
        return Html("no near-duplicate")
    return joined([tag("b", number(row["twin_label"], ".1f")),
                   f" ({row['twins']} pair{'s' * (row['twins'] > 1)}), such as ",
                   pair_cell(row["twin"])])


def probes(found: dict) -> Section:
    """Contrast sets: how many minimal pairs of each kind come out right."""
    runs, verdicts = run_names(found), found["probes"]
    body = [paragraph("Minimal pairs written for this report: a sentence, one that must be closer "
                      "to it and one that must be farther. A model that understands negation, "
                      "numbers or word order gets them right. A coin would get half; a model "
                      "that counts common words gets fewer, for the farther sentence often has "
                      "more of them.")]
    charts = {}
    if verdicts and verdicts[0]:
        kinds = [part["kind"] for part in verdicts[0]]
        found_rates = [[{"value": 100 * part["rate"], "low": 100 * part["low"],
                         "high": 100 * part["high"]} for part in run] for run in verdicts]
        charts["probes"] = figures.grouped(kinds, runs, found_rates, "% right",
                                           yaxis={"title": {"text": "% right"}, "range": [0, 105]},
                                           xaxis={"tickangle": -35, "automargin": True},
                                           height=380)
        body.append(plot("probes", "Share of contrast pairs that come out right, by kind, with "
                                   "95% intervals."))
    rows = [[parts[0]["kind"], parts[0]["must"], parts[0]["n"], *map(rate, parts)]
            for parts in zip(*verdicts, strict=True)]
    header = ["kind", "what must hold", "pairs", *(runs if len(runs) > 1 else ["right"])]
    body.append(table(header, rows, numeric=1 + len(runs)))
    for run, parts in zip(runs, verdicts, strict=True):
        failed = [details(f"{part['kind']}: {len(part['failures'])} of {part['n']}",
                          failures(part["failures"])) for part in parts if part["failures"]]
        total = sum(len(part["failures"]) for part in parts)
        words = f"The {total} that came out wrong" + (f" with {run}" if len(runs) > 1 else "")
        body.append(details(words, tag("div", *failed, class_="inside")))
    return Section("probes", "Contrast sets", body, charts)


def rate(part: dict) -> Html:
    """A pass rate with its interval."""
    return joined([f"{100 * part['rate']:.0f}% ", tag(
        "small", f"[{100 * part['low']:.0f}, {100 * part['high']:.0f}]")])


def failures(rows: list[dict]) -> Html:
    """Contrast pairs that came out wrong, with the scores."""
    return table(["sentence", "must be closer", "must be farther"], [
        [tag("span", row["sentence"], lang="ko"),
         joined([tag("span", row["closer"], lang="ko"), " ",
                 tag("b", number(row["closer_score"]))]),
         joined([tag("span", row["further"], lang="ko"), " ",
                 tag("b", number(row["further_score"]))])] for row in rows])
