"""Pieces of HTML: every text that comes from data or files is escaped here, and only here."""

from collections.abc import Iterable
from html import escape


class Html(str):
    """Text that is HTML already and is not escaped again."""


def text(value: object) -> Html:
    """Anything as HTML: escaped, unless it is Html."""
    return value if isinstance(value, Html) else Html(escape(str(value)))


def tag(name: str, *inside: object, **attributes: object) -> Html:
    """An element. Attributes: `class_` is class, `data_x` is data-x, True is the bare name."""
    shown = ""
    for key, value in attributes.items():
        key = key.rstrip("_").replace("_", "-")
        shown += f" {key}" if value is True else f' {key}="{escape(str(value))}"'
    return Html(f"<{name}{shown}>{''.join(text(part) for part in inside)}</{name}>")


def joined(parts: Iterable[object]) -> Html:
    """Pieces one after the other."""
    return Html("".join(text(part) for part in parts))


def paragraph(*words: object, kind: str = "") -> Html:
    """A paragraph; kind is a class."""
    return tag("p", *words, **({"class_": kind} if kind else {}))


def table(header: list[object], rows: Iterable[list[object]], numeric: int = 0) -> Html:
    """A table in a box of its own that scrolls; the last `numeric` columns are right-aligned."""
    first = len(header) - numeric

    def cells(name: str, row: list[object]) -> Html:
        return tag("tr", *(tag(name, cell, **({"class_": "number"} if place >= first else {}))
                           for place, cell in enumerate(row)))

    return tag("div", tag("table", tag("thead", cells("th", header)),
                          tag("tbody", *(cells("td", row) for row in rows))),
               class_="scroll", tabindex="0")


def details(summary: object, *inside: object) -> Html:
    """Something folded away."""
    return tag("details", tag("summary", summary), *inside)


def plot(name: str, sentence: object) -> Html:
    """The place of a chart, with the one sentence that says what it shows."""
    return tag("figure", tag("figcaption", sentence), tag("div", class_="chart", data_chart=name))


def number(value: float | None, form: str = ".2f") -> str:
    """A number, or a dash where there is none."""
    return "–" if value is None or value != value else format(value, form).replace("-", "−")


def with_interval(part: dict | None, form: str = ".2f") -> Html:
    """A value with its interval in small."""
    if part is None or part["value"] != part["value"]:
        return Html("–")
    if part["low"] != part["low"]:
        return text(number(part["value"], form))
    form_low = form.replace("+", "") if part["low"] >= 0 and part["high"] >= 0 else form
    return joined([number(part["value"], form), " ",
                   tag("small", f"[{number(part['low'], form_low)}, "
                                f"{number(part['high'], form_low)}]")])


def pair_cell(pair: dict) -> Html:
    """The two sentences, one under the other, with the row's id and source."""
    origin = " · ".join(part for part in (pair["id"], pair["source"]) if part)
    return joined([tag("div", pair["sentence_1"], lang="ko"),
                   tag("div", pair["sentence_2"], lang="ko"),
                   tag("small", origin)])


def pairs_table(pairs: list[dict], runs: list[str]) -> Html:
    """Pairs with label and predictions."""
    header = ["pair", "label", *(runs if len(runs) > 1 else ["prediction"])]
    return table(header, ([pair_cell(pair), number(pair["label"], ".1f"),
                           *(number(value) for value in pair["predictions"])] for pair in pairs),
                 numeric=1 + len(runs))
