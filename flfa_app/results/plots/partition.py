"""Plot of the number of samples of each class on each client."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from flfa_app.results.plots.figure import (
    BLUE,
    HEAT_MAP,
    LINE_HEIGHT,
    SMALL,
    TEXT,
    new_figure,
    text_width,
    tick_step,
)


def plot_partition(
    counts: Sequence[Sequence[int]], class_names: Sequence[str], title: str
) -> Figure:
    """Draw the number of samples of each class (columns) on each client (rows)."""
    table = np.asarray(counts, dtype=np.int64)
    n_clients, n_classes = table.shape
    width = min(max(0.5 * n_classes, 3.5), 12)
    height = min(max(0.28 * n_clients, 1.8), 12)
    cell = (72 * width / n_classes, 72 * height / n_clients)
    fig = new_figure(width + 3.5, height + 1.6, title)
    ax, sizes = fig.subplots(1, 2, sharey=True, width_ratios=[width, 1.2])
    # In a skewed partition most counts are small; a linear scale would hide them.
    norm = PowerNorm(0.5, vmin=0, vmax=max(1, table.max()))
    # Classes that a client does not have stay blank, so that they stand out.
    image = ax.imshow(
        np.ma.masked_equal(table, 0), cmap="viridis_r", norm=norm, **HEAT_MAP
    )
    bar = fig.colorbar(image, ax=[ax, sizes], pad=0.02, aspect=30)
    bar.set_label("samples (root scale)", fontsize=TEXT)
    _draw_counts(ax, table, cell)
    _label_classes(ax, class_names, cell[0])
    ax.set_yticks(range(0, n_clients, tick_step(LINE_HEIGHT / cell[1])))
    ax.set_ylabel("client (partition id)", fontsize=TEXT)
    _draw_sizes(sizes, table.sum(axis=1))
    return fig


def _label_classes(ax: Axes, classes: Sequence[str], cell_width: float) -> None:
    names = [name if len(name) <= 20 else f"{name[:19]}…" for name in classes]
    horizontal = text_width(names) <= cell_width
    step = 1 if horizontal else tick_step(LINE_HEIGHT / cell_width)
    ax.set_xticks(range(0, len(names), step), names[::step], fontsize=SMALL)
    ax.tick_params(axis="x", labelrotation=0 if horizontal else 90)
    ax.set_xlabel("class (blank cell: no samples)", fontsize=TEXT)


def _draw_sizes(ax: Axes, totals: NDArray[np.int64]) -> None:
    ax.barh(range(len(totals)), totals, height=0.7, color=BLUE)
    ax.set_xlabel("samples\nper client", fontsize=TEXT)
    ax.tick_params(axis="y", left=False, labelleft=False)
    ax.xaxis.set_major_locator(MaxNLocator(2, integer=True, steps=[1, 2, 5, 10]))
    ax.spines[["top", "right"]].set_visible(False)


def _draw_counts(ax: Axes, table: NDArray[np.int64], cell: tuple[float, float]) -> None:
    if text_width([str(table.max())]) > cell[0] or cell[1] < LINE_HEIGHT:
        return
    for row, column in np.argwhere(table):
        count = int(table[row, column])
        colour = "white" if count > table.max() / 4 else "black"
        style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": SMALL}
        ax.text(column, row, str(count), color=colour, **style)
