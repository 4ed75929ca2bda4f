"""Plots of the rounds of a run: each draws the records and returns a figure."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from flfa_app.results.plots.figure import (
    BLUE,
    HEAT_MAP,
    LINE_HEIGHT,
    SMALL,
    TEXT,
    VERMILLION,
    new_figure,
    tick_step,
)
from flfa_app.results.records import RoundRecord
from flfa_app.results.round_metrics import accuracies, cosine_histogram, first_cosines
from strategies.rules import skewness

# Hatching distinguishes missing scores from dark cells without relying on colour.
_NO_SCORE: dict[str, Any] = {"facecolor": "0.75", "edgecolor": "0.5", "hatch": "////"}
_MARK: dict[str, Any] = {"marker": "s", "mfc": "white", "mec": "black", "ls": ""}


def plot_progress(records: Sequence[RoundRecord], title: str) -> Figure:
    """Draw test accuracy and local drift over the rounds that have them."""
    fig = new_figure(8, 6, title)
    top, bottom = fig.subplots(2, 1, sharex=True)
    accuracy = _finite_points((i, 100 * x) for i, x in accuracies(records).items())
    drift = _finite_points((record.server_round, record.drift) for record in records)
    _draw_line(top, accuracy, BLUE, "test accuracy (%)")
    _draw_line(bottom, drift, VERMILLION, "local drift H")
    if accuracy:
        best_round, best = max(accuracy, key=lambda point: point[1])
        note = f"best {best:.1f} % (round {best_round}), last {accuracy[-1][1]:.1f} %"
        top.set_title(note, loc="right", fontsize=SMALL + 1)
    _label_round_axis(bottom)
    return fig


def _finite_points(points: Iterable[tuple[int, float]]) -> list[tuple[int, float]]:
    return sorted(point for point in points if math.isfinite(point[1]))


def _draw_line(
    ax: Axes, points: list[tuple[int, float]], color: str, label: str
) -> None:
    ax.set_ylabel(label, fontsize=TEXT)
    ax.grid(color="0.85", linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)
    if not points:
        ax.set_yticks([])
        message = f"no {label.removesuffix(' (%)')} recorded"
        style: dict[str, Any] = {"ha": "center", "va": "center", "color": "0.3"}
        ax.text(0.5, 0.5, message, transform=ax.transAxes, fontsize=TEXT + 1, **style)
    # Dots show which rounds were measured; too many would overlap.
    marker = "o" if len(points) <= 60 else ""
    x, y = [r for r, _ in points], [value for _, value in points]
    ax.plot(x, y, color=color, linewidth=1.8, marker=marker, markersize=4.5)


class _ScoreTable(NamedTuple):
    layers: list[str]
    first_round: int
    z: NDArray[np.float64]
    """Scores, layers x rounds."""
    selected: list[tuple[int, int]]
    """The (round, row) of each selected layer."""


def plot_scores(records: Sequence[RoundRecord], title: str) -> Figure | None:
    """Draw the scores as a layers x rounds map with the selection marked.

    Layers appear in the order of their first score; without any there is no figure.
    """
    table = _score_table(records)
    if not table.layers:
        return None
    (n_layers, n_rounds), first = table.z.shape, table.first_round
    width = min(max(4 + 0.2 * n_rounds, 7.5), 16)
    height = min(max(2.2 + 0.32 * n_layers, 3.4), 14)
    cell = (72 * (width - 2.5) / n_rounds, 72 * (height - 1.7) / n_layers)
    fig = new_figure(width, height, title)
    ax = fig.subplots()
    ax.patch.set(**_NO_SCORE)
    edges = (first - 0.5, first + n_rounds - 0.5, n_layers - 0.5, -0.5)
    image = ax.imshow(table.z, cmap="viridis", extent=edges, **HEAT_MAP)
    bar = fig.colorbar(image, ax=ax, pad=0.02, aspect=30)
    bar.set_label("agreement z (mean cosine)", fontsize=TEXT)
    _mark_cells(ax, table.selected, cell)
    # Neighbouring layers differ in the end of their dotted names.
    names = [x if len(x) <= 30 else f"…{x[-29:]}" for x in table.layers]
    step = tick_step(LINE_HEIGHT / cell[1])
    ax.set_yticks(range(0, n_layers, step), names[::step], fontsize=SMALL)
    ax.set_ylabel("layer (model order)", fontsize=TEXT)
    _label_round_axis(ax)
    label = "layer trained with feedback alignment in that round"
    handles: list[Line2D | Patch] = [Line2D([], [], ms=7, label=label, **_MARK)]
    if np.isnan(table.z).any():
        handles.append(Patch(label="no score", **_NO_SCORE))
    style: dict[str, Any] = {"ncols": 2, "frameon": False, "fontsize": SMALL + 1}
    fig.legend(handles=handles, loc="outside lower center", **style)
    return fig


def _score_table(records: Sequence[RoundRecord]) -> _ScoreTable:
    rows = {r.server_round: r for r in records if r.scores or r.selected}
    # Scores first: they name every layer in model order, unlike the selection.
    names = [name for record in rows.values() for name in record.scores]
    names += [name for record in rows.values() for name in record.selected]
    index = {name: i for i, name in enumerate(dict.fromkeys(names))}
    first, last = min(rows, default=1), max(rows, default=0)
    z = np.full((len(index), last - first + 1), np.nan)
    selected = []
    for server_round, record in rows.items():
        for name, score in record.scores.items():
            if math.isfinite(score):
                z[index[name], server_round - first] = score
        selected += [(server_round, index[name]) for name in record.selected]
    return _ScoreTable(list(index), first, z, selected)


def _mark_cells(
    ax: Axes, cells: list[tuple[int, int]], cell: tuple[float, float]
) -> None:
    """Draw white boxes with a black rim; `cell` is the size of a cell in points."""
    rounds, rows = [r for r, _ in cells], [row for _, row in cells]
    # In narrow cells a box fills the width, so that neighbours form a band.
    width = min(max(0.6 * cell[0], min(1.3 * cell[0], 2.5), 1), 7)
    height = min(max(0.3 * cell[1], 1), 7)
    # All rims are below all faces, so that no rim separates neighbours.
    for color, rim in (("black", min(0.8, 0.25 * min(cell))), ("white", 0.0)):
        w, h = width + 2 * rim, height + 2 * rim
        box = [(-w, -h), (w, -h), (w, h), (-w, h), (-w, -h)]
        ax.plot(rounds, rows, ls="", marker=box, ms=max(w, h), mew=0, color=color)


def plot_cosines(records: Sequence[RoundRecord], title: str) -> Figure | None:
    """Draw a histogram of the scores of round 1, with a stroke for each layer.

    Without scores in round 1 there is no figure.
    """
    cosines = list(first_cosines(records).values())
    if not cosines:
        return None
    counts, edges = cosine_histogram(cosines)
    fig = new_figure(8, 4, title)
    # The strokes have their own axes: over the bars they would be hard to see.
    ax, strip = fig.subplots(2, 1, sharex=True, height_ratios=[8, 1])
    ax.bar(
        edges[:-1], counts, edges[1:] - edges[:-1], align="edge", color=BLUE, ec="white"
    )
    note = f"round 1: {len(cosines)} layers, skewness {skewness(cosines):+.2f}"
    ax.set_title(note, loc="right", fontsize=SMALL + 1)
    ax.set_ylabel("layers", fontsize=TEXT)
    ax.yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    ax.grid(axis="y", color="0.85", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    style: dict[str, Any] = {"colors": VERMILLION, "linewidths": 1.5}
    strip.eventplot([cosines], lineoffsets=0.5, linelengths=0.8, **style)
    strip.set_ylim(0, 1)
    strip.set_yticks([])
    strip.spines[["top", "left", "right"]].set_visible(False)
    strip.set_xlabel(
        "agreement z (mean cosine), a stroke for each layer", fontsize=TEXT
    )
    return fig


def _label_round_axis(ax: Axes) -> None:
    """Label the x axis as rounds, with whole numbers only."""
    ticks = MaxNLocator(integer=True, min_n_ticks=1, steps=[1, 2, 5, 10])
    ax.xaxis.set_major_locator(ticks)
    ax.set_xlabel("round", fontsize=TEXT)


ROUND_PLOTS: dict[str, Callable[[Sequence[RoundRecord], str], Figure | None]] = {
    "progress.png": plot_progress,
    "scores.png": plot_scores,
    "cosines.png": plot_cosines,
}
"""The plots by the names of their files; one that returns None writes none."""
