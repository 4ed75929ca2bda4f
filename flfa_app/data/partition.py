"""Distribution of the training images over the clients."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from logging import INFO
from typing import Any

import numpy as np
from flwr.common.logger import log
from numpy.typing import NDArray

PARTITIONERS = ("dirichlet", "iid", "shards", "natural")
# flwr-datasets draws eleven times with one seed before it gives up.
SEEDS_TO_TRY = 20

Partition = tuple[NDArray[np.int64], ...]
"""Indices of the training images of each client."""


def partition_indices(
    labels: Sequence[int] | NDArray[np.int64],
    num_partitions: int,
    *,
    partitioner: str,
    beta: float,
    min_size: int,
    seed: int,
    shards_per_client: int = 2,
    owners: NDArray[Any] | None = None,
) -> Partition:
    """Distribute the training images, of which these are the labels, over the clients.

    - ``"dirichlet"`` (paper): the shares of each class are drawn from Dir(beta), again
      until every client has ``min_size`` images. A client with its fair share gets no
      more. A small beta gives clients few classes; a large one approaches iid.
    - ``"iid"``: equal parts of the shuffled images.
    - ``"shards"``: sorted by label, cut into equal shards, dealt to the clients at
      random. The remainder, less than one image per shard, is not used.
    - ``"natural"``: the clients are the owners of the images, in sorted order.

    The arguments determine the partition.

    Raises
    ------
    ValueError
        If no such partition gives every client ``min_size`` images.
    """
    if num_partitions * min_size > len(labels):
        raise ValueError(
            f"min-partition-size is {min_size}: {num_partitions} clients would need "
            f"{num_partitions * min_size} images, there are {len(labels)}; lower it to "
            f"{len(labels) // num_partitions} or less, or simulate fewer nodes"
        )
    from datasets import Dataset
    from flwr_datasets.partitioner import IidPartitioner

    columns = {"label": labels, "index": range(len(labels))}
    if owners is not None:
        columns["owner"] = owners
    table = Dataset.from_dict(columns)
    if partitioner == "dirichlet":
        return _dirichlet(table, num_partitions, beta, min_size, seed)
    if partitioner == "iid":
        # It cuts slices, so the rows are shuffled first.
        return _indices(IidPartitioner(num_partitions), table.shuffle(seed))
    if partitioner == "shards":
        parts = _shards(table, num_partitions, shards_per_client, seed)
    else:
        parts = _natural(table, num_partitions)
    sizes = [len(part) for part in parts]
    if (smallest := min(sizes)) < min_size:
        raise ValueError(
            f"min-partition-size is {min_size}, but the {partitioner} partition gives "
            f"client {sizes.index(smallest)} only {smallest} images; lower it to "
            f"{smallest} or less"
        )
    return parts


def _shards(table: Any, num_partitions: int, shards: int, seed: int) -> Partition:
    from flwr_datasets.partitioner import ShardPartitioner

    if num_partitions * shards > len(table):
        raise ValueError(
            f"shards-per-client is {shards}: {num_partitions} clients would need "
            f"{num_partitions * shards} images, there are {len(table)}; lower it or "
            "simulate fewer nodes"
        )
    partitioner = ShardPartitioner(
        num_partitions, "label", num_shards_per_partition=shards, seed=seed
    )
    return _indices(partitioner, table)


def _natural(table: Any, num_partitions: int) -> Partition:
    from flwr_datasets.partitioner import NaturalIdPartitioner

    owners = len(table.unique("owner"))
    if owners != num_partitions:
        raise ValueError(
            f"partition-column has {owners} different values, but there are "
            f"{num_partitions} nodes; a natural partition needs one node per value: "
            f"--nodes {owners} (flwr run: --federation-config num-supernodes={owners})"
        )
    return _indices(NaturalIdPartitioner(partition_by="owner"), table)


def _dirichlet(
    table: Any, num_partitions: int, beta: float, min_size: int, seed: int
) -> Partition:
    from flwr_datasets.partitioner import DirichletPartitioner

    minimum = _RecordingMinimum(min_size)
    for attempt in range(SEEDS_TO_TRY):
        partitioner = DirichletPartitioner(
            num_partitions=num_partitions,
            partition_by="label",
            alpha=beta,
            min_partition_size=minimum,
            self_balancing=True,
            seed=int(np.random.SeedSequence([seed, attempt]).generate_state(1)[0]),
        )
        try:
            with warnings.catch_warnings():
                # It warns after every draw that is too small, until it raises.
                warnings.simplefilter("ignore", UserWarning)
                parts = _indices(partitioner, table)
        except ValueError:
            continue
        if (draws := len(minimum.smallest_sizes)) > 1:
            text = "draw %d gives every client min-partition-size %d"
            log(INFO, f"Dirichlet partition: {text}", draws, min_size)
        return parts
    cure = "not even 1 works"
    if best := max(minimum.smallest_sizes):
        cure = f"the largest min-partition-size that works is {best}: lower it"
    raise ValueError(
        f"none of {len(minimum.smallest_sizes)} Dirichlet draws with dirichlet-beta "
        f"{beta:g} gives each of {num_partitions} clients min-partition-size "
        f"{min_size} images; {cure}, raise dirichlet-beta or simulate fewer nodes"
    )


class _RecordingMinimum(int):
    """Minimum size that records the sizes it is compared with.

    The partitioner does not report the smallest client of a draw, but it compares that
    size with its minimum.
    """

    smallest_sizes: list[int]

    def __new__(cls, value: int) -> _RecordingMinimum:
        minimum = super().__new__(cls, value)
        minimum.smallest_sizes = []
        return minimum

    def __le__(self, size: int) -> bool:
        # `size >= minimum` calls this method, because its class is a subclass of int.
        self.smallest_sizes.append(size)
        return super().__le__(size)


def _indices(partitioner: Any, table: Any) -> Partition:
    partitioner.dataset = table
    parts = (partitioner.load_partition(i) for i in range(partitioner.num_partitions))
    return tuple(np.array(part["index"], np.int64) for part in parts)
