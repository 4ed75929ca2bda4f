"""``python -m benchmarks.data_cost``: what the data costs a gradient step.

A client's message of five epochs on 128 images of 28x28 pixels in three channels, batch
64, on one thread. Its data: pixels from the cache's file to normalised floats, once,
and for each step the images of the batch, cropped and mirrored. The step: MobileNetV2,
forwards, backwards, SGD. They take turns, as in training, so each finds the processor's
caches as the other left them. The processor's time is counted, not the clock's: other
programs would interrupt the long step more often than the short work before it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor
from torch.nn import functional

from benchmarks.figures import Figure, output_file, rows_of
from benchmarks.timing import machine
from clients import fast_depthwise, keep_freed_memory
from clients.augmentation import augment
from clients.sgd import SGD
from flfa_app.data.dataset import DataDescription
from flfa_app.models import build_model

__all__ = ["main"]

HELD, SAMPLES, CHANNELS, SIZE, CLASSES = 12_000, 128, 3, 28, 8
BATCH, EPOCHS = 64, 5
GOAL = 0.03


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 1 if the data costs too much."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.data_cost", description=__doc__
    )
    parser.add_argument("--repetitions", type=int, default=10, help="messages (10)")
    parser.add_argument(
        "--json", type=output_file, help="write the figures to this file"
    )
    options = parser.parse_args(arguments)
    if options.repetitions < 2:
        parser.error("--repetitions must be 2 or more")
    torch.set_num_threads(1)
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as folder:
        row = _measure(Path(folder), options.repetitions)
    if options.json:
        name, spread = "data of a step / the step, `mobilenet_v2`", row["quartiles"]
        figure = Figure(name, row["ratio"], tuple(spread), f"<= {GOAL}")
        content = {"machine": machine(), **row, "figures": rows_of([figure])}
        options.json.write_text(json.dumps(content, indent=1) + "\n")
    lower, upper = row["quartiles"]
    Console(highlight=False).print(
        f"data of a step / step: {row['ratio']:.2%} (quartiles {lower:.2%} - "
        f"{upper:.2%}), goal {GOAL:.0%}"
    )
    return int(row["ratio"] > GOAL)


def _measure(folder: Path, repetitions: int) -> dict[str, Any]:
    client, console = _Client(folder), Console(stderr=True)
    client.message()  # for caches and kernels chosen at first use
    seconds = np.array(
        [
            client.message()
            for _ in track(range(repetitions), console=console, transient=True)
        ]
    )
    ratios = seconds[:, 0] / seconds[:, 1]
    lower, ratio, upper = np.percentile(ratios, [25, 50, 75])
    data, step = np.median(seconds, axis=0) / (EPOCHS * SAMPLES / BATCH)
    return {
        "ratio": round(float(ratio), 5),
        "quartiles": [round(float(lower), 5), round(float(upper), 5)],
        "goal": GOAL,
        "milliseconds-of-data-a-step": round(1000 * float(data), 3),
        "milliseconds-of-a-step": round(1000 * float(step), 1),
    }


class _Client:
    """One client with images of noise: what is computed does not depend on them."""

    def __init__(self, folder: Path) -> None:
        draw = np.random.default_rng(0)
        shape = (HELD, SIZE, SIZE, CHANNELS)
        np.save(folder / "train.npy", draw.integers(0, 256, shape, np.uint8))
        self.pixels = np.load(folder / "train.npy", mmap_mode="r")
        self.mine = draw.choice(HELD, SAMPLES, replace=False)
        self.targets = torch.from_numpy(draw.integers(0, CLASSES, SAMPLES))
        names = tuple(map(str, range(CLASSES)))
        moments = ((127.5,) * CHANNELS, (73.9,) * CHANNELS)
        self.description = DataDescription(*moments, SIZE, names)
        built = build_model(
            "mobilenet_v2",
            channels=CHANNELS,
            size=SIZE,
            classes=CLASSES,
            norm="batch",
            seed=0,
        )
        self.model = fast_depthwise(built.to(memory_format=torch.channels_last))
        self.optimizer = SGD(
            self.model.parameters(),
            learning_rate=0.01,
            momentum=0.9,
            weight_decay=0.001,
        )

    def message(self) -> tuple[float, float]:
        """Train for a message; return the seconds of the data and of the steps."""
        draw = torch.Generator().manual_seed(0)
        inputs, data = _timed(self._inputs)
        steps = 0.0
        for _ in range(EPOCHS):
            order = torch.randperm(SAMPLES, generator=draw)
            for batch in torch.split(order, BATCH):
                images, taken = _timed(self._batch, inputs, batch, draw)
                data += taken
                _, taken = _timed(self._step, images, self.targets[batch])
                steps += taken
        return data, steps

    def _inputs(self) -> Tensor:
        inputs = self.description.tensor(self.pixels[self.mine])
        # As the trainer lays them out.
        laid_out = torch.empty_like(inputs, memory_format=torch.channels_last)
        return laid_out.copy_(inputs)

    def _batch(self, inputs: Tensor, batch: Tensor, draw: torch.Generator) -> Tensor:
        return augment(inputs[batch], "crop-flip", draw)

    def _step(self, images: Tensor, targets: Tensor) -> None:
        self.optimizer.zero_grad()
        functional.cross_entropy(self.model(images), targets).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()


def _timed(work: Callable[..., Any], *args: Any) -> tuple[Any, float]:
    started = time.process_time()
    result = work(*args)
    return result, time.process_time() - started


if __name__ == "__main__":
    sys.exit(main())
