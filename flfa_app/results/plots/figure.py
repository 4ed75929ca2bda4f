"""What all pictures share.

The server runs in a non-main thread, where pyplot's global state and GUI backends are
unsafe; every picture is a free-standing `Figure` drawn with Agg.
"""

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

BLUE, VERMILLION = "#0072B2", "#D55E00"  # Okabe-Ito
TEXT, SMALL = 11, 9  # font sizes in points
LINE = 1.4 * SMALL  # points that one line of tick labels takes
MAP: dict[str, Any] = {"aspect": "auto", "interpolation": "nearest"}
_DPI = 130


def new_figure(width: float, height: float, title: str) -> Figure:
    """Return an empty figure with a heading; sizes in inches."""
    fig = Figure(figsize=(width, height), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(fig)
    heading = textwrap.fill(title, int(9 * width))
    fig.suptitle(heading, fontsize=TEXT + 2, parse_math=False)
    return fig


def message_figure(message: str, title: str) -> Figure:
    """Return a picture that says why there is nothing to see."""
    fig = new_figure(7, 3, title)
    ax = fig.subplots()
    ax.set_axis_off()
    centred(ax, message)
    return fig


def save(fig: Figure, path: Path) -> None:
    """Write a figure as PNG; missing folders are created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, format="png", dpi=_DPI)


def centred(ax: Axes, message: str) -> None:
    """Write a message into the middle of empty axes."""
    look: dict[str, Any] = {"ha": "center", "va": "center", "color": "0.3"}
    ax.text(0.5, 0.5, message, transform=ax.transAxes, fontsize=TEXT + 1, **look)


def round_axis(ax: Axes) -> None:
    """Label the x axis as rounds, with whole numbers only."""
    steps = [1, 2, 5, 10]
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, steps=steps))
    ax.set_xlabel("round", fontsize=TEXT)


def tick_step(need: float) -> int:
    """Return the round number of cells per label that is at least `need`."""
    return next(step for step in (1, 2, 5, 10, 20, 50, math.ceil(need)) if step >= need)


def text_width(texts: Sequence[str]) -> float:
    """Return the points the widest of the texts takes."""
    return 0.65 * SMALL * max(map(len, texts)) + 4


def short(name: str) -> str:
    """Return a name that fits beside an axis."""
    # The end of a dotted layer name is what tells it from its neighbours.
    return name if len(name) <= 30 else "…" + name[-29:]
