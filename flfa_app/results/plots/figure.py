"""Figures, text sizes and axes that all plots share.

The server runs in a non-main thread, where pyplot's global state and GUI backends are
unsafe. Every plot is a separate `Figure` drawn with Agg.
"""

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

BLUE, VERMILLION = "#0072B2", "#D55E00"  # Okabe-Ito
TEXT, SMALL = 11, 9  # font sizes in points
LINE_HEIGHT = 1.4 * SMALL  # points that one line of tick labels takes
HEAT_MAP: dict[str, Any] = {"aspect": "auto", "interpolation": "nearest"}
_DPI = 130


def new_figure(width: float, height: float, title: str) -> Figure:
    """Return an empty figure with a heading; sizes in inches."""
    fig = Figure(figsize=(width, height), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(fig)
    heading = textwrap.fill(title, int(9 * width))
    fig.suptitle(heading, fontsize=TEXT + 2, parse_math=False)
    return fig


def save_png(fig: Figure, path: Path) -> None:
    """Write a figure as PNG."""
    fig.savefig(path, format="png", dpi=_DPI)


def tick_step(minimum: float) -> int:
    """Return the smallest convenient number of cells per label, at least `minimum`."""
    steps = (1, 2, 5, 10, 20, 50, math.ceil(minimum))
    return next(step for step in steps if step >= minimum)


def text_width(texts: Sequence[str]) -> float:
    """Return an estimate of the width of the widest text, in points."""
    return 0.65 * SMALL * max(map(len, texts)) + 4
