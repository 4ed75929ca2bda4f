from __future__ import annotations

from typing import Any

import pytest

from flfa_app.client.node_config import Place, place_of


def test_a_part_of_the_data_or_data_of_its_own() -> None:
    assert place_of({"partition-id": 1, "num-partitions": 2}) == Place(1, 2)
    own = {"partition-id": 7, "dataset-path": "/data/mine.npz"}
    assert place_of(own) == Place(7, 0, "/data/mine.npz")
    # A simulation gives the number to all.
    assert place_of(own | {"num-partitions": 2}) == Place(7, 0, "/data/mine.npz")


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
    ],
)
def test_what_is_wrong_is_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        place_of(config)
