"""Plot of accuracy and drift over the rounds."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flfa_app.results.plots.figure import (
    BLUE,
    SMALL,
    TEXT,
    VERMILLION,
    add_centred_text,
    label_round_axis,
    new_figure,
    save,
)
from flfa_app.results.records import RoundRecord


def plot_progress(records: Sequence[RoundRecord], path: Path, *, title: str) -> None:
    """Draw test accuracy and local drift over the rounds.

    Parameters
    ----------
    records
        The rounds of a run; those without an accuracy or a drift are skipped.
    path
        PNG file to write; missing folders are created.
    title
        Heading of the figure.
    """
    save(_progress_figure(records, title), path)


def _progress_figure(records: Sequence[RoundRecord], title: str) -> Figure:
    fig = new_figure(8, 6, title)
    top, bottom = fig.subplots(2, 1, sharex=True)
    accuracy = _finite_points(
        (record.server_round, 100 * record.evaluation.accuracy)
        for record in records
        if record.evaluation is not None
    )
    drift = _finite_points((record.server_round, record.drift) for record in records)
    _draw_line(top, accuracy, BLUE, "test accuracy (%)")
    _draw_line(bottom, drift, VERMILLION, "local drift H")
    if accuracy:
        best_round, best = max(accuracy, key=lambda point: point[1])
        note = f"best {best:.1f} % (round {best_round}), last {accuracy[-1][1]:.1f} %"
        top.set_title(note, loc="right", fontsize=SMALL + 1)
    label_round_axis(bottom)
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
        add_centred_text(ax, f"no {label.removesuffix(' (%)')} recorded")
    # Dots show which rounds were measured; too many would overlap.
    marker = "o" if len(points) <= 60 else ""
    x, y = [r for r, _ in points], [value for _, value in points]
    ax.plot(x, y, color=color, linewidth=1.8, marker=marker, markersize=4.5)
