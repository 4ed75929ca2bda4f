"""Pictures of a finished run: progress, layer scores and the data partition.

The server runs in a non-main thread, where pyplot's global state and GUI
backends are unsafe; every picture is a free-standing `Figure` drawn with Agg.
"""

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

_Rounds = Sequence[Mapping[str, Any]]

_DPI = 130
_BLUE, _VERMILLION = "#0072B2", "#D55E00"  # Okabe-Ito
_TEXT, _SMALL = 11, 9  # font sizes in points
_LINE = 1.4 * _SMALL  # points that one line of tick labels takes
_MAP: dict[str, Any] = {"aspect": "auto", "interpolation": "nearest"}
# Hatching tells a missing score from the map even without colour vision.
_GAP: dict[str, Any] = {"facecolor": "0.75", "edgecolor": "0.5", "hatch": "////"}
_MARK: dict[str, Any] = {"marker": "s", "mfc": "white", "mec": "black", "ls": ""}


class _ScoreTable(NamedTuple):
    """Layers x rounds view of the log; `marks` holds (round, row) pairs."""

    layers: list[str]
    first_round: int
    z: NDArray[np.float64]
    marks: list[tuple[int, int]]


def plot_progress(rounds: _Rounds, path: Path, *, title: str) -> None:
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
    _save(_progress_figure(rounds, title), path)


def plot_scores(rounds: _Rounds, path: Path, *, title: str) -> None:
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
    _save(_partition_figure(counts, class_names, title), path)


def _progress_figure(rounds: _Rounds, title: str) -> Figure:
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
    return fig


def _series(rounds: _Rounds, key: str) -> list[tuple[int, float]]:
    points = [(int(row["round"]), _number(row.get(key))) for row in rounds]
    return sorted(point for point in points if math.isfinite(point[1]))


def _draw_line(
    ax: Axes, points: list[tuple[int, float]], color: str, label: str
) -> None:
    ax.set_ylabel(label, fontsize=_TEXT)
    ax.grid(color="0.85", linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)
    if not points:
        ax.set_yticks([])
        _centred(ax, f"no {label.removesuffix(' (%)')} recorded")
    # Dots show which rounds were measured; past some number they only smear.
    dot = "o" if len(points) <= 60 else ""
    x, y = [r for r, _ in points], [value for _, value in points]
    ax.plot(x, y, color=color, linewidth=1.8, marker=dot, markersize=4.5)


def _score_table(rounds: _Rounds) -> _ScoreTable:
    rows = {int(r["round"]): r for r in rounds if r.get("scores") or r.get("selected")}
    # Scores come first: they name every layer in model order, a selection does not.
    names = [
        name
        for key in ("scores", "selected")
        for row in rows.values()
        for name in row.get(key) or ()
    ]
    index = {name: i for i, name in enumerate(dict.fromkeys(names))}
    first, last = min(rows, default=1), max(rows, default=0)
    z = np.full((len(index), last - first + 1), np.nan)
    marks = []
    for number, row in rows.items():
        for name, score in (row.get("scores") or {}).items():
            z[index[name], number - first] = _number(score)
        marks += [(number, index[name]) for name in row.get("selected") or ()]
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
    image = ax.imshow(table.z, cmap="viridis", extent=edges, **_MAP)
    bar = fig.colorbar(image, ax=ax, pad=0.02, aspect=30)
    bar.set_label("agreement z (mean cosine)", fontsize=_TEXT)
    _draw_marks(ax, table.marks, cell)
    names = [_short(name) for name in table.layers]
    step = _tick_step(_LINE / cell[1])
    ax.set_yticks(range(0, n_layers, step), names[::step], fontsize=_SMALL)
    ax.set_ylabel("layer (model order)", fontsize=_TEXT)
    _round_axis(ax)
    used = "layer trained with feedback alignment in that round"
    handles: list[Line2D | Patch] = [Line2D([], [], ms=7, label=used, **_MARK)]
    if np.isnan(table.z).any():
        handles.append(Patch(label="no score", **_GAP))
    look: dict[str, Any] = {"ncols": 2, "frameon": False, "fontsize": _SMALL + 1}
    fig.legend(handles=handles, loc="outside lower center", **look)
    return fig


def _draw_marks(
    ax: Axes, marks: list[tuple[int, int]], cell: tuple[float, float]
) -> None:
    """Draw white boxes with a black rim; `cell` is a cell's size in points."""
    rounds, rows = [r for r, _ in marks], [row for _, row in marks]
    # In narrow cells a mark fills the width, so that a run of them forms a band.
    width = min(max(0.6 * cell[0], min(1.3 * cell[0], 2.5), 1), 7)
    height = min(max(0.3 * cell[1], 1), 7)
    # All rims go below all faces: between neighbours no rim is left over.
    for color, rim in (("black", min(0.8, 0.25 * min(cell))), ("white", 0.0)):
        w, h = width + 2 * rim, height + 2 * rim
        box = [(-w, -h), (w, -h), (w, h), (-w, h), (-w, -h)]
        ax.plot(rounds, rows, ls="", marker=box, ms=max(w, h), mew=0, color=color)


