"""Start of a run: its nodes, its strategy, and the state it starts or resumes from."""

from __future__ import annotations

from collections.abc import Mapping
from logging import WARNING
from pathlib import Path
from typing import Any, NamedTuple

from flwr.app import Array, ArrayRecord
from flwr.common.logger import log
from flwr.serverapp import Grid

from flfa_app.arrays import to_arrays
from flfa_app.config import RunConfig
from flfa_app.errors import ConfigError
from flfa_app.methods import ALGORITHMS
from flfa_app.preflight import Prepared
from flfa_app.results.checkpoint import Checkpoint
from flfa_app.results.resume import check_resumable, check_unchanged, describe_data
from flfa_app.server.nodes import NodeRegistry, wait_for_nodes
from flfa_app.server.sampling import num_participants
from flfa_app.server.simulation_engine import is_simulation
from strategies import LayerSelection, ServerState

__all__ = ["RunStart", "start_run"]

# Keys of a checkpoint's metadata.
NODES, PARTITIONS, NUM_PARTITIONS = "nodes", "partitions", "num-partitions"


class RunStart(NamedTuple):
    """What the first round of this process starts from.

    Parameters
    ----------
    registry : NodeRegistry
        The nodes of the run.
    strategy : LayerSelection
        The server side of the method.
    parameters : list[str]
        Names of the model's parameters, without its buffers.
    arrays : ArrayRecord
        The global model.
    first_round : int
        1, or the round after the checkpoint's.
    metadata : dict[str, Any]
        What ``config.json`` and the checkpoints tell of the run.
    """

    registry: NodeRegistry
    strategy: LayerSelection
    parameters: list[str]
    arrays: ArrayRecord
    first_round: int
    metadata: dict[str, Any]


def start_run(
    grid: Grid,
    config: RunConfig,
    prepared: Prepared,
    run_path: Path,
    checkpoint: Checkpoint | None,
) -> RunStart:
    """Wait for the nodes, build the strategy, restore the checkpoint if there is one.

    Raises
    ------
    ConfigError
        If config, data or nodes do not fit the run that is to be resumed.
    """
    data = describe_data(prepared.images)
    if checkpoint is not None:
        check_resumable(run_path, checkpoint, config, data)
    registry = _run_nodes(grid, config, prepared, run_path, checkpoint)
    parameters = [name for name, _ in prepared.model.named_parameters()]
    strategy = _build_strategy(config, prepared, parameters, len(registry.nodes))
    metadata = {
        **_node_metadata(grid, registry),
        "data": data,
        "eligible-layers": prepared.eligible,
        "candidate-layers": strategy.layers,
        "parameters": sum(p.numel() for p in prepared.model.parameters()),
        "fab-hash": grid.run.fab_hash,
    }
    arrays, first_round = to_arrays(prepared.model.state_dict()), 1
    if checkpoint is not None:
        strategy.load_server_state(
            ServerState(checkpoint.strategy_arrays, checkpoint.strategy_values)
        )
        arrays = ArrayRecord({name: Array(checkpoint.model[name]) for name in arrays})
        first_round = checkpoint.server_round + 1
    return RunStart(registry, strategy, parameters, arrays, first_round, metadata)


def _build_strategy(
    config: RunConfig, prepared: Prepared, parameters: list[str], num_clients: int
) -> LayerSelection:
    return ALGORITHMS[config.algorithm].build_strategy(
        config.as_keys(),
        {"parameters": parameters, "num_clients": num_clients},
        layers=prepared.candidates,
        rule=config.flfa,
        num_layers=config.num_fa_layers,
        fixed_layers=config.fixed_layers,
        observed_layers=prepared.eligible,
        selection_seed=config.seed,
        drift_parameters=parameters,
        # The app draws the participants itself: the strategy takes all it sees.
        fraction_train=1.0,
        min_train_nodes=1,
        min_available_nodes=1,
    )


def _run_nodes(
    grid: Grid,
    config: RunConfig,
    prepared: Prepared,
    run_path: Path,
    checkpoint: Checkpoint | None,
) -> NodeRegistry:
    """Wait for the nodes; check that the run can start or resume with them."""
    registry = wait_for_nodes(
        grid,
        min_nodes=config.min_available_nodes,
        timeout=config.round_timeout,
        data=prepared.images.description.to_config(),
    )
    if checkpoint is not None:
        _match_resumed_run(
            registry, _node_metadata(grid, registry), checkpoint.metadata, run_path
        )
    _check_num_nodes(registry, config)
    if not config.max_examples and not is_simulation(grid):
        _warn_of_dominant_client(registry)
    return registry


def _node_metadata(grid: Grid, registry: NodeRegistry) -> dict[str, Any]:
    """Return what a checkpoint tells of the nodes."""
    metadata: dict[str, Any] = {
        NODES: len(registry.nodes),
        NUM_PARTITIONS: sorted({node.num_partitions for node in registry.nodes} - {0}),
    }
    if not is_simulation(grid):  # simulated nodes are always there, maybe thousands
        metadata[PARTITIONS] = {
            str(node.partition_id): node.num_examples for node in registry.nodes
        }
    return metadata


def _match_resumed_run(
    registry: NodeRegistry,
    current: Mapping[str, Any],
    previous: Mapping[str, Any],
    run_path: Path,
) -> None:
    """Add the resumed run's missing partitions; refuse nodes that do not fit it."""
    if NUM_PARTITIONS in previous:
        same = {NUM_PARTITIONS: current[NUM_PARTITIONS]}
        check_unchanged(run_path, previous, same, "division of the data")
    if PARTITIONS not in current or PARTITIONS not in previous:
        check_unchanged(run_path, previous, {NODES: current[NODES]}, "number of nodes")
        return
    if new := sorted(map(int, current[PARTITIONS].keys() - previous[PARTITIONS])):
        raise ConfigError(
            f"{run_path} started without partition {', '.join(map(str, new))}; stop "
            'the node(s) that hold it, or start a new run (resume = "")'
        )
    registry.add_disconnected(
        {int(partition): images for partition, images in previous[PARTITIONS].items()}
    )


def _check_num_nodes(registry: NodeRegistry, config: RunConfig) -> None:
    num_nodes = len(registry.nodes)
    if config.min_replies > num_nodes:
        raise ConfigError(
            f"min-replies is {config.min_replies}, but the federation has {num_nodes} "
            "node(s); lower it, or wait for more with min-available-nodes"
        )
    if num_nodes < config.min_train_nodes:
        log(
            WARNING,
            "min-train-nodes is %d, but the federation has %d node(s)",
            config.min_train_nodes,
            num_nodes,
        )
    drawn = num_participants(
        num_nodes, fraction=config.fraction_train, minimum=config.min_train_nodes
    )
    if config.min_replies > drawn:
        raise ConfigError(
            f"min-replies is {config.min_replies}, but only {drawn} of {num_nodes} "
            "nodes take part in a round; lower it, or raise fraction-train or "
            "min-train-nodes"
        )


def _warn_of_dominant_client(registry: NodeRegistry) -> None:
    """Warn of a client that claims more than half of all images."""
    total = sum(node.num_examples for node in registry.nodes)
    for node in registry.nodes:
        if len(registry.nodes) > 2 and 2 * node.num_examples > total:
            log(
                WARNING,
                "partition %d claims %d of all %d images and outweighs all others "
                "together; if that cannot be true, set max-examples",
                node.partition_id,
                node.num_examples,
                total,
            )
