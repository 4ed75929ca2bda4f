"""``python -m benchmarks.step_cost``: a client's round, by method, relative to FedAvg.

A client trains for one round as in the paper's BloodMNIST setting: 128 images of 28x28
pixels, batch 64, five epochs, ten steps, on one thread; loading the received weights
and making what it keeps are included. It has taken part before, so all of a method's
work is there (the first of FedSOL's ten steps is never perturbed). The data is noise:
what is computed does not depend on it.

What FLFA adds is a percent or less, no more than two models differ that lie elsewhere
in memory. So the two steps that are compared are taken by one client, one after the
other, with feedback alignment and without, in alternating order; another layer is
aligned in each repetition. What a round costs besides its steps is the same for both.
Quartiles are those of whole rounds and show how steady the machine was, not how sure
the ratio is.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain, cycle, repeat
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import nn

from benchmarks.figures import Figure, output_file, rows_of
from benchmarks.timing import (
    Pause,
    Times,
    at_one_speed,
    interleaved,
    machine,
    paired_ratio,
    quartiles,
    typical,
)
from clients import (
    LocalTrainer,
    TrainSettings,
    effective_layers,
    fast_depthwise,
    keep_freed_memory,
)
from flfa_app.launch.app_files import default_run_config
from flfa_app.methods import ALGORITHMS
from flfa_app.models import build_model

__all__ = ["main"]

SAMPLES, CHANNELS, SIZE, CLASSES = 128, 3, 28, 8
# The app's default of the small net, and what the paper's settings use.
NORMS = {"cnn": "group", "mobilenet_v2": "batch"}
REPETITIONS = {"cnn": 40, "mobilenet_v2": 8}


class Arm(NamedTuple):
    """A method as it is measured, and what is known and asked of its cost."""

    algorithm: str
    goal: float | None = None
    paper: float | None = None
    keys: Mapping[str, Any] = MappingProxyType({})
    augmentation: str = "none"
    base: str = "fedavg"


# `paper` is Table 1, BloodMNIST, without FLFA.
ARMS = {
    "fedavg": Arm("fedavg", paper=1.0),
    "fedprox": Arm("fedprox", 1.08, 2.01),
    "fedavgm": Arm("fedavgm", None, 1.0),
    "moon": Arm("moon", 1.25),
    "fedavg-augmented": Arm("fedavg", augmentation="crop-flip"),
    "moon-augmented": Arm(
        "moon", 1.70, 1.69, augmentation="crop-flip", base="fedavg-augmented"
    ),
    "fedsol": Arm("fedsol", 2.2, 3.10),
    "fedsol-head": Arm("fedsol", 1.5, keys={"fedsol-part": "head"}),
    "fedrs": Arm("fedrs", 1.05, 1.08),
    "fedlc": Arm("fedlc", 1.05, 1.07),
    "fedacg": Arm("fedacg", 1.08, 2.22),
    "feddyn": Arm("feddyn", 1.08),
    "scaffold": Arm("scaffold", 1.08),
}
FLFA_GOAL = 1.02


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.step_cost", description=__doc__
    )
    parser.add_argument(
        "--model", choices=NORMS, help="measure this one only (default: all)"
    )
    parser.add_argument(
        "--repetitions", type=int, help=f"of each arm (default: {REPETITIONS})"
    )
    parser.add_argument(
        "--json", type=output_file, help="write the figures to this file"
    )
    options = parser.parse_args(arguments)
    if options.repetitions is not None and options.repetitions < 3:
        parser.error("--repetitions must be 3 or more")
    torch.set_num_threads(1)
    keep_freed_memory()
    models = [options.model] if options.model else list(NORMS)
    rows = []
    for model in models:
        measured = _measure(model, options.repetitions or REPETITIONS[model])
        _print_table(model, measured)
        rows += measured
    if options.json:
        named = models[0] if len(models) == 1 else models
        content = {"model": named, "machine": machine(), "rows": rows}
        content |= {"figures": rows_of(_figures(rows))}
        options.json.write_text(json.dumps(content, indent=1) + "\n")
    return 0


def _measure(model: str, repetitions: int) -> list[dict[str, Any]]:
    clients = {name: _Client(model, arm) for name, arm in ARMS.items()}
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(model, total=repetitions + 1)
        seconds = interleaved(clients, repetitions, lambda: progress.advance(task))
    # Without the second step: a round as it is.
    plain = {
        name: (np.array(seconds[name]) - clients[name].aligned_steps()).tolist()
        for name in clients
    }
    times = at_one_speed(plain)
    rows = []
    for name, taken in times.items():
        base = typical(times[ARMS[name].base])
        own = typical(taken)
        flfa = clients[name].flfa_ratio()
        row: dict[str, Any] = {"model": model, "method": name, "flfa": False}
        row["ratio"] = round(own / base, 4)
        row["quartiles"] = [round(x / base, 4) for x in quartiles(taken)]
        rows.append(row)
        rows.append(
            {
                "model": model,
                "method": name,
                "flfa": True,
                "ratio": round(flfa * own / base, 4),
                "ratio-to-own-base": round(flfa, 4),
            }
        )
    return rows


class _Client:
    """A client with a model of its own and data that does not matter."""

    def __init__(self, model: str, arm: Arm) -> None:
        draw = torch.Generator().manual_seed(0)
        images = torch.randn(SAMPLES, CHANNELS, SIZE, SIZE, generator=draw)
        # The app's layout.
        self.inputs = images.contiguous(memory_format=torch.channels_last)
        self.targets = torch.randint(CLASSES, (SAMPLES,), generator=draw)
        built = build_model(
            model,
            channels=CHANNELS,
            size=SIZE,
            classes=CLASSES,
            norm=NORMS[model],
            seed=0,
        )
        self.model = fast_depthwise(built.to(memory_format=torch.channels_last))
        self.weights = {k: v.clone() for k, v in self.model.state_dict().items()}
        self.arm = arm
        self.layers = self._layers_in_turn()
        self.state: dict[str, torch.Tensor] = {}
        # Seconds of the two steps of each pair, by repetition: plain and aligned.
        self.pairs: list[list[tuple[float, float]]] = []

    def __call__(self, pause: Pause) -> None:
        """Do what this client does in a round; pause between the steps."""
        self.pairs.append([])
        self.model.load_state_dict(self.weights)
        keys = default_run_config() | dict(self.arm.keys)
        trainer = ALGORITHMS[self.arm.algorithm].trainer(
            self.model,
            TrainSettings(
                fa_layers=next(self.layers), augmentation=self.arm.augmentation
            ),
            keys | {"proximal-mu": keys["fedprox-mu"]},
            state=self.state,
            # What the server sends besides the model has the form of the state, but is
            # not the same: SCAFFOLD would have nothing to correct.
            received={name: 0.5 * tensor for name, tensor in self.state.items()},
        )
        self._take_steps_in_pairs(trainer, pause)
        trainer.fit(self.inputs, self.targets)
        self.state = trainer.state()

    def aligned_steps(self) -> Times:
        """Return the seconds of the steps with FLFA: repetitions, steps."""
        return np.array(self.pairs[1:])[..., 1]

    def flfa_ratio(self) -> float:
        """Return how much longer a step is with FLFA."""
        pairs = np.array(self.pairs[1:])
        repetition, step = np.indices(pairs.shape[:2])
        aligned_first = (repetition + 1 + step) % 2 == 1
        return paired_ratio(pairs[..., 0], pairs[..., 1], aligned_first)

    def _take_steps_in_pairs(self, trainer: LocalTrainer, pause: Pause) -> None:
        take = trainer._step
        pauses = chain([lambda: None], repeat(pause))  # none before the first

        def pair(*args: Any) -> torch.Tensor:
            next(pauses)()
            seconds = {}
            # FedSOL's first step is not perturbed: both of the first pair are it.
            at_received = getattr(trainer, "at_received", None)
            aligned_first = (len(self.pairs) - 1 + len(self.pairs[-1])) % 2 == 1
            for aligned in (aligned_first, not aligned_first):
                vars(trainer)["at_received"] = at_received
                with nullcontext() if aligned else _without_alignment(self.model):
                    started = time.perf_counter()
                    loss = take(*args)
                    seconds[aligned] = time.perf_counter() - started
            self.pairs[-1].append((seconds[False], seconds[True]))
            return loss

        vars(trainer)["_step"] = pair

    def _layers_in_turn(self) -> Iterator[tuple[str, ...]]:
        # All over the net, whatever the number of repetitions.
        layers = effective_layers(self.model, self.inputs[:1])
        order = torch.randperm(len(layers), generator=torch.Generator().manual_seed(0))
        return cycle([(layers[i],) for i in order.tolist()])


@contextmanager
def _without_alignment(model: nn.Module) -> Iterator[None]:
    """Give the aligned layers their own forward back for a step."""
    aligned = [m for m in model.modules() if "forward" in vars(m)]
    assert aligned, "no layer is aligned"
    forwards = [vars(layer).pop("forward") for layer in aligned]
    try:
        yield
    finally:
        for layer, forward in zip(aligned, forwards, strict=True):
            vars(layer)["forward"] = forward


def _print_table(model: str, rows: list[dict[str, Any]]) -> None:
    table = Table(title=f"{model}: time of a client's round, FedAvg's is 1")
    columns = ("method", "paper", "goal", "ratio", "quartiles", "FLFA / base", "goal")
    for column in columns:
        table.add_column(column, justify="left" if column == "method" else "right")
    flfa = {row["method"]: row["ratio-to-own-base"] for row in rows if row["flfa"]}
    for row in rows:
        if row["flfa"]:
            continue
        arm = ARMS[row["method"]]
        table.add_row(
            row["method"],
            "" if arm.paper is None else f"{arm.paper:.2f}",
            "" if arm.goal is None else f"{arm.goal:.2f}",
            f"{row['ratio']:.3f}",
            "{:.3f} - {:.3f}".format(*row["quartiles"]),
            f"{flfa[row['method']]:.3f}",
            f"{FLFA_GOAL:.2f}",
        )
    console = Console(highlight=False)
    console.print(table)
    missed = [figure.name for figure in _figures(rows) if figure.reached is False]
    console.print(f"Above the goal: {', '.join(missed) or 'none'}")


def _figures(rows: list[dict[str, Any]]) -> list[Figure]:
    """Return what something is asked of."""
    figures = []
    for row in rows:
        name, goal = f"`{row['model']}`, {row['method']}", ARMS[row["method"]].goal
        if row["flfa"]:
            ratio = row["ratio-to-own-base"]
            title, spread = f"client's round of {name}: FLFA / its base", (ratio, ratio)
            figures.append(Figure(title, ratio, spread, f"<= {FLFA_GOAL}"))
        elif goal is not None:
            title, spread = f"client's round of {name} / FedAvg's", row["quartiles"]
            figures.append(Figure(title, row["ratio"], tuple(spread), f"<= {goal}"))
    return figures


if __name__ == "__main__":
    sys.exit(main())
