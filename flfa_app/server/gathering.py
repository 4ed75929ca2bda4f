"""Who is in a run: the nodes that are there, and those it began with if it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from logging import WARNING
from pathlib import Path
from typing import Any

from flwr.common.logger import log
from flwr.serverapp import Grid

from flfa_app.config import RunConfig
from flfa_app.errors import ConfigError
from flfa_app.results.resume import check_same_run
from flfa_app.server.nodes import Roster
from flfa_app.server.simulation_engine import is_simulation

__all__ = ["about_nodes", "gather"]

PARTITIONS, NUM_PARTITIONS, NODES = "partitions", "num-partitions", "nodes"


def gather(
    grid: Grid,
    config: RunConfig,
    data: Mapping[str, Any],
    before: Mapping[str, Any] | None,
    path: Path,
) -> Roster:
    """Wait for the nodes, and see whether a run can begin or go on with them.

    Parameters
    ----------
    grid : Grid
        The federation.
    config : RunConfig
        The run.
    data : Mapping[str, Any]
        What nodes have to know of the data to say what they hold.
    before : Mapping[str, Any], optional
        What :func:`about_nodes` has said of the run, if it goes on.
    path : Path
        Its directory.

    Raises
    ------
    ConfigError
        If it cannot, with the cure.
    """
    roster = Roster.of(
        grid,
        min_nodes=config.min_available_nodes,
        timeout=config.round_timeout,
        data=data,
    )
    if before is not None:
        _go_on(roster, about_nodes(grid, roster), before, path)
    _check_numbers(roster, config)
    if not config.max_examples and not is_simulation(grid):
        _warn_of_weight(roster)
    return roster


def about_nodes(grid: Grid, roster: Roster) -> dict[str, Any]:
    """Return what a checkpoint tells of the nodes."""
    about: dict[str, Any] = {
        NODES: len(roster.members),
        NUM_PARTITIONS: sorted({m.num_partitions for m in roster.members} - {0}),
    }
    if not is_simulation(grid):  # whose nodes are always there, and may be thousands
        about[PARTITIONS] = {
            str(m.partition_id): m.num_examples for m in roster.members
        }
    return about


def _go_on(
    roster: Roster, now: Mapping[str, Any], before: Mapping[str, Any], path: Path
) -> None:
    """Make it the roster the run had; refuse one that cannot be made it."""
    if NUM_PARTITIONS in before:
        same = {NUM_PARTITIONS: now[NUM_PARTITIONS]}
        check_same_run(path, before, same, "division of the data")
    if PARTITIONS not in now or PARTITIONS not in before:
        check_same_run(path, before, {NODES: now[NODES]}, "number of nodes")
        return
    if new := sorted(map(int, now[PARTITIONS].keys() - before[PARTITIONS].keys())):
        raise ConfigError(
            f"{path} began without partition {', '.join(map(str, new))}; stop the "
            'node(s) that hold it, or begin a new run (resume = "")'
        )
    roster.expect({int(p): images for p, images in before[PARTITIONS].items()})


def _check_numbers(roster: Roster, config: RunConfig) -> None:
    nodes = len(roster.members)
    if config.min_replies > nodes:
        raise ConfigError(
            f"min-replies is {config.min_replies}, but the federation has {nodes} "
            "node(s); lower it, or wait for more with min-available-nodes"
        )
    if nodes < config.min_train_nodes:
        log(
            WARNING,
            "min-train-nodes is %d, but the federation has %d node(s)",
            config.min_train_nodes,
            nodes,
        )
    drawn = roster.draw(
        fraction=config.fraction_train,
        least=config.min_train_nodes,
        seed=config.seed,
        server_round=1,
    ).number
    if config.min_replies > drawn:
        raise ConfigError(
            f"min-replies is {config.min_replies}, but only {drawn} of {nodes} nodes "
            "take part in a round; lower it, or raise fraction-train or min-train-nodes"
        )


def _warn_of_weight(roster: Roster) -> None:
    """Warn of clients that are half of the federation: by their own word."""
    total = sum(member.num_examples for member in roster.members)
    for member in roster.members:
        if len(roster.members) > 2 and 2 * member.num_examples > total:
            log(
                WARNING,
                "partition %d says that it has %d of all %d images, and will count for "
                "more than all others; if that cannot be, set max-examples",
                member.partition_id,
                member.num_examples,
                total,
            )
