"""The figures of stage=compare and stage=dynamics."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipeline.diagnostics.trajectories import METRICS
from pipeline.files import written_aside
from pipeline.metrics import RANGES


def canvas(rows: int, columns: int, width: float, height: float) -> tuple[Any, Any]:
    """A figure and its axes (rows, columns)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(rows, columns, figsize=(width, height), layout="constrained",
                           squeeze=False)


def save(figure: Any, path: Path) -> None:
    """Writes the figure and closes it."""
    from matplotlib import pyplot

    with written_aside(path) as aside:
        figure.savefig(aside, format="png", dpi=130)
    pyplot.close(figure)


def colours(count: int) -> np.ndarray:
    """One colour a cell, in the order of the grid."""
    from matplotlib import colormaps

    return colormaps["turbo"](np.linspace(0.05, 0.95, count))


def draw_figure_two(trajectories: list[pd.DataFrame], labels: list[str], path: Path) -> None:
    """Alignment against uniformity, coloured by step, a line a cell (SimCSE's Figure 2)."""
    figure, axes = canvas(1, 1, 8.5, 6)
    last = max(table["step"].iloc[-1] for table in trajectories)
    for place, (table, label) in enumerate(zip(trajectories, labels, strict=True), 1):
        x, y = table["uniformity"], table["alignment"]
        axes[0, 0].plot(x, y, color="lightgrey", linewidth=1, zorder=1)
        points = axes[0, 0].scatter(x, y, c=table["step"], vmin=0, vmax=last, s=14, zorder=2)
        axes[0, 0].annotate(str(place), (x.iloc[-1], y.iloc[-1]), xytext=(4, 4),
                            textcoords="offset points")
        axes[0, 0].plot([], [], " ", label=f"{place}: {label}")
    axes[0, 0].set_xlabel("uniformity (lower: more evenly spread)")
    axes[0, 0].set_ylabel("alignment (lower: positives closer)")
    figure.colorbar(points, label="step")
    figure.legend(loc="outside lower center", ncols=3, fontsize=8, handlelength=0)
    save(figure, path)


def draw_trajectories(trajectories: list[pd.DataFrame], labels: list[str], found: list[dict],
                      path: Path) -> None:
    """Each metric against the step, a line a cell; change points are marked on the line."""
    figure, axes = canvas(3, 3, 14, 10)
    for axis, name in zip(axes.flat, METRICS, strict=True):
        for table, colour, label, cell in zip(trajectories, colours(len(labels)), labels, found,
                                              strict=True):
            series = table.set_index("step")[name]
            axis.plot(series, color=colour, linewidth=1.2, label=label)
            marks = series[cell["points"].get(name) or []]
            axis.plot(marks, "v", color=colour, markeredgecolor="black", markersize=9)
        axis.set_title(name.replace("_", " "), fontsize=10)
        axis.set_xlabel("step")
        axis.locator_params(axis="x", integer=True)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3,
                  fontsize=8, title="triangles: change points")
    save(figure, path)


def draw_prediction(found: pd.DataFrame, path: Path) -> None:
    """Rank correlation of each metric at each step with the last dev Spearman, with intervals."""
    figure, axes = canvas(3, 3, 13, 9)
    for axis, name in zip(axes.flat, METRICS, strict=True):
        part = found[found["metric"] == name]
        axis.axhline(0, color="grey", linewidth=1)
        axis.fill_between(part["step"], part["low"].astype(float), part["high"].astype(float),
                          alpha=0.25)
        axis.plot(part["step"], part["value"], marker="o", markersize=3)
        axis.set_ylim(-1.05, 1.05)
        axis.set_title(name.replace("_", " "), fontsize=10)
        axis.set_xlabel("step")
        axis.locator_params(axis="x", integer=True)
    figure.suptitle("rank correlation with the last dev Spearman over the cells (95% intervals)")
    save(figure, path)


def draw_layers(trajectories: list[pd.DataFrame], labels: list[str], path: Path) -> None:
    """Cosine of each layer's weight change with its whole change, layer against step."""
    columns = min(3, len(labels))
    rows = -(-len(labels) // columns)
    figure, axes = canvas(rows, columns, 4.6 * columns, 2.8 * rows + 0.6)
    for axis in axes.flat[len(labels):]:
        axis.axis("off")
    for axis, table, label in zip(axes.flat, trajectories, labels, strict=False):
        part = table[[name for name in table if name.startswith("end ")]].iloc[1:]
        image = axis.pcolormesh(table["step"].iloc[1:], np.arange(part.shape[1]), part.T, vmin=0,
                                vmax=1, shading="nearest")
        axis.set_yticks(np.arange(part.shape[1]), [name[4:] for name in part], fontsize=6)
        axis.set_title(label, fontsize=8)
        axis.set_xlabel("step", fontsize=8)
        axis.locator_params(axis="x", integer=True)
    figure.colorbar(image, ax=axes, label="cosine")
    figure.suptitle("weight change up to a step and the whole change, by layer", fontsize=10)
    save(figure, path)


def draw_cosines(scores: dict[str, np.ndarray], labels: np.ndarray, path: Path) -> None:
    """Histograms of the cosines (n,) in each label range, one panel an encoder."""
    figure, axes = canvas(len(scores), 1, 9, 2.4 * len(scores) + 0.8)
    parts = [labels >= low if high == RANGES[-1][1] else (labels >= low) & (labels < high)
             for low, high in RANGES]
    for axis, (name, values) in zip(axes.flat, scores.items(), strict=True):
        bins = np.linspace(min(0.0, float(values.min())), 1, 61)
        for (low, high), inside, colour in zip(RANGES, parts, colours(len(RANGES)), strict=True):
            if inside.any():
                axis.hist(values[inside].clip(bins[0], 1), bins, histtype="step", color=colour,
                          weights=np.full(inside.sum(), 1 / inside.sum()), linewidth=1.4,
                          label=f"{low}-{high} ({inside.sum()})")
        axis.set_title(name, fontsize=10)
        axis.set_ylabel("share")
    axes[-1, 0].set_xlabel("cosine of the pair")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center",
                  ncols=len(RANGES), title="label (pairs)", fontsize=8)
    save(figure, path)
