"""The part of the training images that is used, and its division among the clients."""

from __future__ import annotations

import numpy as np
import pytest

from flfa_app.config import RunConfig
from flfa_app.task import images_of, partitions_of
from tests.federation import default_keys


def config(fraction: float, seed: int = 0, partitioner: str = "iid") -> RunConfig:
    keys = {"train-fraction": fraction, "seed": seed, "partitioner": partitioner}
    return RunConfig.parse({**default_keys(), **keys})


def used_images(fraction: float, seed: int = 0, partitioner: str = "iid") -> set[int]:
    shards = partitions_of(config(fraction, seed, partitioner), 4)
    together = np.concatenate(shards).tolist()
    assert len(set(together)) == len(together)
    return set(together)


@pytest.mark.parametrize("partitioner", ["iid", "dirichlet"])
def test_the_fraction_of_the_images_is_divided(partitioner: str) -> None:
    number = len(images_of(config(1.0)).train_labels)
    assert used_images(1.0, partitioner=partitioner) == set(range(number))
    assert len(used_images(0.25, partitioner=partitioner)) == round(0.25 * number)


def test_a_smaller_fraction_is_part_of_a_larger_one() -> None:
    assert used_images(0.1) < used_images(0.4)


def test_the_seed_alone_decides_which_images_are_used() -> None:
    assert used_images(0.3) == used_images(0.3, partitioner="dirichlet")
    assert used_images(0.3) != used_images(0.3, seed=1)
