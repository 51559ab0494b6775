"""The report's charts as plotly dicts; colours are names of the page's CSS variables.

The page resolves `var(--…)` when it draws, so that one figure serves light and dark. A trace whose
`meta` holds `pairs` (places in the page's list) shows those pairs when it is hovered.
"""

from itertools import pairwise

import numpy as np

from pipeline.data import HIGHEST, LOWEST

COLOURS = ["var(--first)", "var(--second)"]
MUTED, INK = "var(--muted)", "var(--ink)"
SCALE = [LOWEST - 0.15, HIGHEST + 0.15]
DIVERGING = [[0, "var(--low)"], [0.5, "var(--middle)"], [1, "var(--high)"]]


def chart(data: list[dict], x: str = "", y: str = "", height: int = 320, **layout: object) -> dict:
    """A figure with titled axes."""
    return {"data": data, "layout": {"height": height, **layout,
                                     "xaxis": {"title": {"text": x}, **layout.get("xaxis", {})},
                                     "yaxis": {"title": {"text": y}, **layout.get("yaxis", {})}}}


def bounds(found: list[dict], axis: str = "y") -> dict:
    """Asymmetric error bars of intervals; none where an interval is undefined."""
    bars = {name: [max(0.0, sign * (part[name] - part["value"]))
                   if np.isfinite(part[name]) else 0.0 for part in found]
            for name, sign in (("high", 1), ("low", -1))}
    return {f"error_{axis}": {"type": "data", "array": bars["high"], "arrayminus": bars["low"],
                              "thickness": 1.2, "width": 3, "color": INK}}


def grouped(names: list[str], runs: list[str], found: list[list[dict]], y: str,
            **options: object) -> dict:
    """Bars with intervals: one group a name, one bar a run. found (runs, names)."""
    return chart([{"type": "bar", "x": names, "y": [part["value"] for part in parts], "name": run,
                   "marker": {"color": colour}, "hovertemplate": "%{x}: %{y:.2f}<extra></extra>",
                   **bounds(parts)}
                  for run, parts, colour in zip(runs, found, COLOURS, strict=False)],
                 y=y, barmode="group", bargap=0.35, **options)


def ranges(parts: list[dict], runs: list[str], statistic: str, y: str) -> dict:
    """A statistic by label range."""
    found = [[part["runs"][run][statistic] for part in parts] for run in range(len(runs))]
    return grouped([part["name"] for part in parts], runs, found, y,
                   xaxis={"title": {"text": "label"}, "type": "category"})


def line(x: list, y: list, name: str = "", colour: str = MUTED, **options: object) -> dict:
    """A line without markers."""
    return {"type": "scatter", "mode": "lines", "x": x, "y": y, "name": name, "hoverinfo": "skip",
            **options, "line": {"color": colour, "width": 1.5} | options.get("line", {})}


def points(pairs: list[dict], x: str, y: str, run: int, colour: str) -> dict:
    """One point a pair; x and y are label, prediction, residual or other (the last run's)."""
    def values(name: str) -> list[float]:
        return [round({"label": pair["label"], "prediction": pair["predictions"][run],
                       "residual": pair["predictions"][run] - pair["label"],
                       "other": pair["predictions"][-1]}[name], 3) for pair in pairs]

    return {"type": "scatter", "mode": "markers", "x": values(x), "y": values(y), "name": "pairs",
            "showlegend": False, "meta": {"pairs": list(range(len(pairs)))}, "hoverinfo": "text",
            "marker": {"color": colour, "size": 6, "opacity": 0.45}}


def scatter(pairs: list[dict], run: int) -> dict:
    """Prediction against label, with the line on which both are equal."""
    return chart([line([0, 5], [0, 5], line={"dash": "dot"}, showlegend=False),
                  points(pairs, "label", "prediction", run, COLOURS[run])],
                 "label", "prediction", 400, xaxis={"range": SCALE}, yaxis={"range": SCALE})


def residuals(pairs: list[dict], run: int) -> dict:
    """Prediction minus label against the prediction."""
    return chart([line([0, 5], [0, 0], line={"dash": "dot"}, showlegend=False),
                  points(pairs, "prediction", "residual", run, COLOURS[run])],
                 "prediction", "prediction − label", 340, xaxis={"range": SCALE})


def agreement(pairs: list[dict], runs: list[str]) -> dict:
    """The second run's prediction against the first one's."""
    return chart([line([0, 5], [0, 5], line={"dash": "dot"}, showlegend=False),
                  points(pairs, "prediction", "other", 0, COLOURS[1])],
                 f"prediction of {runs[0]}", f"prediction of {runs[1]}", 400,
                 xaxis={"range": SCALE}, yaxis={"range": SCALE})


def distributions(edges: list[float], shares: dict[str, list[float]],
                  colours: dict[str, str]) -> dict:
    """Shares (%) of rows by label, one line a distribution; labels are dotted."""
    middles = [(low + high) / 2 for low, high in pairwise(edges)]
    return chart([line(middles, [100 * share for share in values], name, colours[name],
                       mode="lines+markers", hoverinfo="y+name", marker={"size": 5},
                       line={"width": 2, "dash": "dot" if "label" in name else "solid"})
                  for name, values in shares.items()],
                 "label or prediction", "% of rows", 360, xaxis={"range": [0, 5]},
                 yaxis={"rangemode": "tozero"})


