"""The part of the training images that is used, and its division among the clients."""

from __future__ import annotations

import numpy as np

from flfa_app.config import RunConfig
from flfa_app.task import images_of, partitions_of


def used_images(fraction: float, seed: int = 0, partitioner: str = "iid") -> set[int]:
    config = RunConfig(train_fraction=fraction, seed=seed, partitioner=partitioner)
    together = np.concatenate(partitions_of(config, 4)).tolist()
    assert len(set(together)) == len(together)
    return set(together)


def test_the_fraction_of_the_images_is_divided() -> None:
    number = len(images_of(RunConfig()).train_labels)
    for partitioner in ("iid", "dirichlet"):
        assert used_images(1.0, partitioner=partitioner) == set(range(number))
    assert len(used_images(0.25)) == round(0.25 * number)
    assert used_images(0.1) < used_images(0.4)


def test_the_seed_alone_decides_which_images_are_used() -> None:
    assert used_images(0.3) == used_images(0.3, partitioner="dirichlet")
    assert used_images(0.3) != used_images(0.3, seed=1)
