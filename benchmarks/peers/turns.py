"""The arms in turn, and whether they have done the same."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.peers.arms import Arm, Trained, ours, pfl, quickstart
from benchmarks.peers.report import GOALS, rows_of
from benchmarks.peers.sameness import distance, final_accuracy
from benchmarks.peers.work import NORMS, Work, export_work

__all__ = ["WARM_UP", "arms_with", "measure"]

# Rounds at the start of each run that do not count.
WARM_UP = 1
# One round in which rounding is not amplified. With the paper's learning rate BatchNorm
# makes two runs of a MobileNet that differ in a last bit strangers within three steps.
CONTROL = {"learning_rate": 1e-5, "local_epochs": 1}
# Of the length of the update, by the norm of the model. With BatchNorm rounding alone
# moves it by 0.08, other dropout by 0.5, another order of the batches by 0.9; with
# GroupNorm (and no dropout) it is 0.005 and 0.04.
DISTANCE_LIMITS = {"batch": 0.2, "group": 0.015}
# Of 1,000 test images. Asked of the small net only: there the weights of all arms agree
# to four digits even after the rounds, and twenty images are more than that can turn.
# The MobileNets' accuracies after a few rounds of chaos are shown, and say nothing.
ACCURACY_LIMIT = 0.02


def arms_with(python: Path) -> dict[str, Arm]:
    """Return the arms by name, given the Python of pfl's environment."""
    return {
        "ours": ours,
        "ours-flfa": partial(ours, flfa="lowest"),
        "flower-quickstart": quickstart,
        "pfl": partial(pfl, python=python),
    }


def measure(
    model: str, folder: Path, arms: Mapping[str, Arm], turns: int, rounds: int
) -> list[dict[str, Any]]:
    """Return the figures of a model.

    Parameters
    ----------
    model : str
        One of :data:`~benchmarks.peers.work.NORMS`.
    folder : Path
        For all that is written; the images in it are kept for the next model.
    arms : Mapping[str, Callable]
        By name; ``"ours"`` is what the others are compared with.
    turns, rounds : int
        Turns, and the rounds of each that count.

    Raises
    ------
    RuntimeError
        If the arms do not do the same.
    """
    distances = _distances(model, folder, arms)
    work = export_work(_made(folder / "work"), model, WARM_UP + rounds)
    seconds: dict[str, list[list[float]]] = {name: [] for name in arms}
    accuracies: dict[str, float] = {}
    for turn in range(turns):
        # There and back: what slows down over time slows both ends alike.
        for name in sorted(arms, reverse=turn % 2 == 1):
            trained = _run(arms[name], name, work, folder / model / f"turn {turn + 1}")
            seconds[name].append(trained.seconds[WARM_UP:])
            if turn == 0:
                accuracies[name] = final_accuracy(work, trained.weights)
        _check_accuracies(model, accuracies)
    return rows_of(model, seconds, accuracies, distances)


def _distances(model: str, folder: Path, arms: Mapping[str, Arm]) -> dict[str, float]:
    """Return how far the peers' updates are from ours; raise if it is too far."""
    work = export_work(_made(folder / "work"), model, 1, **CONTROL)
    compared = {name: arms[name] for name in ("ours", *GOALS)}
    weights = {
        name: _run(arm, name, work, folder / model / "control").weights
        for name, arm in compared.items()
    }
    distances = {name: distance(work, weights[name], weights["ours"]) for name in GOALS}
    limit = DISTANCE_LIMITS[NORMS[model]]
    if far := {name: x for name, x in distances.items() if not x < limit}:
        raise RuntimeError(
            f"{model}: not the same training: the update of "
            + ", ".join(f"{name} is {x:.3f}" for name, x in far.items())
            + f" of its length from ours (limit {limit}); compare data, clients, "
            "batches and settings of benchmarks/peers with the app's"
        )
    return distances


def _check_accuracies(model: str, accuracies: Mapping[str, float]) -> None:
    if NORMS[model] == "batch":
        return
    same = {name: accuracies[name] for name in ("ours", *GOALS)}
    if max(same.values()) - min(same.values()) > ACCURACY_LIMIT:
        raise RuntimeError(
            f"{model}: not the same training: the final accuracies are "
            + ", ".join(f"{name} {x:.1%}" for name, x in same.items())
            + f" (limit {ACCURACY_LIMIT:.0%})"
        )


def _run(arm: Arm, name: str, work: Work, folder: Path) -> Trained:
    Console(stderr=True).print(f"{work.keys['model']}, {folder.name}: {name} ...")
    return arm(work, _made(folder / name))


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
