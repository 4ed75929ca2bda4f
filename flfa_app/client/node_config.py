"""Which data a node holds, as its node config says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["DATASET_PATH", "Place", "place_of"]

PARTITION_ID, NUM_PARTITIONS = "partition-id", "num-partitions"
DATASET_PATH = "dataset-path"
STATE_DIR = "state-dir"


class Place(NamedTuple):
    """A node among the others: its part of a data set, or data of its own.

    Parameters
    ----------
    partition_id : int
        What the node is known by.
    num_partitions : int
        Of all nodes; 0 where each brings its own data.
    dataset_path : str
        The node's own data; ``""``: it has a part of the run's data set.
    state_dir : str
        Where this node keeps its state; ``""``: where the run config says.
    """

    partition_id: int
    num_partitions: int = 0
    dataset_path: str = ""
    state_dir: str = ""


def place_of(node_config: Mapping[str, Any]) -> Place:
    """Read a node's config.

    Raises
    ------
    ValueError
        If something is missing or wrong in it.
    """
    own = node_config.get(DATASET_PATH, "")
    if not isinstance(own, str) or (DATASET_PATH in node_config and not own):
        raise ValueError(
            f"this node's {DATASET_PATH} is {own!r}; it must be the path of a file or "
            "folder"
        )
    state_dir = node_config.get(STATE_DIR, "")
    if not isinstance(state_dir, str):
        raise ValueError(
            f"this node's {STATE_DIR} is {state_dir!r}; it must be the path of a folder"
        )
    example = (
        f'{PARTITION_ID}=0 {DATASET_PATH}="{own}"'
        if own
        else f"{PARTITION_ID}=0 {NUM_PARTITIONS}=2"
    )
    keys = [PARTITION_ID] if own else [PARTITION_ID, NUM_PARTITIONS]
    for key in keys:
        if key not in node_config:
            raise ValueError(
                f"this node's config has no {key!r}; start the SuperNode with "
                f"--node-config '{example}'"
            )
        _refuse_unless_whole(key, node_config[key], example)
    numbers = [int(node_config[key]) for key in keys]
    partition_id = numbers[0]
    if own:
        if partition_id < 0:
            raise ValueError(
                f"this node's {PARTITION_ID} is {partition_id}; it must be 0 or more"
            )
        return Place(partition_id, dataset_path=own, state_dir=state_dir)
    num_partitions = numbers[1]
    if not 0 <= partition_id < num_partitions:
        raise ValueError(
            f"this node's partition-id is {partition_id}, its num-partitions "
            f"{num_partitions}; the id must be from 0 to {num_partitions - 1}"
        )
    return Place(partition_id, num_partitions, state_dir=state_dir)


def _refuse_unless_whole(key: str, value: Any, example: str) -> None:
    # Python counts True as 1.
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(
            f"this node's {key} is {value!r}; it must be a whole number, without "
            f"quotes: --node-config '{example}'"
        )
