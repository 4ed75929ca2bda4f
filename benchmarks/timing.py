"""Times of things that are compared, taken in turn so that the machine is the same."""

from __future__ import annotations

import os
import platform
import random
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

__all__ = [
    "Pause",
    "Times",
    "at_one_speed",
    "interleaved",
    "machine",
    "paired_ratio",
    "quartiles",
    "typical",
]

Times = npt.NDArray[np.float64]
Key = TypeVar("Key")
Pause = Callable[[], None]


def interleaved(
    arms: Mapping[Key, Callable[[Pause], Any]],
    repetitions: int,
    progress: Callable[[], Any] = lambda: None,
) -> dict[Key, list[list[float]]]:
    """Return the seconds of each piece of each arm, in each repetition.

    An arm is cut into pieces by calling the function it is given. The first pieces of
    all arms run one after another, then the second ones, and so on: what slows the
    machine down for a while slows all of them. Their order is drawn anew each time, and
    none goes twice in a row, because it would find its own data in the caches.
    """
    shuffle = random.Random(0).shuffle
    last = None
    seconds: dict[Key, list[list[float]]] = {name: [] for name in arms}
    for repetition in range(repetitions + 1):
        running = {name: _Running(run) for name, run in arms.items()}
        while unfinished := [name for name in running if running[name].alive]:
            shuffle(unfinished)
            if unfinished[0] == last:
                unfinished.reverse()
            for name in unfinished:
                running[name].go_on()
            last = unfinished[-1]
        for name, one in running.items():
            if (
                repetition > 0
            ):  # the first is for caches and kernels chosen at first use
                seconds[name].append(one.seconds)
        progress()
    return seconds


class _Running:
    """An arm in a thread that runs only while the caller waits for it."""

    def __init__(self, run: Callable[[Pause], Any]) -> None:
        self.seconds: list[float] = []
        self.alive = True
        self._error: BaseException | None = None
        self._go, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._main, args=(run,), daemon=True)
        self._threads = torch.get_num_threads()
        self._thread.start()

    def go_on(self) -> None:
        """Run the next piece."""
        self._go.release()
        self._paused.acquire()
        if self._error is not None:
            raise self._error

    def _main(self, run: Callable[[Pause], Any]) -> None:
        torch.set_num_threads(self._threads)  # a new thread begins with the default
        self._go.acquire()
        self._started = time.perf_counter()
        try:
            run(self._pause)
        except BaseException as error:
            self._error = error
        self.alive = False
        self._note()

    def _pause(self) -> None:
        self._note()
        self._go.acquire()
        self._started = time.perf_counter()

    def _note(self) -> None:
        self.seconds.append(time.perf_counter() - self._started)
        self._paused.release()


def at_one_speed(seconds: Mapping[Key, list[list[float]]]) -> dict[Key, Times]:
    """Return the seconds of the pieces, had the machine been equally fast all the time.

    The median of all arms tells how fast it was in a turn: the pieces of the turn are
    divided by it, and multiplied by the median of such turns.
    """
    times = np.array(list(seconds.values()))  # arms, repetitions, pieces
    turns = np.median(times, axis=0)
    return dict(zip(seconds, times * (np.median(turns, axis=0) / turns), strict=True))


def typical(times: Times) -> float:
    """Return the seconds of an arm: the sum of the medians of its pieces."""
    return float(np.median(times, axis=0).sum())


def paired_ratio(
    base: Times, other: Times, other_first: npt.NDArray[np.bool_]
) -> float:
    """Return how much longer something takes than what runs just before or after it.

    The second of a pair may profit from the first: the median ratio is taken for both
    orders, and their geometric mean.
    """
    ratios = other / base
    medians = np.median(ratios[other_first]) * np.median(ratios[~other_first])
    return float(np.sqrt(medians))


def quartiles(times: Times) -> tuple[float, float]:
    """Return the quartiles of an arm's repetitions."""
    lower, upper = np.percentile(times.sum(axis=1), [25, 75])
    return float(lower), float(upper)


def machine() -> dict[str, Any]:
    """Return what a figure depends on besides the code."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "flwr": version("flwr"),
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            names = [line for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0].split(":", 1)[1].strip() if names else platform.machine()
