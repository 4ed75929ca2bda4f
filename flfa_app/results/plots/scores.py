"""Plot of every layer's agreement by round, with the selected layers marked."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

from flfa_app.results.plots.figure import (
    HEAT_MAP,
    LINE_HEIGHT,
    SMALL,
    TEXT,
    label_round_axis,
    message_figure,
    new_figure,
    save,
    shorten_layer_name,
    tick_step,
)
from flfa_app.results.records import RoundRecord

# Hatching distinguishes missing scores from dark cells without relying on colour.
_NO_SCORE: dict[str, Any] = {"facecolor": "0.75", "edgecolor": "0.5", "hatch": "////"}
_MARK: dict[str, Any] = {"marker": "s", "mfc": "white", "mec": "black", "ls": ""}


class _ScoreTable(NamedTuple):
    """Scores as an array of layers x rounds.

    `selected` has the (round, row) of each selected layer.
    """

    layers: list[str]
    first_round: int
    z: NDArray[np.float64]
    selected: list[tuple[int, int]]


def plot_scores(records: Sequence[RoundRecord], path: Path, *, title: str) -> None:
    """Draw the cosine scores as a layers x rounds map with the selection marked.

    Parameters
    ----------
    records
        The rounds of a run; layers appear in the order of their first score.
    path
        PNG file to write; missing folders are created.
    title
        Heading of the figure.
    """
    save(_scores_figure(_score_table(records), title), path)


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


def _scores_figure(table: _ScoreTable, title: str) -> Figure:
    if not table.layers:
        return message_figure("no layer scores: FLFA was off", title)
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
    names = [shorten_layer_name(name) for name in table.layers]
    step = tick_step(LINE_HEIGHT / cell[1])
    ax.set_yticks(range(0, n_layers, step), names[::step], fontsize=SMALL)
    ax.set_ylabel("layer (model order)", fontsize=TEXT)
    label_round_axis(ax)
    label = "layer trained with feedback alignment in that round"
    handles: list[Line2D | Patch] = [Line2D([], [], ms=7, label=label, **_MARK)]
    if np.isnan(table.z).any():
        handles.append(Patch(label="no score", **_NO_SCORE))
    style: dict[str, Any] = {"ncols": 2, "frameon": False, "fontsize": SMALL + 1}
    fig.legend(handles=handles, loc="outside lower center", **style)
    return fig


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
