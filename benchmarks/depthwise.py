"""``python -m benchmarks.depthwise``: where the fast depthwise layers are faster.

One layer, forwards and backwards, on one thread: the stock layer's time over that of
`clients.fast_depthwise`, which sums the weight's gradient over pairs of positions. Here
it does so everywhere, so that the figures show where its rule is right: the ratios with
a star are those of layers in which the rule takes the pairs. Layers in which they would
need too much memory are left out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

from benchmarks.figures import of_measurements, output_file, publish
from benchmarks.timing import Pause, at_one_speed, interleaved, typical
from clients import depthwise, keep_freed_memory

__all__ = ["main"]

LAYOUTS = ("channels-last", "rows")
KERNELS, STRIDES, SIZES = (3, 5), (1, 2), range(1, 8)
# Batch and channels.
MAPS = (
    (1, 960),
    (4, 384),
    (16, 96),
    (64, 32),
    (16, 384),
    (64, 96),
    (64, 384),
    (64, 960),
)
MOST_PRODUCTS = 2**24
STEPS = 4


class Case(NamedTuple):
    """A layer and its input."""

    layout: str
    kernel: int
    stride: int
    size: int
    batch: int
    channels: int

    @property
    def pairs(self) -> int:
        """Positions of the input times positions of the output."""
        return (self.size * -(-self.size // self.stride)) ** 2

    @property
    def products(self) -> int:
        """Numbers that are computed and added."""
        return self.pairs * self.batch * self.channels


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 1 if the rule is wrong."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.depthwise", description=__doc__
    )
    parser.add_argument("--repetitions", type=int, default=5, help="of each case (5)")
    parser.add_argument(
        "--json", type=output_file, help="write the figures to this file"
    )
    options = parser.parse_args(arguments)
    if options.repetitions < 3:
        parser.error("--repetitions must be 3 or more")
    torch.set_num_threads(1)
    keep_freed_memory()
    cases = [
        case
        for one in product(LAYOUTS, KERNELS, STRIDES, SIZES, MAPS)
        if (case := Case(*one[:4], *one[4])).products <= MOST_PRODUCTS
    ]
    console = Console(stderr=True)
    rows = [
        _measure(case, options.repetitions)
        for case in track(cases, console=console, transient=True)
    ]
    _print_table(rows)
    ratios = [row["ratio"] for row in rows if row["rule"]]
    name = "depthwise layer on small maps, where the rule applies: stock / fast"
    return publish([of_measurements(name, ratios, ">= 1")], options.json, rows=rows)


class _Paired(depthwise.DepthwiseConv2d):
    """Takes the pairs always."""

    def convolve(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        depthwise.pairs_apply(self, input, weight)  # asking is a part of the price
        geometry = (self.stride, self.padding, self.dilation)
        outputs: Tensor = depthwise.PairedConvolution.apply(
            input, weight, bias, *geometry
        )
        return outputs


def _measure(case: Case, repetitions: int) -> dict[str, Any]:
    layers = {kind: _layer(kind, case) for kind in (nn.Conv2d, _Paired)}
    inputs = _images(case, case.size).requires_grad_()
    error = _images(case, -(-case.size // case.stride))
    arms = {kind: _steps(layer, inputs, error) for kind, layer in layers.items()}
    seconds = interleaved(arms, repetitions)
    # A thread's first step is for what it has to prepare.
    steady = {kind: [one[1:] for one in all_] for kind, all_ in seconds.items()}
    times = at_one_speed(steady)
    stock, fast = (1000 * typical(times[kind]) / STEPS for kind in layers)
    return {
        **case._asdict(),
        "pairs": case.pairs,
        "milliseconds-stock": round(stock, 4),
        "milliseconds-fast": round(fast, 4),
        "ratio": round(stock / fast, 3),
        "rule": depthwise.is_small_map(layers[_Paired], *inputs.shape),
    }


def _layer(kind: type[nn.Conv2d], case: Case) -> nn.Conv2d:
    channels = case.channels
    padding = case.kernel // 2
    layer = kind(
        channels,
        channels,
        case.kernel,
        case.stride,
        padding,
        groups=channels,
        bias=False,
    )
    last = case.layout == "channels-last"
    return layer.to(memory_format=torch.channels_last) if last else layer


def _images(case: Case, size: int) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    batch, channels = case.batch, case.channels
    if case.layout == "rows":
        return torch.randn(batch, channels, size, size, generator=draw)
    # By hand: torch leaves maps of one position as they are.
    pixels = torch.randn(batch, size, size, channels, generator=draw)
    return pixels.permute(0, 3, 1, 2)


def _steps(layer: nn.Conv2d, inputs: Tensor, error: Tensor) -> Callable[[Pause], None]:
    def run(pause: Pause) -> None:
        for _ in range(STEPS):
            torch.autograd.grad(layer(inputs), [inputs, layer.weight], error)
            pause()
        torch.autograd.grad(layer(inputs), [inputs, layer.weight], error)

    return run


def _print_table(rows: list[dict[str, Any]]) -> None:
    console = Console(highlight=False)
    found = {Case(*(row[name] for name in Case._fields)): row for row in rows}
    for layout in LAYOUTS:
        title = f"{layout}: stock layer's time / fast layer's; *: the rule takes pairs"
        table = Table(title=title, box=None, pad_edge=False, collapse_padding=True)
        for column in ("kernel", "stride", "map", "pairs"):
            table.add_column(column, justify="right")
        for batch, channels in MAPS:
            table.add_column(f"{batch}x{channels}", justify="right")
        for geometry in product(KERNELS, STRIDES, SIZES):
            cases = [Case(layout, *geometry, *maps) for maps in MAPS]
            shown = [found.get(case) for case in cases]
            cells = [f"{r['ratio']:.2f}{' *'[r['rule']]}" if r else "" for r in shown]
            table.add_row(*map(str, geometry), str(cases[0].pairs), *cells)
        console.print(table)
    for rule, label in ((True, "With"), (False, "Without")):
        ratios = [row["ratio"] for row in rows if row["rule"] is rule]
        low, middle, high = np.percentile(ratios, [0, 50, 100])
        figures = f"median {middle:.2f}, from {low:.2f} to {high:.2f}"
        console.print(f"{label} star: {figures}")


if __name__ == "__main__":
    sys.exit(main())
