from __future__ import annotations

from typing import Any

import pytest

from flfa_app.client.node_config import NodeConfig

LOCAL_DATA = {"partition-id": 7, "dataset-path": "/data/mine.npz"}


def test_a_part_of_the_data_set() -> None:
    parsed = NodeConfig.parse({"partition-id": 1, "num-partitions": 2})
    assert parsed == NodeConfig(1, num_partitions=2)


# A simulation gives num-partitions to all nodes.
@pytest.mark.parametrize("simulated", [{}, {"num-partitions": 2}])
def test_local_data(simulated: dict[str, Any]) -> None:
    parsed = NodeConfig.parse(LOCAL_DATA | simulated)
    assert parsed == NodeConfig(7, 0, dataset_path="/data/mine.npz")


def test_a_folder_for_the_state() -> None:
    part = {"partition-id": 1, "num-partitions": 2}
    assert NodeConfig.parse(part | {"state-dir": "/x"}).state_dir == "/x"
    assert NodeConfig.parse(LOCAL_DATA | {"state-dir": "/x"}).state_dir == "/x"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"partition-id": 0}, r"no 'num-partitions'; .*'partition-id=0 num-part"),
        ({"num-partitions": 2}, r"no 'partition-id'; .*--node-config 'partition-id=0"),
        ({"dataset-path": "/x"}, r"no 'partition-id'; .*dataset-path=\"/x\"'"),
        ({"partition-id": 2, "num-partitions": 2}, r"is 2, .*from 0 to 1"),
        ({"partition-id": -1, "dataset-path": "/x"}, "is -1; it must be 0 or more"),
        (
            {"partition-id": "abc", "num-partitions": 2},
            r"partition-id is 'abc'; .*a whole number.*--node-config 'partition-id=0",
        ),
        ({"partition-id": 1.7, "dataset-path": "/x"}, r"partition-id is 1\.7; .*whole"),
        ({"partition-id": True, "num-partitions": 2}, r"partition-id is True; .*whole"),
        (
            {"partition-id": 0, "num-partitions": 2.5},
            r"num-partitions is 2\.5; .*whole",
        ),
        ({"partition-id": 0, "dataset-path": ""}, "dataset-path is ''; it must be the"),
        ({"partition-id": 0, "dataset-path": 3}, "dataset-path is 3; it must be the"),
        (
            LOCAL_DATA | {"state-dir": 3},
            "state-dir is 3; it must be the path",
        ),
    ],
)
def test_invalid_values_are_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NodeConfig.parse(config)
