"""The report's sections: each makes HTML and charts of a part of the diagnosis.

Every chart has one sentence that says what it shows; terms are explained where they first appear.
"""

from dataclasses import dataclass, field

from pipeline.diagnostics import figures
from pipeline.diagnostics.markup import (
    Html,
    details,
    joined,
    number,
    pairs_table,
    paragraph,
    plot,
    table,
    tag,
    with_interval,
)
from pipeline.diagnostics.parts import FEW

TITLES = {"pearson": "Pearson", "spearman": "Spearman", "mae": "mean error", "bias": "bias",
          "rmse": "RMSE"}


@dataclass
class Section:
    """A part of the page: its anchor, title, HTML and charts by name."""

    name: str
    title: str
    body: list[Html]
    charts: dict[str, dict] = field(default_factory=dict)


def run_names(found: dict) -> list[str]:
    """What the runs are called."""
    return [run["name"] for run in found["runs"]]


def side_by_side(name: str, runs: list[str], words: str) -> Html:
    """One chart a run, beside each other where there is room; {run} in words is its name."""
    return tag("div", *(plot(f"{name}-{place}", words.format(run=run))
                        for place, run in enumerate(runs)), class_="beside")


def overview(found: dict) -> Section:
    """The findings and the scores over all of dev."""
    whole, runs = found["whole"], run_names(found)
    items = [tag("li", part["sentence"], " ", tag("a", "show", href=f"#{part['section']}"))
             for part in found["findings"]]
    header = ["run", "chain", *TITLES.values()]
    rows = [[tag("span", run["name"], class_=f"run run-{place}"),
             tag("span", run["chain"], class_="whole"),
             *(with_interval(scores[name], "+.2f" if name == "bias" else ".3f")
               for name in TITLES)]
            for place, (run, scores) in enumerate(zip(found["runs"], whole["runs"], strict=True))]
    body = [tag("div", tag("h2", "What to do first"), tag("ol", *items), class_="first"),
            paragraph(f"Scores on {found['rows']['dev']} dev pairs, with 95% bootstrap intervals "
                      "in brackets: with other pairs of the same kind they would lie inside in "
                      "about 95 of 100 cases."),
            tag("div", table(header, rows, numeric=len(TITLES)), class_="stacked")]
    if len(runs) == 2:
        body[0] = joined([body[0], paragraph(f"Where no run is named, figures are {runs[0]}'s.",
                                             kind="note")])
        part = whole["pearson_difference"]
        body.append(paragraph(
            f"{runs[1]} minus {runs[0]}, on the same rows: Pearson ",
            with_interval(part, "+.4f"), f" (p {number(part['p'], '.3f')}), mean error ",
            with_interval(whole["difference"], "+.3f"), "."))
    return Section("first", "What to do first", body)


def ranges(found: dict) -> Section:
    """Errors by label range; a click lists a range's pairs."""
    runs, parts = run_names(found), found["ranges"]
    few = [part["name"] for part in parts if part["few"]]
    body = [paragraph("How far predictions are from labels (mean error, in label points), and "
                      "whether they are too high or too low on average (bias). Click a bar or a "
                      "button to read the pairs of a range.")]
    if few:
        body.append(paragraph(f"Fewer than {FEW} pairs in {', '.join(few)}: figures there say "
                              "little.", kind="note"))
    body += [plot("ranges", "Mean |prediction − label| in each label range: the lower the better."),
             tag("div", *(tag("button", f"{part['name']} ({part['n']})", type="button",
                              data_range=f"{part['low']},{part['high']}")
                          for part in parts), class_="buttons"),
             tag("div", id="range-pairs", aria_live="polite"),
             plot("bias", "Bias in each label range: above 0 the predictions are too high.")]
    kinds = ("mae", "bias", "rmse", "pearson")
    header = ["label", "pairs", "run", *(TITLES[kind] for kind in kinds)]
    rows = [[part["name"] if place == 0 else "",
             joined([str(part["n"]), tag("small", " few") if part["few"] else ""])
             if place == 0 else "",
             tag("span", run, class_=f"run run-{place}"),
             *(with_interval(part["runs"][place][kind], "+.2f" if kind == "bias" else ".2f")
               for kind in kinds)]
            for part in parts for place, run in enumerate(runs)]
    body.append(table(header, rows, numeric=len(kinds)))
    if len(runs) == 2:
        body += [paragraph(f"Mean error of {runs[1]} minus that of {runs[0]}, on the same rows: "
                           f"below 0, {runs[1]} is closer to the labels."),
                 tag("div", table(["label", *(part["name"] for part in parts)],
                                  [["difference", *(with_interval(part["difference"], "+.3f")
                                                    for part in parts)]], numeric=len(parts)),
                     class_="stacked")]
    body.append(paragraph("Pearson inside a range is low for every model: labels hardly differ "
                          "there. RMSE weighs large errors more than the mean error does.",
                          kind="note"))
    return Section("ranges", "Error by label range", body, {
        "ranges": figures.ranges(parts, runs, "mae", "mean error"),
        "bias": figures.ranges(parts, runs, "bias", "bias")})


