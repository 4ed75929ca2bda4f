"""Small pictures as SVG text: no library in the page, colours from its style sheet."""

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

__all__ = ["Bar", "Line", "Point", "bars", "heat_map", "histogram", "line_chart"]

WIDTH, HEIGHT = 320, 190
LEFT, RIGHT, TOP, BOTTOM = 44, 14, 8, 34
STYLES = 8  # how many kinds of lines the style sheet tells apart

# Mean, low and high end of its band.
Point = tuple[float, float, float]


@dataclass(frozen=True)
class Line:
    """A mean with a band, by round; ``attributes`` go to its element."""

    name: str
    attributes: str
    style: int
    points: Mapping[int, Point]


@dataclass(frozen=True)
class Bar:
    """A share in per cent, and the paper's."""

    name: str
    ours: float
    paper: float | None


def line_chart(
    lines: Sequence[Line],
    *,
    title: str,
    unit: str,
    zero: bool = False,
    also: Collection[Point] = (),
) -> str:
    """Draw lines over rounds.

    With ``zero`` the scale has 0, as a thin line. Points that are ``also`` given have a
    place but are not drawn: pictures with the same points have the same scale.
    """
    points = [*also, *(point for line in lines for point in line.points.values())]
    rounds = [i for line in lines for i in line.points]
    x = _Scale(min(rounds), max(rounds), LEFT, WIDTH - RIGHT)
    ends = [0.0] * zero
    low = min([*(low for _, low, _ in points), *ends])
    high = max([*(high for _, _, high in points), *ends])
    y = _Scale(low, high, HEIGHT - BOTTOM, TOP)
    parts = [_y_axis(y, unit), _x_axis(x, "round", whole=True)]
    if zero:
        parts.append(f'<path class="zero" d="M{LEFT} {y(0):.1f}H{WIDTH - RIGHT}"/>')
    for line in lines:
        at = [(x(i), y(m), y(lo), y(hi)) for i, (m, lo, hi) in line.points.items()]
        mean = "L".join(f"{px:.1f} {pm:.1f}" for px, pm, _, _ in at)
        if len(at) == 1:  # one round: a line of no length would not be seen
            mean += f"L{at[0][0] + 3:.1f} {at[0][1]:.1f}"
        upper = "L".join(f"{px:.1f} {ph:.1f}" for px, _, _, ph in at)
        lower = "L".join(f"{px:.1f} {pl:.1f}" for px, _, pl, _ in reversed(at))
        parts.append(
            f'<g class="s{line.style % STYLES}"{line.attributes}>'
            f"<title>{escape(line.name)}</title>"
            f'<path class="band" d="M{upper}L{lower}Z"/>'
            f'<path class="line" d="M{mean}"/></g>'
        )
    return _svg(WIDTH, HEIGHT, title, parts)


def bars(found: Sequence[Bar], *, title: str) -> str:
    """Draw horizontal bars, the paper's thin and beneath ours."""
    left, row = 12 + 6.2 * max(len(bar.name) for bar in found), 24
    height = row * len(found) + 4
    most = max([1.0, *(v for b in found for v in (b.ours, b.paper or 0.0))])
    published = any(bar.paper is not None for bar in found)
    x = _Scale(0, most, left, WIDTH - (112 if published else 36))
    parts = []
    for i, bar in enumerate(found):
        top = 2 + i * row
        parts.append(f'<text x="{left - 5:.0f}" y="{top + 13}" class="end">')
        parts.append(f"{escape(bar.name)}</text>")
        parts.append(_rectangle("bar s1", left, top + 2, x(bar.ours) - left, 12))
        text, end = f"{bar.ours:.1f}", x(bar.ours)
        if bar.paper is not None:
            text += f" (paper {bar.paper:.1f})"
            end = max(end, x(bar.paper))
            parts.append(_rectangle("bar s0", left, top + 15, x(bar.paper) - left, 5))
        parts.append(f'<text x="{end + 4:.1f}" y="{top + 14}">{text}</text>')
    return _svg(WIDTH, height, title, parts)


def histogram(
    counts: NDArray[np.int64], edges: NDArray[np.float64], *, title: str
) -> str:
    """Draw how many layers have which cosine."""
    x = _Scale(float(edges[0]), float(edges[-1]), LEFT, WIDTH - RIGHT)
    y = _Scale(0, float(counts.max()), HEIGHT - BOTTOM, TOP)
    parts = [_y_axis(y, "layers", whole=True), _x_axis(x, "cosine", whole=False)]
    for count, low, high in zip(counts, edges[:-1], edges[1:], strict=True):
        left, top = x(float(low)), y(float(count))
        width, tall = x(float(high)) - left - 0.5, HEIGHT - BOTTOM - top
        parts.append(_rectangle("bar s1", left, top, width, tall))
    return _svg(WIDTH, HEIGHT, title, parts)