def calibration(curves: list[list[dict]], runs: list[str]) -> dict:
    """Mean label against mean prediction, with intervals."""
    data = [line([0, 5], [0, 5], "perfect", line={"dash": "dot"})]
    for curve, run, colour in zip(curves, runs, COLOURS, strict=False):
        labels = [part["label"] for part in curve]
        data.append({"type": "scatter", "mode": "lines+markers", "name": run,
                     "x": [part["prediction"] for part in curve],
                     "y": [part["value"] for part in labels], **bounds(labels),
                     "line": {"color": colour, "width": 2}, "marker": {"size": 6},
                     "hovertemplate": "predicted %{x:.2f}, labelled %{y:.2f}<extra></extra>"})
    return chart(data, "mean prediction", "mean label", 360, xaxis={"range": SCALE},
                 yaxis={"range": SCALE})


def grid(cells: dict, run: int) -> dict:
    """Bias by overlap and label as a heat map; the number of pairs stands in the cell."""
    hover = [[f"overlap {name}, label {label}<br>{n} pairs" + (
        f"<br>bias {bias:+.2f}, mean error {mae:.2f}" if n else "") for label, n, bias, mae in
        zip(cells["label"], *rows, strict=True)] for name, *rows in
        zip(cells["overlap"], cells["n"], cells["bias"][run], cells["mae"][run], strict=True)]
    return chart([{"type": "heatmap", "x": cells["label"], "y": cells["overlap"],
                   "z": cells["bias"][run], "zmin": -2, "zmax": 2, "colorscale": DIVERGING,
                   "text": [[f"{n}" if n else "" for n in row] for row in cells["n"]],
                   "texttemplate": "%{text}", "hovertext": hover, "hoverinfo": "text",
                   "xgap": 2, "ygap": 2, "colorbar": {"title": {"text": "bias"}, "thickness": 10,
                                                      "outlinewidth": 0}}],
                 "label", "overlap", 340, xaxis={"type": "category"},
                 yaxis={"type": "category", "automargin": True})


def forest(rows: list[tuple[str, dict]], x: str, span: tuple[float, float]) -> dict:
    """One interval a row, first on top, on an axis over `span`; without a value a range alone."""
    data = []
    for name, part in reversed(rows):
        hover = f"{name}: {part['low']:.3f} to {part['high']:.3f}"
        data.append(line([part["low"], part["high"]], [name, name], name, COLOURS[0],
                         line={"width": 5}, showlegend=False, hoverinfo="text", text=hover,
                         opacity=0.55))
        if "value" in part:
            data.append({"type": "scatter", "mode": "markers", "x": [part["value"]], "y": [name],
                         "marker": {"color": INK, "size": 9}, "showlegend": False,
                         "hoverinfo": "text", "text": f"{name}: {part['value']:.3f}"})
    return chart(data, x, height=110 + 36 * len(rows), xaxis={"range": list(span)},
                 yaxis={"automargin": True, "type": "category"})


def training(stage: dict) -> dict:
    """Small panels one under the other: loss, gradient norm, learning rate, scores, geometry."""
    def traced(title: str, steps: list, values: list, **options: object) -> dict:
        return line(steps, values, title, COLOURS[0], hoverinfo="x+y+name", **options)

    panels = [("loss", [traced("loss", stage["step"], stage["loss"], opacity=0.45),
                        traced("trend", stage["step"], stage["trend"]),
                        spike_marks(stage["spikes"])])]
    panels += [(title, [traced(title, stage["step"], stage[name])])
               for name, title in (("grad_norm", "gradient norm"), ("lr", "learning rate"))]
    for before, part in (("dev ", "eval"), ("", "geometry")):
        for name, series in stage[part].items():
            title = before + name.replace("_", " ")
            panels.append((title, [traced(title, series["step"], series["value"],
                                          mode="lines+markers", marker={"size": 5})]))
    height, gap = 1 / len(panels), 0.045
    layout: dict = {"xaxis": {"title": {"text": "step"}, "anchor": f"y{len(panels)}"}}
    data = []
    for number, (title, traces) in enumerate(panels):
        mark = "" if number == 0 else str(number + 1)
        top = 1 - number * height
        layout[f"yaxis{mark}"] = {"domain": [max(0, top - height + gap), top],
                                  "title": {"text": title}, "nticks": 4, "anchor": "x",
                                  "tickformat": ".1e" if title == "learning rate" else "",
                                  "exponentformat": "e",
                                  "type": "log" if title == "loss" and wide(stage["loss"])
                                  else "linear"}
        data += [trace | {"yaxis": f"y{mark}", "showlegend": False} for trace in traces]
    return chart(data, height=60 + 125 * len(panels), **layout)


def wide(losses: list[float]) -> bool:
    """Whether losses are positive and span so much that only a logarithmic axis shows them."""
    return bool(losses) and min(losses) > 0 and max(losses) > 50 * min(losses)


def spike_marks(spikes: list[dict]) -> dict:
    """A mark on every loss spike."""
    return {"type": "scatter", "mode": "markers", "x": [spike["step"] for spike in spikes],
            "y": [spike["loss"] for spike in spikes], "name": "spike", "hoverinfo": "text",
            "text": [f"step {spike['step']}: loss {spike['loss']:.3f}, expected "
                     f"{spike['trend']:.3f}" for spike in spikes],
            "marker": {"color": COLOURS[1], "size": 10, "symbol": "circle-open",
                       "line": {"width": 2}}}