def predictions(found: dict, pairs: list[dict]) -> Section:
    """Prediction against label, residuals, distributions."""
    runs = run_names(found)
    body = [paragraph("Each point is a dev pair; hover it or tap it to read the pair.")]
    if len(pairs) < found["rows"]["dev"]:
        body.append(paragraph(f"The charts hold {len(pairs)} of {found['rows']['dev']} pairs: the "
                              "worst and a random rest.", kind="note"))
    body += [side_by_side("scatter", runs, "{run}: on the dotted line prediction and label agree."),
             side_by_side("residual", runs, "{run}: error against prediction; a slope or a bend "
                                            "means a wrong scale.")]
    charts = {}
    for place in range(len(runs)):
        charts |= {f"scatter-{place}": figures.scatter(pairs, place),
                   f"residual-{place}": figures.residuals(pairs, place)}
    spread = found["test"]["distributions"]
    shares = {"labels": spread["shares"]["dev labels"]} | {
        run: spread["shares"][f"dev, {run}"] for run in runs}
    colours = {"labels": figures.INK} | dict(zip(runs, figures.COLOURS, strict=False))
    body.append(plot("histogram", "How labels (dotted) and predictions are spread over dev: a "
                                  "model that plays safe leaves out the ends."))
    charts["histogram"] = figures.distributions(spread["edges"], shares, colours)
    return Section("predictions", "Predictions against labels", body, charts)


def calibration(found: dict) -> Section:
    """The calibration curve and what recalibration would gain."""
    runs, parts = run_names(found), found["calibration"]
    body = [paragraph("Calibrated means: of the pairs that the model gives a 3, the labels are 3 "
                      "on average. An isotonic (monotone) recalibration bends the scale without "
                      f"changing the order; its gain is measured on rows it was not fitted on, in "
                      f"{parts[0]['folds']} folds."),
            plot("calibration", "Mean label of ten equally large groups of predictions: below the "
                                "dotted line the model is too high.")]
    rows = [[tag("span", run, class_=f"run run-{place}"),
             *((with_interval(part["gain"]["pearson"], "+.4f"),
                with_interval(part["gain"]["mae"], "+.3f")) if part["gain"] else ("–", "–"))]
            for place, (run, part) in enumerate(zip(runs, parts, strict=True))]
    body.append(table(["run", "gain in Pearson", "change of mean error"], rows, numeric=2))
    return Section("calibration", "Calibration", body, {
        "calibration": figures.calibration([part["curve"] for part in parts], runs)})


def slices(found: dict) -> Section:
    """Errors by what can be seen of a pair."""
    runs = run_names(found)
    whole = found["whole"]["runs"][0]["mae"]
    most = max((part["runs"][place]["mae"]["value"] for rows in found["slices"].values()
                for part in rows if not part["few"] for place in range(len(runs))), default=1.0)
    body = [paragraph("Which kinds of pairs are hard? In a bold row the error is above that "
                      f"of all of dev ({whole['value']:.2f}), their intervals apart. "
                      "Overlap is the share of common character bigrams (Jaccard); negation is "
                      "found by a rule of thumb.")]
    header = ["", "pairs", *(f"error, {run}" if len(runs) > 1 else "mean error" for run in runs),
              *(["difference"] if len(runs) > 1 else []), "bias", "Pearson"]
    for name, parts in found["slices"].items():
        rows = []
        for part in parts:
            first = part["runs"][0]
            bars = [tag("div", with_interval(run["mae"]), class_=f"bar bar-{place}",
                        style=f"--share:{min(1, run['mae']['value'] / most):.3f}")
                    for place, run in enumerate(part["runs"])]
            stands_out = not part["few"] and first["mae"]["low"] > whole["high"]
            rows.append([tag("b" if stands_out else "span", part["name"]),
                         joined([str(part["n"]), tag("small", " few") if part["few"] else ""]),
                         *bars, *([with_interval(part["difference"], "+.2f")]
                                  if len(runs) > 1 else []),
                         with_interval(first["bias"], "+.2f"), with_interval(first["pearson"])])
        body += [tag("h3", f"By {name}"), table(header, rows, numeric=len(header) - 1)]
    if len(runs) > 1:
        body.append(paragraph(f"Bias and Pearson are those of {runs[0]}.", kind="note"))
    return Section("slices", "Kinds of pairs", body)


def corners(found: dict) -> Section:
    """Overlap against label, and the two corners."""
    runs = run_names(found)
    body = [paragraph("Similar words need not mean similar things. A model that counts common "
                      "words is too high at much overlap and low labels, and too low at little "
                      "overlap and high labels."),
            side_by_side("grid", runs, "{run}: bias by overlap and label; the number of pairs in "
                                       "each cell.")]
    for name, part in found["corners"].items():
        (least, most), (low, high) = part["overlap"], part["label"]
        body.append(tag("h3", name[0].upper() + name[1:]))
        body.append(paragraph(
            f"{part['meaning'].capitalize()}: overlap {least:g}–{most:g}, label {low:g}–{high:g}; "
            f"{part['n']} pairs{', few' if part['few'] else ''}. ", *(
                joined([f"{run}: bias ", with_interval(one["bias"], "+.2f"), ", mean error ",
                        with_interval(one["mae"]), ". "])
                for run, one in zip(runs, part["runs"], strict=True) if part["n"])))
        if part["rows"]:
            body.append(details(f"The worst {len(part['rows'])} of them",
                                pairs_table(part["rows"], runs)))
    return Section("corners", "Same words, other meaning", body, {
        f"grid-{place}": figures.grid(found["grid"], place) for place in range(len(runs))})
