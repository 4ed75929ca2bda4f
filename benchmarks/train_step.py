"""``python -m benchmarks.train_step``: a training step, stock PyTorch's against ours.

A batch of 64 images of 28x28 pixels in three colours, on one thread. *Stock* is what
people write: the model, images and weights in torch's default layout, ``torch.optim``.
*Ours* is what a client of this app does. Each has a process of its own, because what
ours asks of the C library holds for a whole process; they take turns.

What FLFA adds is measured in the second process, in pairs of steps, one with feedback
alignment and one without, in alternating order, with another layer in each pair.

The seconds of our step are reported, too: what a whole experiment takes is calculated
from them (docs/reproducing.md).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.figures import Figure, of_measurements, output_file, publish
from benchmarks.timing import paired_ratio
from clients import (
    LocalTrainer,
    TrainSettings,
    effective_layers,
    fast_depthwise,
    feedback_alignment,
    keep_freed_memory,
)
from clients.sgd import SGD
from flfa_app.models import MODELS, build_model

__all__ = ["main"]

BATCH, CHANNELS, SIZE, CLASSES = 64, 3, 28, 8
# Of stock / ours; the others are reported.
GOALS = {"mobilenet_v2": ">= 1.25", "mobilenet_v2_imagenet": ">= 2.0"}
FLFA_GOAL = "<= 1.02"
NORMS = {"cnn": "group"}  # the app's default; the paper's settings have BatchNorm
# Turns of stock and ours, and pairs of steps with and without FLFA.
TURNS = {"resnet18": 8, "resnet50": 4}
PAIRS = {"cnn": 600, "mobilenet_v2": 80, "mobilenet_v2_imagenet": 200, "resnet18": 24}
MOST_TURNS, FEWEST_PAIRS = 30, 12

Step = Callable[[], Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 1 if a goal is missed."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.train_step", description=__doc__
    )
    parser.add_argument(
        "--model",
        choices=MODELS,
        action="append",
        help="only this one; may be repeated",
    )
    parser.add_argument(
        "--json", type=output_file, help="write the figures to this file"
    )
    options = parser.parse_args(arguments)
    figures = [f for model in options.model or MODELS for f in _measure(model)]
    return publish(figures, options.json)


def _measure(model: str) -> list[Figure]:
    with _process(_stock_steps, model) as stock, _process(_our_steps, model) as ours:
        taken: list[tuple[float, float]] = []
        for turn in range(TURNS.get(model, MOST_TURNS) + 1):
            arms = (stock, ours) if turn % 2 else (ours, stock)
            seconds = {arm: _ask(arm, "step") for arm in arms}
            if turn > 0:  # the first is for caches and kernels chosen at first use
                taken.append((seconds[stock], seconds[ours]))
        pairs = np.array(
            [_ask(ours, "pair") for _ in range(PAIRS.get(model, FEWEST_PAIRS) + 2)]
        )[2:]
    of_stock, of_ours = np.array(taken).T
    return [
        of_measurements(
            f"step of `{model}`: stock PyTorch / ours",
            of_stock / of_ours,
            GOALS.get(model, ""),
        ),
        _flfa_figure(model, pairs),
        of_measurements(f"step of `{model}`, ours", of_ours, unit="s"),
    ]


def _flfa_figure(model: str, pairs: Any) -> Figure:
    base, aligned = pairs[:, 0], pairs[:, 1]
    aligned_first = np.arange(len(pairs)) % 2 == 1
    lower, upper = np.percentile(aligned / base, [25, 75])
    return Figure(
        f"step of `{model}`: FLFA / its base",
        paired_ratio(base, aligned, aligned_first),
        (float(lower), float(upper)),
        FLFA_GOAL,
    )


@contextmanager
def _process(
    work: Callable[[Connection, str], None], model: str
) -> Iterator[Connection]:
    here, there = get_context("spawn").Pipe()
    process = get_context("spawn").Process(
        target=work, args=(there, model), daemon=True
    )
    process.start()
    try:
        yield here
    finally:
        here.send("end")
        process.join()


def _ask(process: Connection, what: str) -> Any:
    process.send(what)
    return process.recv()


def _stock_steps(caller: Connection, model: str) -> None:
    torch.set_num_threads(1)
    net = _model(model)
    images, targets = _batch()
    optimizer = torch.optim.SGD(
        net.parameters(), lr=0.01, momentum=0.9, weight_decay=0.001
    )

    def step() -> None:
        optimizer.zero_grad()
        loss = functional.cross_entropy(net(images), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    while caller.recv() != "end":
        caller.send(_seconds(step))


def _our_steps(caller: Connection, model: str) -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    net = fast_depthwise(_model(model).to(memory_format=torch.channels_last))
    images, targets = _batch()
    images = images.contiguous(memory_format=torch.channels_last)
    trainer = LocalTrainer(net, TrainSettings())
    optimizer = SGD(
        net.parameters(), learning_rate=0.01, momentum=0.9, weight_decay=0.001
    )

    def step() -> Tensor:
        return trainer._step(optimizer, images, targets)

    layers = effective_layers(net, images[:1])
    draw = np.random.default_rng(0)
    number = 0
    while (what := caller.recv()) != "end":
        if what == "step":
            caller.send(_seconds(step))
        else:
            layer = layers[draw.integers(len(layers))]
            caller.send(_pair(net, layer, step, aligned_first=number % 2 == 1))
            number += 1


def _pair(
    net: nn.Module, layer: str, step: Step, *, aligned_first: bool
) -> tuple[float, float]:
    """Return the seconds of two steps: plain and with a layer aligned."""
    seconds = {}
    for aligned in (aligned_first, not aligned_first):
        with feedback_alignment(net, [layer]) if aligned else nullcontext():
            seconds[aligned] = _seconds(step)
    return seconds[False], seconds[True]


def _model(name: str) -> nn.Module:
    norm = NORMS.get(name, "batch")
    model = build_model(
        name, channels=CHANNELS, size=SIZE, classes=CLASSES, norm=norm, seed=0
    )
    return model.train()


def _batch() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    images = torch.randn(BATCH, CHANNELS, SIZE, SIZE, generator=draw)
    return images, torch.randint(CLASSES, (BATCH,), generator=draw)


def _seconds(step: Step) -> float:
    started = time.perf_counter()
    step()
    return time.perf_counter() - started


if __name__ == "__main__":
    sys.exit(main())
