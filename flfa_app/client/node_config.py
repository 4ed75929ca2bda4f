"""The node config of a SuperNode: which data it holds, and where it saves its state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from flfa_app.message_keys import NUM_PARTITIONS, PARTITION_ID

__all__ = ["DATASET_PATH", "STATE_DIR", "NodeConfig"]

DATASET_PATH = "dataset-path"
STATE_DIR = "state-dir"


class NodeConfig(NamedTuple):
    """The parsed node config.

    Parameters
    ----------
    partition_id : int
        The number that identifies the node in the run.
    num_partitions : int
        Into how many parts the run's data set is divided; 0 for a node with local data.
    dataset_path : str
        Path of local data; ``""``: the node has a part of the run's data set.
    state_dir : str
        Where this node saves its state; ``""``: where the run config says.
    """

    partition_id: int
    num_partitions: int = 0
    dataset_path: str = ""
    state_dir: str = ""

    @classmethod
    def parse(cls, node_config: Mapping[str, Any]) -> NodeConfig:
        """Parse Flower's node config.

        Raises
        ------
        ValueError
            If a key is missing or a value is invalid.
        """
        path = _text(node_config, DATASET_PATH, "file or folder")
        if DATASET_PATH in node_config and not path:
            raise _not_a_path(DATASET_PATH, path, "file or folder")
        state_dir = _text(node_config, STATE_DIR, "folder")
        if path:
            example = f'{PARTITION_ID}=0 {DATASET_PATH}="{path}"'
            partition_id = _whole_number(node_config, PARTITION_ID, example)
            if partition_id < 0:
                raise ValueError(
                    f"this node's {PARTITION_ID} is {partition_id}; it must be 0 or "
                    "more"
                )
            return cls(partition_id, dataset_path=path, state_dir=state_dir)
        example = f"{PARTITION_ID}=0 {NUM_PARTITIONS}=2"
        partition_id = _whole_number(node_config, PARTITION_ID, example)
        num_partitions = _whole_number(node_config, NUM_PARTITIONS, example)
        if not 0 <= partition_id < num_partitions:
            raise ValueError(
                f"this node's {PARTITION_ID} is {partition_id}, its {NUM_PARTITIONS} "
                f"{num_partitions}; the id must be from 0 to {num_partitions - 1}"
            )
        return cls(partition_id, num_partitions, state_dir=state_dir)


def _text(node_config: Mapping[str, Any], key: str, kind: str) -> str:
    value = node_config.get(key, "")
    if not isinstance(value, str):
        raise _not_a_path(key, value, kind)
    return value


def _not_a_path(key: str, value: Any, kind: str) -> ValueError:
    return ValueError(
        f"this node's {key} is {value!r}; it must be the path of a {kind}"
    )


def _whole_number(node_config: Mapping[str, Any], key: str, example: str) -> int:
    if key not in node_config:
        raise ValueError(
            f"this node's config has no {key!r}; start the SuperNode with "
            f"--node-config '{example}'"
        )
    value = node_config[key]
    # In Python True is an int.
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(
            f"this node's {key} is {value!r}; it must be a whole number, without "
            f"quotes: --node-config '{example}'"
        )
    return value
