"""A share of the training images: the same for everyone who has the seed."""

from __future__ import annotations

import numpy as np
import pytest

from flfa_app.config import RunConfig
from flfa_app.task import images_of, shards_of
from tests.federation import default_keys


def config(fraction: float, seed: int = 0, partitioner: str = "iid") -> RunConfig:
    keys = {"train-fraction": fraction, "seed": seed, "partitioner": partitioner}
    return RunConfig.parse({**default_keys(), **keys})


def held(fraction: float, seed: int = 0, partitioner: str = "iid") -> set[int]:
    shards = shards_of(config(fraction, seed, partitioner), 4)
    together = np.concatenate(shards).tolist()
    assert len(set(together)) == len(together)
    return set(together)


@pytest.mark.parametrize("partitioner", ["iid", "dirichlet"])
def test_so_many_images_are_dealt_out(partitioner: str) -> None:
    number = len(images_of(config(1.0)).train_labels)
    assert held(1.0, partitioner=partitioner) == set(range(number))
    assert len(held(0.25, partitioner=partitioner)) == round(0.25 * number)


def test_a_smaller_share_is_a_part_of_a_larger_one() -> None:
    assert held(0.1) < held(0.4)


def test_the_seed_decides_which() -> None:
    assert held(0.3, seed=0) == held(0.3, seed=0, partitioner="dirichlet")
    assert held(0.3, seed=0) != held(0.3, seed=1)