def heat_map(
    layers: Sequence[str],
    scores: NDArray[np.float64],
    marks: Sequence[tuple[int, int]],
    *,
    first_round: int,
    title: str,
) -> str:
    """Draw scores, layers x rounds; ``marks`` are (layer, round) places in them.

    The map itself is a picture of one pixel a score: as shapes, a hundred rounds of
    fifty layers would be megabytes.
    """
    width, row = 640, 14 if len(layers) <= 30 else 9
    left = 12 + 5.6 * max(len(_short(layer)) for layer in layers)
    tall = row * len(layers)
    count = scores.shape[1]
    step = (width - left - RIGHT) / count
    parts = [
        f'<image x="{left:.1f}" y="0" width="{width - left - RIGHT:.1f}" '
        f'height="{tall}" preserveAspectRatio="none" href="{_png(scores)}"/>'
    ]
    every = 1 if row > 9 else 2
    for i, layer in list(enumerate(layers))[::every]:
        parts.append(
            f'<text class="end small" x="{left - 5:.1f}" y="{(i + 0.75) * row:.1f}">'
            f"{escape(_short(layer))}</text>"
        )
    side, inset = max(0.6 * step, min(step, 1.5)), 0.3 * row
    boxes = "".join(
        f"M{left + (at + 0.5) * step - side / 2:.1f} {i * row + inset:.1f}"
        f"h{side:.1f}v{row - 2 * inset:.1f}h{-side:.1f}z"
        for i, at in marks
    )
    parts.append(f'<path class="chosen" d="{boxes}"/>')
    last = first_round + count - 1
    x = _Scale(first_round - 0.5, last + 0.5, left, width - RIGHT)
    for tick in _ticks(first_round, last, whole=True):
        if first_round <= tick <= last:
            at = f'x="{x(tick):.1f}" y="{tall + 13}"'
            parts.append(f'<text class="middle" {at}>{tick:g}</text>')
    place = f'x="{(left + width) / 2:.0f}" y="{tall + 27}"'
    parts.append(f'<text class="middle" {place}>round</text>')
    return _svg(width, tall + 32, title, parts)


class _Scale:
    """From numbers to places; a range of nothing is in the middle."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        if low == high:
            low, high = low - 0.5, high + 0.5
        self.low, self.high = low, high
        self.start, self.factor = start, (end - start) / (high - low)

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) * self.factor


def _ticks(low: float, high: float, *, whole: bool) -> list[float]:
    steps = [1, 2, 5, 10]
    places = MaxNLocator(5, integer=whole, steps=steps).tick_values(low, high)
    slack = 1e-9 * max(abs(low), abs(high), 1e-9)
    return [float(at) for at in places if low - slack <= at <= high + slack]


def _y_axis(y: _Scale, unit: str, *, whole: bool = False) -> str:
    parts = [f'<text x="2" y="{HEIGHT - 4}">{escape(unit)}</text>']
    for tick in _ticks(y.low, y.high, whole=whole):
        at = y(tick)
        parts.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(
            f'<text class="end" x="{LEFT - 5}" y="{at + 4:.1f}">{tick:g}</text>'
        )
    return "".join(parts)


def _x_axis(x: _Scale, name: str, *, whole: bool) -> str:
    parts = []
    for tick in _ticks(x.low, x.high, whole=whole):
        at = f'x="{x(tick):.1f}" y="{HEIGHT - BOTTOM + 14}"'
        parts.append(f'<text class="middle" {at}>{tick:g}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        f'<text class="middle" x="{middle:.0f}" y="{HEIGHT - 4}">{escape(name)}</text>'
    )
    return "".join(parts)


def _rectangle(kind: str, x: float, y: float, width: float, height: float) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{height:.1f}"'
    return f'<rect class="{kind}" {place}/>'


def _svg(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(title, quote=True)}">{"".join(parts)}</svg>'
    )


def _png(scores: NDArray[np.float64]) -> str:
    """Return the map as a data address, one pixel a score; grey where there is none."""
    low, high = np.nanmin(scores), np.nanmax(scores)
    pixels = colormaps["viridis"]((scores - low) / (high - low or 1.0))
    pixels[np.isnan(scores)] = (0.6, 0.6, 0.6, 1.0)
    file = io.BytesIO()
    imsave(file, pixels, format="png")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _short(name: str) -> str:
    # The end of a dotted layer name is what tells it from its neighbours.
    return name if len(name) <= 26 else "…" + name[-25:]
