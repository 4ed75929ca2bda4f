"""Accuracy and drift over the rounds."""

import math
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flfa_app.results.plots.figure import (
    BLUE,
    SMALL,
    TEXT,
    VERMILLION,
    Rounds,
    centred,
    new_figure,
    number,
    round_axis,
    save,
)


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
    save(_progress_figure(rounds, title), path)


def _progress_figure(rounds: Rounds, title: str) -> Figure:
    fig = new_figure(8, 6, title)
    top, bottom = fig.subplots(2, 1, sharex=True)
    accuracy = [(r, 100 * value) for r, value in _series(rounds, "accuracy")]
    _draw_line(top, accuracy, BLUE, "test accuracy (%)")
    _draw_line(bottom, _series(rounds, "drift"), VERMILLION, "local drift H")
    if accuracy:
        best_round, best = max(accuracy, key=lambda point: point[1])
        note = f"best {best:.1f} % (round {best_round}), last {accuracy[-1][1]:.1f} %"
        top.set_title(note, loc="right", fontsize=SMALL + 1)
    round_axis(bottom)
    return fig


def _series(rounds: Rounds, key: str) -> list[tuple[int, float]]:
    points = [(int(row["round"]), number(row.get(key))) for row in rounds]
    return sorted(point for point in points if math.isfinite(point[1]))


def _draw_line(
    ax: Axes, points: list[tuple[int, float]], color: str, label: str
) -> None:
    ax.set_ylabel(label, fontsize=TEXT)
    ax.grid(color="0.85", linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)
    if not points:
        ax.set_yticks([])
        centred(ax, f"no {label.removesuffix(' (%)')} recorded")
    # Dots show which rounds were measured; past some number they only smear.
    dot = "o" if len(points) <= 60 else ""
    x, y = [r for r, _ in points], [value for _, value in points]
    ax.plot(x, y, color=color, linewidth=1.8, marker=dot, markersize=4.5)
