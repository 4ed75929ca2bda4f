"""Small charts as SVG text, coloured by the style sheet of the report.

They are drawn by hand because a plotting library would add megabytes to a report that
is one file.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from matplotlib import colormaps
from matplotlib.image import imsave
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

__all__ = [
    "LINE_STYLES",
    "Bar",
    "Curve",
    "CurvePoint",
    "bar_chart",
    "heat_map",
    "histogram",
    "line_chart",
]

WIDTH, HEIGHT = 320, 190
LEFT, RIGHT, TOP, BOTTOM = 44, 14, 8, 34
LINE_STYLES = 8  # line styles that the style sheet has

CurvePoint = tuple[float, float, float]
"""A mean, and the lower and upper end of its band."""


@dataclass(frozen=True)
class Curve:
    """Means with their bands by round.

    ``attributes`` are HTML attributes of its element, ``style`` is the number of a line
    style, less than :data:`LINE_STYLES`.
    """

    label: str
    attributes: Mapping[str, str]
    style: int
    points: Mapping[int, CurvePoint]


@dataclass(frozen=True)
class Bar:
    """A share in per cent, and the published one."""

    label: str
    share: float
    paper: float | None


def line_chart(
    curves: Sequence[Curve],
    *,
    title: str,
    unit: str,
    zero_line: bool = False,
    scale_points: Collection[CurvePoint] = (),
) -> str:
    """Draw curves over rounds.

    Parameters
    ----------
    curves : Sequence[Curve]
        At least one point in all.
    title, unit : str
        Description of the chart, and unit of the y axis.
    zero_line : bool
        Include 0 in the scale, and mark it with a thin line.
    scale_points : Collection[tuple[float, float, float]]
        Points to include in the scale without drawing them. Charts with the same ones
        have the same scale.
    """
    points = [*scale_points, *(p for curve in curves for p in curve.points.values())]
    rounds = [number for curve in curves for number in curve.points]
    x = _Scale(min(rounds), max(rounds), LEFT, WIDTH - RIGHT)
    zeros = [0.0] * zero_line
    lowest = min([*(low for _, low, _ in points), *zeros])
    highest = max([*(high for _, _, high in points), *zeros])
    y = _Scale(lowest, highest, HEIGHT - BOTTOM, TOP)
    parts = [_y_axis(y, unit), _x_axis(x, "round", integer=True)]
    if zero_line:
        parts.append(f'<path class="zero" d="M{LEFT} {y(0):.1f}H{WIDTH - RIGHT}"/>')
    parts += [_draw_curve(curve, x, y) for curve in curves]
    return _svg(WIDTH, HEIGHT, title, parts)


def _draw_curve(curve: Curve, x: _Scale, y: _Scale) -> str:
    points = [
        (x(number), y(mean), y(low), y(high))
        for number, (mean, low, high) in curve.points.items()
    ]
    mean = "L".join(f"{px:.1f} {py:.1f}" for px, py, _, _ in points)
    if len(points) == 1:  # a line of length 0 would be invisible
        mean += f"L{points[0][0] + 3:.1f} {points[0][1]:.1f}"
    upper = "L".join(f"{px:.1f} {high:.1f}" for px, _, _, high in points)
    lower = "L".join(f"{px:.1f} {low:.1f}" for px, _, low, _ in reversed(points))
    attributes = "".join(
        f' {name}="{escape(value)}"' for name, value in curve.attributes.items()
    )
    return (
        f'<g class="s{curve.style}"{attributes}>'
        f"<title>{escape(curve.label)}</title>"
        f'<path class="band" d="M{upper}L{lower}Z"/>'
        f'<path class="line" d="M{mean}"/></g>'
    )


def bar_chart(bars: Sequence[Bar], *, title: str) -> str:
    """Draw horizontal bars, each with a thin bar of the published share beneath it."""
    left, row_height = 12 + 6.2 * max(len(bar.label) for bar in bars), 24
    height = row_height * len(bars) + 4
    largest = max([1.0, *(v for bar in bars for v in (bar.share, bar.paper or 0.0))])
    has_paper = any(bar.paper is not None for bar in bars)
    x = _Scale(0, largest, left, WIDTH - (112 if has_paper else 36))
    parts = []
    for i, bar in enumerate(bars):
        top = 2 + i * row_height
        parts.append(f'<text x="{left - 5:.0f}" y="{top + 13}" class="end">')
        parts.append(f"{escape(bar.label)}</text>")
        parts.append(_rectangle("bar s1", left, top + 2, x(bar.share) - left, 12))
        text, end = f"{bar.share:.1f}", x(bar.share)
        if bar.paper is not None:
            text += f" (paper {bar.paper:.1f})"
            end = max(end, x(bar.paper))
            parts.append(_rectangle("bar s0", left, top + 15, x(bar.paper) - left, 5))
        parts.append(f'<text x="{end + 4:.1f}" y="{top + 14}">{text}</text>')
    return _svg(WIDTH, height, title, parts)


def histogram(
    counts: NDArray[np.int64], edges: NDArray[np.float64], *, title: str
) -> str:
    """Draw the number of layers in each bin of their cosines."""
    x = _Scale(float(edges[0]), float(edges[-1]), LEFT, WIDTH - RIGHT)
    y = _Scale(0, float(counts.max()), HEIGHT - BOTTOM, TOP)
    parts = [_y_axis(y, "layers", integer=True), _x_axis(x, "cosine", integer=False)]
    for count, low, high in zip(counts, edges[:-1], edges[1:], strict=True):
        left, top = x(float(low)), y(float(count))
        width, height = x(float(high)) - left - 0.5, HEIGHT - BOTTOM - top
        parts.append(_rectangle("bar s1", left, top, width, height))
    return _svg(WIDTH, HEIGHT, title, parts)


def heat_map(
    layers: Sequence[str],
    scores: NDArray[np.float64],
    marks: Sequence[tuple[int, int]],
    *,
    first_round: int,
    title: str,
) -> str:
    """Draw scores, layers x rounds; ``marks`` are indices (layer, round) to mark.

    The scores are a picture of one pixel each, because shapes for fifty layers and a
    hundred rounds would be megabytes.
    """
    width, row_height = 640, 14 if len(layers) <= 30 else 9
    left = 12 + 5.6 * max(len(_shorten(layer)) for layer in layers)
    height = row_height * len(layers)
    num_rounds = scores.shape[1]
    step = (width - left - RIGHT) / num_rounds
    parts = [
        f'<image x="{left:.1f}" y="0" width="{width - left - RIGHT:.1f}" '
        f'height="{height}" preserveAspectRatio="none" href="{_png(scores)}"/>'
    ]
    label_every = 1 if row_height > 9 else 2
    for i, layer in list(enumerate(layers))[::label_every]:
        parts.append(
            f'<text class="end small" x="{left - 5:.1f}" '
            f'y="{(i + 0.75) * row_height:.1f}">{escape(_shorten(layer))}</text>'
        )
    side, inset = max(0.6 * step, min(step, 1.5)), 0.3 * row_height
    boxes = "".join(
        f"M{left + (column + 0.5) * step - side / 2:.1f} {i * row_height + inset:.1f}"
        f"h{side:.1f}v{row_height - 2 * inset:.1f}h{-side:.1f}z"
        for i, column in marks
    )
    parts.append(f'<path class="chosen" d="{boxes}"/>')
    last_round = first_round + num_rounds - 1
    x = _Scale(first_round - 0.5, last_round + 0.5, left, width - RIGHT)
    for tick in _ticks(first_round, last_round, integer=True):
        if first_round <= tick <= last_round:
            position = f'x="{x(tick):.1f}" y="{height + 13}"'
            parts.append(f'<text class="middle" {position}>{tick:g}</text>')
    position = f'x="{(left + width) / 2:.0f}" y="{height + 27}"'
    parts.append(f'<text class="middle" {position}>round</text>')
    return _svg(width, height + 32, title, parts)


class _Scale:
    """Maps numbers to coordinates; an empty range is widened around its value."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        if low == high:
            low, high = low - 0.5, high + 0.5
        self.low, self.high = low, high
        self.start, self.factor = start, (end - start) / (high - low)

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) * self.factor


