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

WIDTH, HEIGHT = 320, 190
LEFT, RIGHT, TOP, BOTTOM = 44, 14, 8, 34
LINE_STYLES = 8  # line styles that the style sheet has

CurvePoint = tuple[float, float, float]  # a mean, and both ends of its band


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
    """Draw curves over rounds, with at least one point in all.

    A ``zero_line`` is thin and makes 0 part of the scale. ``scale_points`` are not
    drawn, but part of the scale: charts with the same ones have the same scale.
    """
    points = [*scale_points, *(p for curve in curves for p in curve.points.values())]
    rounds = [number for curve in curves for number in curve.points]
    zeros = [0.0] * zero_line
    lowest = min([*(low for _, low, _ in points), *zeros])
    highest = max([*(high for _, _, high in points), *zeros])
    y = _Scale(lowest, highest, HEIGHT - BOTTOM, TOP)
    left, y_axis = _y_axis(y, unit)
    x = _Scale(min(rounds), max(rounds), left, WIDTH - RIGHT)
    parts = [y_axis, _x_axis(x, "round", integer=True)]
    if zero_line:
        parts.append(f'<path class="zero" d="M{left} {y(0):.1f}H{WIDTH - RIGHT}"/>')
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
        parts.append(_text(round(left - 5), top + 13, bar.label, "end"))
        parts.append(_rectangle("bar s1", left, top + 2, x(bar.share) - left, 12))
        text, end = f"{bar.share:.1f}", x(bar.share)
        if bar.paper is not None:
            text += f" (paper {bar.paper:.1f})"
            end = max(end, x(bar.paper))
            parts.append(_rectangle("bar s0", left, top + 15, x(bar.paper) - left, 5))
        parts.append(_text(end + 4, top + 14, text))
    return _svg(WIDTH, height, title, parts)


def histogram(
    counts: NDArray[np.int64], edges: NDArray[np.float64], *, title: str
) -> str:
    """Draw the number of layers in each bin of their cosines."""
    y = _Scale(0, float(counts.max()), HEIGHT - BOTTOM, TOP)
    left, y_axis = _y_axis(y, "layers", integer=True)
    x = _Scale(float(edges[0]), float(edges[-1]), left, WIDTH - RIGHT)
    parts = [y_axis, _x_axis(x, "cosine", integer=False)]
    for count, low, high in zip(counts, edges[:-1], edges[1:], strict=True):
        start, top = x(float(low)), y(float(count))
        width, height = x(float(high)) - start - 0.5, HEIGHT - BOTTOM - top
        parts.append(_rectangle("bar s1", start, top, width, height))
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
        y = (i + 0.75) * row_height
        parts.append(_text(left - 5, y, _shorten(layer), "end small"))
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
            parts.append(_text(x(tick), height + 13, f"{tick:g}", "middle"))
    parts.append(_text(round((left + width) / 2), height + 27, "round", "middle"))
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


def _y_axis(y: _Scale, unit: str, *, integer: bool = False) -> tuple[int, str]:
    """Return the left margin, wide enough for the labels, and the axis."""
    labels = {tick: f"{tick:g}" for tick in _ticks(y.low, y.high, integer=integer)}
    # In wide fonts a digit takes 7 units, a sign at most 4.
    widths = [sum(7 if c.isalnum() else 4 for c in x) for x in labels.values()]
    left = max([LEFT, *(width + 5 for width in widths)])
    parts = [_text(2, HEIGHT - 4, unit)]
    for tick, label in labels.items():
        parts.append(f'<path class="grid" d="M{left} {y(tick):.1f}H{WIDTH - RIGHT}"/>')
        parts.append(_text(left - 5, y(tick) + 4, label, "end"))
    return left, "".join(parts)


def _x_axis(x: _Scale, name: str, *, integer: bool) -> str:
    parts = [
        _text(x(tick), HEIGHT - BOTTOM + 14, f"{tick:g}", "middle")
        for tick in _ticks(x.low, x.high, integer=integer)
    ]
    middle = round((x.start + WIDTH - RIGHT) / 2)
    return "".join([*parts, _text(middle, HEIGHT - 4, name, "middle")])


def _text(x: float, y: float, text: str, css_class: str = "start") -> str:
    position = f'x="{x:.1f}" y="{y:.1f}"'
    return f'<text class="{css_class}" {position}>{escape(text)}</text>'


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
