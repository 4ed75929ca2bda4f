from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from datasets import Dataset
from flwr_datasets.partitioner import DirichletPartitioner, IidPartitioner

from flfa_app.data.loading import load_dataset
from flfa_app.data.partition import SEEDS_TO_TRY, partition_indices

LABELS = load_dataset("digits").train_labels
DIRICHLET: dict[str, Any] = {
    "partitioner": "dirichlet",
    "beta": 0.3,
    "min_size": 1,
    "seed": 0,
}
SHARDS = DIRICHLET | {"partitioner": "shards"}
NATURAL = DIRICHLET | {"partitioner": "natural"}


def lists(parts: Any) -> list[list[int]]:
    return [part.tolist() for part in parts]


@pytest.mark.parametrize("partitioner", ["dirichlet", "iid", "shards"])
@pytest.mark.parametrize("clients", [1, 20])
def test_no_image_belongs_to_two_clients(partitioner: str, clients: int) -> None:
    keys = {**DIRICHLET, "partitioner": partitioner}
    parts = partition_indices(LABELS, clients, **keys)
    assert len(parts) == clients
    assert min(map(len, parts)) >= 1
    held = sorted(np.concatenate(parts))
    if partitioner == "shards":
        # With two shards per client the remainder is smaller than twice the clients.
        assert len(held) == len(set(held)) > len(LABELS) - 2 * clients
    else:
        assert held == list(range(len(LABELS)))


@pytest.mark.parametrize("partitioner", ["dirichlet", "iid", "shards"])
def test_the_partition_depends_on_the_seed_and_nothing_else(partitioner: str) -> None:
    def draw(seed: int) -> list[list[int]]:
        keys = {**DIRICHLET, "partitioner": partitioner, "seed": seed}
        return lists(partition_indices(LABELS, 20, **keys))

    one = draw(0)
    np.random.default_rng().random()
    np.random.seed(7)  # noqa: NPY002 (nothing may depend on it)
    assert draw(0) == one
    assert draw(1) != one


@pytest.mark.parametrize(("seed", "min_size"), [(0, 1), (5, 4)])
def test_dirichlet_is_the_librarys_first_draw_that_is_large_enough(
    seed: int, min_size: int
) -> None:
    """Compared with the library, seed by seed, with an integer as minimum."""
    table = Dataset.from_dict({"label": LABELS, "index": range(len(LABELS))})
    for attempt in range(SEEDS_TO_TRY):
        library = DirichletPartitioner(
            100,
            "label",
            0.3,
            min_size,
            self_balancing=True,
            seed=int(np.random.SeedSequence([seed, attempt]).generate_state(1)[0]),
        )
        library.dataset = table
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                expected = [library.load_partition(i)["index"][:] for i in range(100)]
            break
        except ValueError:
            continue
    keys = DIRICHLET | {"seed": seed, "min_size": min_size}
    assert lists(partition_indices(LABELS, 100, **keys)) == expected


def test_iid_is_the_librarys_partition_of_the_shuffled_images() -> None:
    library = IidPartitioner(7)
    table = Dataset.from_dict({"label": LABELS, "index": range(len(LABELS))})
    library.dataset = table.shuffle(3)
    expected = [library.load_partition(i)["index"][:] for i in range(7)]
    keys = DIRICHLET | {"partitioner": "iid", "seed": 3}
    assert lists(partition_indices(LABELS, 7, **keys)) == expected


def test_small_beta_gives_clients_few_classes() -> None:
    def classes(beta: float) -> float:
        parts = partition_indices(LABELS, 20, **{**DIRICHLET, "beta": beta})
        return float(np.mean([len(set(LABELS[part])) for part in parts]))

    assert classes(0.05) < classes(0.3) < classes(100.0)
    assert classes(100.0) > 9


def test_minimum_size_holds_and_the_draws_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("INFO", logger="flwr"):
        parts = partition_indices(LABELS, 100, **DIRICHLET | {"min_size": 4})
    assert min(map(len, parts)) >= 4
    assert "gives every client min-partition-size 4" in caplog.text


def test_an_impossible_minimum_is_an_error_with_a_cure() -> None:
    with pytest.raises(
        ValueError,
        match=r"min-partition-size is 15: 100 clients .*1500.* to 14 or less",
    ):
        partition_indices(LABELS, 100, **{**DIRICHLET, "min_size": 15})


def test_the_largest_minimum_that_works_is_named_and_works() -> None:
    """The next larger one does not work."""
    few = LABELS[:300]
    with pytest.raises(
        ValueError, match=r"none of 220 .*dirichlet-beta 0\.3"
    ) as caught:
        partition_indices(few, 20, **DIRICHLET | {"min_size": 14})
    text = str(caught.value).split("largest min-partition-size that works is ")[1]
    best = int(text.split(":")[0])
    parts = partition_indices(few, 20, **DIRICHLET | {"min_size": best})
    assert min(map(len, parts)) == best
    with pytest.raises(ValueError, match=f"that works is {best}:"):
        partition_indices(few, 20, **DIRICHLET | {"min_size": best + 1})


def test_no_minimum_works() -> None:
    with pytest.raises(ValueError, match="not even 1 works, raise dirichlet-beta"):
        partition_indices(LABELS[:60], 50, **DIRICHLET | {"beta": 0.01})


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_shards_are_slices_of_the_sorted_images(shards: int) -> None:
    """Classes of 7, 30 and 63 images, 10 clients: slices of 100 // (10 shards)."""
    labels = np.repeat([2, 0, 1], [7, 30, 63])
    keys = SHARDS | {"shards_per_client": shards}
    parts = partition_indices(labels, 10, **keys)
    shard_size = 100 // (10 * shards)
    ranks = np.argsort(np.argsort(labels, kind="stable"))
    for part in parts:
        assert len(part) == shards * shard_size
        assert len(set(ranks[part] // shard_size)) == shards
        # Here a slice crosses at most one border between classes.
        assert len(set(labels[part])) <= 2 * shards


def test_more_shards_than_images() -> None:
    with pytest.raises(
        ValueError, match=r"shards-per-client is 3: 5 clients .* 15 .*14"
    ):
        partition_indices(LABELS[:14], 5, **SHARDS | {"shards_per_client": 3})
    # Shards of 20 // 6 = 3 images: nine per client.
    with pytest.raises(ValueError, match=r"client 0 only 9 images; lower it to 9"):
        partition_indices(
            LABELS[:20], 2, **SHARDS | {"shards_per_client": 3, "min_size": 10}
        )


def test_natural_clients_are_the_owners_in_order() -> None:
    owners = np.array(["c", "a", "b", "a", "c", "c"])
    parts = partition_indices([0, 1, 0, 1, 0, 1], 3, **NATURAL, owners=owners)
    assert lists(parts) == [[1, 3], [2], [0, 4, 5]]
    numbers = np.array([10, 9, 10, 9, 9, 9])
    parts = partition_indices([0, 1, 0, 1, 0, 1], 2, **NATURAL, owners=numbers)
    assert lists(parts) == [[1, 3, 4, 5], [0, 2]]


def test_natural_partitions_with_wrong_numbers() -> None:
    owners = np.array(["c", "a", "b", "a", "c", "c"])
    with pytest.raises(ValueError, match=r"3 different values, but there are 2 nodes"):
        partition_indices([0] * 6, 2, **NATURAL, owners=owners)
    with pytest.raises(ValueError, match="client 1 only 1 images; lower it to 1"):
        partition_indices([0] * 6, 3, **NATURAL | {"min_size": 2}, owners=owners)