def _ticks(low: float, high: float, *, integer: bool) -> list[float]:
    steps = [1, 2, 5, 10]
    ticks = MaxNLocator(5, integer=integer, steps=steps).tick_values(low, high)
    slack = 1e-9 * max(abs(low), abs(high), 1e-9)
    return [float(tick) for tick in ticks if low - slack <= tick <= high + slack]


def _y_axis(y: _Scale, unit: str, *, integer: bool = False) -> str:
    parts = [f'<text x="2" y="{HEIGHT - 4}">{escape(unit)}</text>']
    for tick in _ticks(y.low, y.high, integer=integer):
        parts.append(f'<path class="grid" d="M{LEFT} {y(tick):.1f}H{WIDTH - RIGHT}"/>')
        parts.append(
            f'<text class="end" x="{LEFT - 5}" y="{y(tick) + 4:.1f}">{tick:g}</text>'
        )
    return "".join(parts)


def _x_axis(x: _Scale, name: str, *, integer: bool) -> str:
    parts = []
    for tick in _ticks(x.low, x.high, integer=integer):
        position = f'x="{x(tick):.1f}" y="{HEIGHT - BOTTOM + 14}"'
        parts.append(f'<text class="middle" {position}>{tick:g}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        f'<text class="middle" x="{middle:.0f}" y="{HEIGHT - 4}">{escape(name)}</text>'
    )
    return "".join(parts)


def _rectangle(css_class: str, x: float, y: float, width: float, height: float) -> str:
    position = f'x="{x:.1f}" y="{y:.1f}"'
    size = f'width="{max(width, 0):.1f}" height="{height:.1f}"'
    return f'<rect class="{css_class}" {position} {size}/>'


def _svg(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(title, quote=True)}">{"".join(parts)}</svg>'
    )


def _png(scores: NDArray[np.float64]) -> str:
    """Return the scores as a data URL, one pixel each; grey for nan."""
    low, high = np.nanmin(scores), np.nanmax(scores)
    pixels = colormaps["viridis"]((scores - low) / (high - low or 1.0))
    pixels[np.isnan(scores)] = (0.6, 0.6, 0.6, 1.0)
    file = io.BytesIO()
    imsave(file, pixels, format="png")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _shorten(name: str) -> str:
    # Neighbouring layers differ in the end of their dotted names.
    return name if len(name) <= 26 else "…" + name[-25:]
