"""Plot of the distribution of the layers' agreement in round 1."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from flfa_app.results.plots.figure import (
    BLUE,
    SMALL,
    TEXT,
    VERMILLION,
    message_figure,
    new_figure,
    save,
)
from flfa_app.results.records import RoundRecord
from flfa_app.results.round_metrics import cosine_histogram, first_cosines
from strategies.rules import skewness


def plot_cosines(records: Sequence[RoundRecord], path: Path, *, title: str) -> None:
    """Draw a histogram of the cosine scores of round 1, with a stroke for each layer.

    Parameters
    ----------
    records
        The rounds of a run.
    path
        PNG file to write; missing folders are created.
    title
        Heading of the figure.
    """
    save(_cosines_figure(records, title), path)


def _cosines_figure(records: Sequence[RoundRecord], title: str) -> Figure:
    cosines = list(first_cosines(records).values())
    if not cosines:
        return message_figure("no layer scores in round 1", title)
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
