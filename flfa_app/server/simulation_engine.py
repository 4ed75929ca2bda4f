"""Flower's simulation engine, told which node has a message.

For every node there is, ten times a second, the engine asks its state for a message,
and each time the state looks through all there are: with 10,000 nodes that keeps a core
busy. It also asks in the order of the nodes, whatever the order in which the messages
were sent, so that the longest work cannot go first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from logging import WARNING
from typing import Any

from flwr.app import Message
from flwr.common.logger import log
from flwr.serverapp import Grid

__all__ = ["hand_out_in_order", "is_simulation", "stop_for_dead_workers"]

# Of Ray: the simulation gives a worker that has died to every further message.
# Not "OutOfMemoryError" alone: so torch calls a full GPU, which the worker survives.
DEAD_WORKER = (
    "ActorDiedError",
    "ray.exceptions.OutOfMemoryError",
    "actor died",
    "actor is dead",
)


def is_simulation(grid: Grid) -> bool:
    """Whether the nodes are simulated by the process that runs the ServerApp."""
    # By name: to import the class takes most of a second, which real nodes need not.
    return type(grid).__name__ == "InMemoryGrid"


def hand_out_in_order(grid: Grid) -> bool:
    """Let a simulation hand out messages in the order in which they are sent.

    The state answers at once: with the next message, whichever node it is asked for
    (the engine goes by the message's own address), or that there is none. Real nodes
    ask for themselves: nothing is changed there.

    Parameters
    ----------
    grid : Grid
        The run's, before anything is sent.

    Returns
    -------
    bool
        Whether this is a simulation whose state could be told.
    """
    if not is_simulation(grid):
        return False
    state: Any = getattr(grid, "state", None)
    store = getattr(state, "store_message_ins", None)
    get = getattr(state, "get_message_ins", None)
    if type(state).__name__ != "InMemoryLinkState" or store is None or get is None:
        log(
            WARNING,
            "This Flower's simulation engine is not the one this app knows: results "
            "are the same, but with many nodes rounds take longer. Tested: flwr 1.41.",
        )
        return False
    nodes: deque[int] = deque()

    def store_message_ins(message: Message, *others: Any, **named: Any) -> str | None:
        message_id: str | None = store(message, *others, **named)
        if message_id:
            nodes.append(message.metadata.dst_node_id)
        return message_id

    def get_message_ins(node_id: int, *others: Any, **named: Any) -> list[Message]:
        return get(nodes.popleft(), *others, **named) if nodes else []

    # On this one object, which ends with the run; only the engine takes messages out.
    vars(state).update(
        store_message_ins=store_message_ins, get_message_ins=get_message_ins
    )
    return True


def stop_for_dead_workers(server_round: int, problems: Mapping[int, str]) -> None:
    """Raise if a problem, by partition, shows that a worker has died."""
    for partition, reason in problems.items():
        if any(mark in reason for mark in DEAD_WORKER):
            raise RuntimeError(
                f"round {server_round}: the worker that computed partition {partition} "
                "has died, and Flower would go on giving it messages; if memory was "
                "short, use fewer workers (--workers)"
            )