def _partition_figure(
    counts: Sequence[Sequence[int]], class_names: Sequence[str] | None, title: str
) -> Figure:
    table = np.asarray(counts, dtype=np.int64)
    if not table.size:
        return _message_figure("no partition: no clients or no classes", title)
    n_clients, n_classes = table.shape
    names = list(map(str, range(n_classes)) if class_names is None else class_names)
    if len(names) != n_classes:
        raise ValueError(f"{len(names)} class names for {n_classes} classes")
    width = min(max(0.5 * n_classes, 3.5), 12)
    height = min(max(0.28 * n_clients, 1.8), 12)
    cell = (72 * width / n_classes, 72 * height / n_clients)
    fig = _new_figure(width + 3.5, height + 1.6, title)
    ax, sizes = fig.subplots(1, 2, sharey=True, width_ratios=[width, 1.2])
    # Most counts of a skewed split are small: a linear scale would hide them.
    norm = PowerNorm(0.5, vmin=0, vmax=max(1, table.max()))
    # Classes a client lacks stay blank: they are what one looks for first.
    image = ax.imshow(np.ma.masked_equal(table, 0), cmap="viridis_r", norm=norm, **_MAP)
    bar = fig.colorbar(image, ax=[ax, sizes], pad=0.02, aspect=30)
    bar.set_label("samples (root scale)", fontsize=_TEXT)
    _draw_counts(ax, table, cell)
    _label_classes(ax, names, cell[0])
    ax.set_yticks(range(0, n_clients, _tick_step(_LINE / cell[1])))
    ax.set_ylabel("client (partition id)", fontsize=_TEXT)
    _draw_sizes(sizes, table.sum(axis=1))
    return fig


def _label_classes(ax: Axes, names: list[str], room: float) -> None:
    names = [_short(name) for name in names]
    flat = _text_width(names) <= room
    step = 1 if flat else _tick_step(_LINE / room)
    ax.set_xticks(range(0, len(names), step), names[::step], fontsize=_SMALL)
    ax.tick_params(axis="x", labelrotation=0 if flat else 90)
    ax.set_xlabel("class (blank cell: no samples)", fontsize=_TEXT)


def _draw_sizes(ax: Axes, totals: NDArray[np.int64]) -> None:
    ax.barh(range(len(totals)), totals, height=0.7, color=_BLUE)
    ax.set_xlabel("samples\nper client", fontsize=_TEXT)
    ax.tick_params(axis="y", left=False, labelleft=False)
    ax.xaxis.set_major_locator(MaxNLocator(2, integer=True, steps=[1, 2, 5, 10]))
    ax.spines[["top", "right"]].set_visible(False)


def _draw_counts(ax: Axes, table: NDArray[np.int64], cell: tuple[float, float]) -> None:
    if _text_width([str(table.max())]) > cell[0] or cell[1] < _LINE:
        return
    for row, column in np.argwhere(table):
        count = int(table[row, column])
        ink = "white" if count > table.max() / 4 else "black"
        look: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": _SMALL}
        ax.text(column, row, str(count), color=ink, **look)


def _text_width(texts: Sequence[str]) -> float:
    return 0.65 * _SMALL * max(map(len, texts)) + 4


def _tick_step(need: float) -> int:
    """Return the round number of cells per label that is at least `need`."""
    return next(step for step in (1, 2, 5, 10, 20, 50, math.ceil(need)) if step >= need)


def _short(name: str) -> str:
    # The end of a dotted layer name is what tells it from its neighbours.
    return name if len(name) <= 30 else "…" + name[-29:]


def _number(value: float | None) -> float:
    number = math.nan if value is None else float(value)
    return number if math.isfinite(number) else math.nan


def _round_axis(ax: Axes) -> None:
    steps = [1, 2, 5, 10]
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, steps=steps))
    ax.set_xlabel("round", fontsize=_TEXT)


def _message_figure(message: str, title: str) -> Figure:
    fig = _new_figure(7, 3, title)
    ax = fig.subplots()
    ax.set_axis_off()
    _centred(ax, message)
    return fig


def _centred(ax: Axes, message: str) -> None:
    look: dict[str, Any] = {"ha": "center", "va": "center", "color": "0.3"}
    ax.text(0.5, 0.5, message, transform=ax.transAxes, fontsize=_TEXT + 1, **look)


def _new_figure(width: float, height: float, title: str) -> Figure:
    fig = Figure(figsize=(width, height), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(fig)
    heading = textwrap.fill(title, int(9 * width))
    fig.suptitle(heading, fontsize=_TEXT + 2, parse_math=False)
    return fig


def _save(fig: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, format="png", dpi=_DPI)
