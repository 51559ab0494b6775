"""The report as one HTML file that needs nothing else: sections, charts, plotly's script, pairs.

Sentences are escaped twice over: as HTML where they stand in tables (`markup`), and inside the
page's JSON so that no `</script>` in a sentence ends a script; page.js escapes them for hovers.
"""

import json
from pathlib import Path

from pipeline.diagnostics import origins, reading, sections
from pipeline.diagnostics.markup import Html, joined, paragraph, tag
from pipeline.diagnostics.sections import Section
from pipeline.files import plain

HERE = Path(__file__).parent
TERMS = {
    "Pearson": "correlation of predictions with labels, the competition's score: 1 is perfect, 0 "
               "is no connection",
    "Spearman": "the same on ranks: only the order counts",
    "mean error": "mean |prediction − label| in label points",
    "bias": "mean of prediction − label: above 0 the model is too high",
    "RMSE": "root of the mean squared error; large errors count more",
    "bootstrap interval": "the spread of a figure over 2,000 redrawn sets of the same rows",
    "overlap": "how many character bigrams two sentences share: 0 none, 1 all (Jaccard)",
    "paired difference": "two runs compared on the same redrawn rows, so that easy rows cancel",
    "out-of-fold": "predicted by a model that was not trained on the row",
    "AUC": "the chance that a classifier ranks a random pair of test above one of dev"}


def page(found: dict, pairs: list[dict]) -> str:
    """The whole document: found is the diagnosis, pairs the dev pairs that the charts show."""
    from plotly.offline import get_plotlyjs

    parts = [sections.overview(found), sections.ranges(found), sections.predictions(found, pairs),
             sections.calibration(found), sections.slices(found), sections.corners(found),
             reading.worst(found, pairs), reading.labels(found), reading.probes(found),
             origins.against_test(found), origins.training(found), terms()]
    names = [run["name"] for run in found["runs"]]
    title = " and ".join(names)
    charts = {name: figure for part in parts for name, figure in part.charts.items()}
    content = embedded({"charts": charts, "pairs": pairs, "runs": names})
    document = tag(
        "html",
        tag("head", Html('<meta charset="utf-8">'),
            Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Html('<meta name="color-scheme" content="light dark">'),
            Html('<link rel="icon" href="data:,">'),
            tag("title", f"Diagnosis of {title}"),
            tag("style", Html((HERE / "page.css").read_text(encoding="utf-8")))),
        tag("body",
            tag("header", tag("p", "Diagnosis", class_="kicker"), tag("h1", title),
                paragraph(summary(found), kind="note")),
            tag("div", contents(parts), tag("main", *map(section, parts)), class_="columns"),
            tag("script", content, type="application/json", id="content"),
            tag("script", Html(get_plotlyjs())),
            tag("script", Html((HERE / "page.js").read_text(encoding="utf-8")))),
        lang="en")
    return f"<!doctype html>\n{document}\n"


def embedded(content: dict) -> Html:
    """JSON that may stand in a script element: no `<` is left that could end it."""
    text = json.dumps(plain(content), ensure_ascii=False, separators=(",", ":"))
    return Html(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def summary(found: dict) -> str:
    """One line under the title."""
    runs, rows = found["runs"], found["rows"]
    encoders = " and ".join(dict.fromkeys(Path(run["encoder"]).name for run in runs))
    return (f"{encoders} · {rows['train']:,} training pairs, {rows['dev']:,} dev, "
            f"{rows['test']:,} test")


def contents(parts: list[Section]) -> Html:
    """The table of contents."""
    links = [tag("li", tag("a", part.title, href=f"#{part.name}")) for part in parts]
    return tag("nav", tag("details", tag("summary", "Contents"), tag("ol", *links), open=True),
               aria_label="Contents")


def section(part: Section) -> Html:
    """A section; the first one's box has its own heading."""
    heading = [] if part.name == "first" else [tag("h2", part.title)]
    return tag("section", *heading, *part.body, id=part.name)


def terms() -> Section:
    """The words explained."""
    return Section("terms", "Terms", [tag("dl", joined(
        joined([tag("dt", name), tag("dd", meaning)]) for name, meaning in TERMS.items()))])
