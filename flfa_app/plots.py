"""Pictures of a finished run: progress, layer scores and the data partition.

The server runs in a non-main thread, where pyplot's global state and GUI
backends are unsafe; every picture is a free-standing `Figure` drawn with Agg.
"""

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

Rounds = Sequence[Mapping[str, Any]]

_DPI = 130
_BLUE, _VERMILLION = "#0072B2", "#D55E00"  # Okabe-Ito
_TEXT, _SMALL = 11, 9  # font sizes in points
# Hatching tells a missing score from the map even without colour vision.
_GAP: dict[str, Any] = {"facecolor": "0.75", "edgecolor": "0.5", "hatch": "////"}


class _ScoreTable(NamedTuple):
    """Layers x rounds view of the log; `marks` holds (round, row) pairs."""

    layers: list[str]
    first_round: int
    z: NDArray[np.float64]
    marks: list[tuple[int, int]]


def plot_progress(rounds: Rounds, path: Path, *, title: str) -> None:
    """Draw test accuracy and local drift over the rounds.

    Parameters
    ----------
    rounds
        Rows of the metrics log; null accuracies and drifts are skipped.
    path
        PNG file to write; missing folders are created.
    title
        Heading of the picture.
    """
    fig = _new_figure(8, 6, title)
    top, bottom = fig.subplots(2, 1, sharex=True)
    accuracy = [(r, 100 * value) for r, value in _series(rounds, "accuracy")]
    _draw_line(top, accuracy, _BLUE, "test accuracy (%)")
    _draw_line(bottom, _series(rounds, "drift"), _VERMILLION, "local drift H")
    if accuracy:
        best_round, best = max(accuracy, key=lambda point: point[1])
        note = f"best {best:.1f} % (round {best_round}), last {accuracy[-1][1]:.1f} %"
        top.set_title(note, loc="right", fontsize=_SMALL + 1)
    _round_axis(bottom)
    _save(fig, path)


def plot_scores(rounds: Rounds, path: Path, *, title: str) -> None:
    """Draw the cosine scores as a layers x rounds map with the selection marked.

    Parameters
    ----------
    rounds
        Rows of the metrics log; layers keep the order of their first mention.
    path
        PNG file to write; missing folders are created.
    title
        Heading of the picture.
    """
    _save(_scores_figure(_score_table(rounds), title), path)


def plot_partition(
    counts: Sequence[Sequence[int]],
    path: Path,
    *,
    title: str,
    class_names: Sequence[str] | None = None,
) -> None:
    """Draw how many samples of each class each client holds.

    Parameters
    ----------
    counts
        One row per client, one column per class.
    path
        PNG file to write; missing folders are created.
    title
        Heading of the picture.
    class_names
        One name per class; the class indices by default.
    """
    table = np.asarray(counts, dtype=np.int64)
    n_classes = table.shape[1] if table.ndim == 2 else 0
    names = list(class_names or map(str, range(n_classes)))
    if table.size and len(names) != n_classes:
        raise ValueError(f"{len(names)} class names for {n_classes} classes")
    _save(_partition_figure(table, names, title), path)


def _series(rounds: Rounds, key: str) -> list[tuple[int, float]]:
    points = [(int(row["round"]), _number(row.get(key))) for row in rounds]
    return sorted(point for point in points if math.isfinite(point[1]))


def _draw_line(
    ax: Axes, points: list[tuple[int, float]], color: str, label: str
) -> None:
    ax.set_ylabel(label, fontsize=_TEXT)
    ax.grid(color="0.85", linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)
    if points:
        # Dots show which rounds were measured; past some number they only smear.
        dot = "o" if len(points) <= 60 else ""
        ax.plot(*zip(*points), color=color, lw=1.8, marker=dot, markersize=4.5)
    else:
        ax.set_yticks([])
        _centred(ax, f"no {label} recorded")


