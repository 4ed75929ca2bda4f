"""Flower's simulation engine: the order of its messages, and dead workers.

Ten times a second the engine asks its state for a message for every node, and each
time the state searches all stored messages: with 10,000 nodes that keeps a core busy.
The engine also asks in the order of the nodes, not of the messages, so that the
longest computation cannot start first.
"""

from __future__ import annotations

from collections.abc import Mapping
from logging import WARNING

from flwr.common.logger import log
from flwr.serverapp import Grid

from flfa_app import _flwr_compat
from flfa_app._flwr_compat import is_simulation

__all__ = ["dispatch_in_sending_order", "is_simulation", "stop_for_dead_workers"]

# Texts of Ray's errors. After such an error the engine keeps giving messages to the
# dead worker. "OutOfMemoryError" alone is not one: torch uses that name for a full GPU,
# which the worker survives.
DEAD_WORKER = (
    "ActorDiedError",
    "ray.exceptions.OutOfMemoryError",
    "actor died",
    "actor is dead",
)


def dispatch_in_sending_order(grid: Grid) -> bool:
    """Let a simulation hand out messages in the order in which they are sent.

    Real nodes fetch their own messages; for them nothing is changed.

    Parameters
    ----------
    grid : Grid
        The grid of the run, before anything is sent.

    Returns
    -------
    bool
        Whether this is a simulation whose order could be changed.
    """
    if not is_simulation(grid):
        return False
    changed = _flwr_compat.dispatch_in_sending_order(grid)
    if not changed:
        log(
            WARNING,
            "This version of Flower has an unknown simulation engine: the results are "
            "the same, but with many nodes rounds take longer. Tested: flwr 1.41.",
        )
    return changed


def stop_for_dead_workers(server_round: int, problems: Mapping[int, str]) -> None:
    """Raise if a problem, by partition, shows that a worker has died."""
    for partition, problem in problems.items():
        if any(text in problem for text in DEAD_WORKER):
            raise RuntimeError(
                f"round {server_round}: the worker that computed partition {partition} "
                "has died, and Flower would keep giving it messages; if memory was "
                "short, use fewer workers (--workers)"
            )