def _score_table(rounds: Rounds) -> _ScoreTable:
    rows = [row for row in rounds if row.get("scores") or row.get("selected")]
    # Scores come first: they name every layer in model order, a selection does not.
    names = [
        name for key in ("scores", "selected") for row in rows for name in row[key]
    ]
    index = {name: i for i, name in enumerate(dict.fromkeys(names))}
    numbers = [int(row["round"]) for row in rows]
    first, last = min(numbers, default=1), max(numbers, default=0)
    z = np.full((len(index), last - first + 1), np.nan)
    for number, row in zip(numbers, rows, strict=True):
        for name, score in row["scores"].items():
            z[index[name], number - first] = _number(score)
    marks = [
        (number, index[name])
        for number, row in zip(numbers, rows, strict=True)
        for name in row["selected"]
    ]
    return _ScoreTable(list(index), first, z, marks)


def _scores_figure(table: _ScoreTable, title: str) -> Figure:
    if not table.layers:
        return _message_figure("no layer scores: FLFA was off", title)
    (n_layers, n_rounds), first = table.z.shape, table.first_round
    width = min(max(4 + 0.2 * n_rounds, 7.5), 16)
    height = min(max(2.2 + 0.32 * n_layers, 3.4), 14)
    cell = (72 * (width - 2.5) / n_rounds, 72 * (height - 1.7) / n_layers)
    fig = _new_figure(width, height, title)
    ax = fig.subplots()
    ax.patch.set(**_GAP)
    edges = (first - 0.5, first + n_rounds - 0.5, n_layers - 0.5, -0.5)
    low, high = _colour_limits(table.z)
    look: dict[str, Any] = {"cmap": "viridis", "interpolation": "nearest"}
    image = ax.imshow(table.z, vmin=low, vmax=high, aspect="auto", extent=edges, **look)
    bar = fig.colorbar(image, ax=ax, pad=0.02, aspect=30)
    bar.set_label("agreement z (mean cosine)", fontsize=_TEXT)
    _draw_marks(ax, table.marks, cell)
    _name_ticks(ax, "y", table.layers, cell[1])
    _round_axis(ax)
    ax.set_ylabel("layer (model order)", fontsize=_TEXT)
    used = "layer trained with feedback alignment in that round"
    face = {"mfc": "white", "mec": "black"}
    handles: list[Artist] = [
        Line2D([], [], ls="", marker="s", ms=7, label=used, **face)
    ]
    if np.isnan(table.z).any():
        handles.append(Patch(label="no score", **_GAP))
    _legend_below(fig, handles)
    return fig


def _colour_limits(z: NDArray[np.float64]) -> tuple[float, float]:
    known = z[np.isfinite(z)]
    if not known.size:
        return -1.0, 1.0
    low, high = float(known.min()), float(known.max())
    # A floor on the range keeps noise from looking like structure.
    slack = max(0.0, 0.1 - (high - low)) / 2
    return low - slack, high + slack


def _draw_marks(
    ax: Axes, marks: list[tuple[int, int]], cell: tuple[float, float]
) -> None:
    """Put a white square with a black rim, narrow in narrow cells, on each mark."""
    rounds, rows = [r for r, _ in marks], [row for _, row in marks]
    width, height = min(max(0.6 * cell[0], 1.0), 7), min(max(0.35 * cell[1], 1.0), 7)
    # All rims go below all faces, so neighbouring marks merge into a clean band.
    for color, rim in (("black", 1.0), ("white", 0.0)):
        w, h = width + 2 * rim, height + 2 * rim
        box = [(-w, -h), (w, -h), (w, h), (-w, h), (-w, -h)]
        size = max(w, h)
        ax.plot(rounds, rows, ls="", marker=box, ms=size, color=color, mew=0)


def _partition_figure(table: NDArray[np.int64], names: list[str], title: str) -> Figure:
    if not table.size:
        return _message_figure("no partition: no clients or no classes", title)
    n_clients, n_classes = table.shape
    width = min(max(0.42 * n_classes, 3.5), 12)
    height = min(max(0.28 * n_clients, 1.6), 12)
    cell = (72 * width / n_classes, 72 * height / n_clients)
    fig = _new_figure(width + 2.5, height + 2, title)
    ax, sizes = fig.subplots(1, 2, sharey=True, width_ratios=[width, 1.2])
    # Bubbles rather than colours: an absent class stays blank and area adds up.
    largest, top = max(1, int(table.max())), min(0.95 * min(cell), 26)
    clients, labels = np.nonzero(table)
    areas = top**2 * table[clients, labels] / largest
    ax.scatter(labels, clients, s=np.maximum(areas, 0.6), color=_BLUE, linewidths=0)
    ax.set(xlim=(-0.6, n_classes - 0.4), ylim=(n_clients - 0.4, -0.6))
    _name_ticks(ax, "x", names, cell[0])
    _name_ticks(ax, "y", [str(i) for i in range(n_clients)], cell[1])
    ax.set_xlabel("class", fontsize=_TEXT)
    ax.set_ylabel("client (partition id)", fontsize=_TEXT)
    sizes.barh(range(n_clients), table.sum(axis=1), height=0.7, color=_VERMILLION)
    sizes.set_xlabel("samples\nper client", fontsize=_TEXT)
    sizes.tick_params(axis="y", left=False, labelleft=False)
    sizes.xaxis.set_major_locator(MaxNLocator(2, integer=True, steps=[1, 2, 5, 10]))
    sizes.spines[["top", "right"]].set_visible(False)
    unit = 10 ** (len(str(largest)) - 1)
    steps = sorted({max(1, unit // 5), unit, largest // unit * unit})
    dot: dict[str, Any] = {"ls": "", "marker": "o", "color": _BLUE, "mew": 0}
    _legend_below(
        fig,
        [
            Line2D([], [], ms=top * math.sqrt(n / largest), label=f"{n} samples", **dot)
            for n in steps
        ],
    )
    return fig


def _name_ticks(
    ax: Axes, axis: Literal["x", "y"], names: list[str], room: float
) -> None:
    """Label as many cells as fit when each has `room` points along the axis."""
    # The end of a dotted layer name is what tells it from its neighbours.
    names = [name if len(name) <= 30 else "…" + name[-29:] for name in names]
    flat = axis == "y" or 0.65 * _SMALL * max(map(len, names)) + 4 <= room
    need = math.ceil(1.4 * _SMALL / room) if axis == "y" or not flat else 1
    step = next(n for n in (1, 2, 5, 10, 20, 50, need) if n >= need)
    ticks = range(0, len(names), step)
    (ax.set_xticks if axis == "x" else ax.set_yticks)(ticks, names[::step])
    ax.tick_params(axis=axis, labelsize=_SMALL, labelrotation=0 if flat else 90)


def _round_axis(ax: Axes) -> None:
    steps = [1, 2, 5, 10]
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, steps=steps))
    ax.set_xlabel("round", fontsize=_TEXT)


def _number(value: float | None) -> float:
    number = math.nan if value is None else float(value)
    return number if math.isfinite(number) else math.nan


def _legend_below(fig: Figure, handles: list[Artist]) -> None:
    place: dict[str, Any] = {"loc": "outside lower center", "ncols": len(handles)}
    fig.legend(handles=handles, frameon=False, fontsize=_SMALL + 1, **place)


def _message_figure(message: str, title: str) -> Figure:
    fig = _new_figure(7, 3, title)
    ax = fig.subplots()
    ax.set_axis_off()
    _centred(ax, message)
    return fig


def _centred(ax: Axes, message: str) -> None:
    place: dict[str, Any] = {"ha": "center", "va": "center", "transform": ax.transAxes}
    ax.text(0.5, 0.5, message, fontsize=_TEXT + 1, color="0.3", **place)


def _new_figure(width: float, height: float, title: str) -> Figure:
    fig = Figure(figsize=(width, height), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(fig)
    heading = textwrap.fill(title, int(9 * width))
    fig.suptitle(heading, fontsize=_TEXT + 2, parse_math=False)
    return fig


def _save(fig: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, format="png", dpi=_DPI)
