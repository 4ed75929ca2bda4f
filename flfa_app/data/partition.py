"""Who holds which training images."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from logging import INFO
from typing import Any

import numpy as np
from flwr.common.logger import log
from numpy.typing import NDArray

__all__ = ["PARTITIONERS", "partition_indices"]

PARTITIONERS = ("dirichlet", "iid", "shards", "natural")
# flwr-datasets draws eleven times for a seed before it gives up.
SEEDS_TO_TRY = 20

Parts = tuple[NDArray[np.int64], ...]


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
) -> Parts:
    """Distribute the training images over the clients.

    Parameters
    ----------
    labels : Sequence[int]
        The label of each training image.
    num_partitions : int
        Number of clients.
    partitioner : str
        ``"dirichlet"`` (paper: the share of every class is drawn from Dir(beta), a
        client that has its fair share gets no more), ``"iid"``, ``"shards"`` (sorted by
        label, cut into equal pieces, each client draws some; what is left over at the
        end, less than one image a shard, is nobody's) or ``"natural"`` (by owner).
    beta : float
        Small: clients with few classes; large: like iid.
    min_size : int
        No client has less; a Dirichlet partition is drawn again until this holds.
    seed : int
        Decides the partition together with the other arguments, nothing else does.
    shards_per_client : int
        For ``"shards"``.
    owners : NDArray[Any], optional
        For ``"natural"``: who each training image belongs to. The clients are the
        owners, sorted.

    Raises
    ------
    ValueError
        If there is no such partition that gives every client ``min_size`` images.
    """
    if num_partitions * min_size > len(labels):
        raise ValueError(
            f"min-partition-size is {min_size}: {num_partitions} clients would need "
            f"{num_partitions * min_size} images, there are {len(labels)}; lower it to "
            f"{len(labels) // num_partitions} or less, or simulate fewer nodes"
        )
    from datasets import Dataset

    columns = {"label": labels, "index": range(len(labels))}
    if owners is not None:
        columns["owner"] = owners
    table = Dataset.from_dict(columns)
    if partitioner == "dirichlet":
        return _dirichlet(table, num_partitions, beta, min_size, seed)
    if partitioner == "iid":
        return _iid(table, num_partitions, seed)
    if partitioner == "shards":
        parts = _shards(table, num_partitions, shards_per_client, seed)
    else:
        parts = _natural(table, num_partitions)
    if (least := min(map(len, parts))) < min_size:
        raise ValueError(
            f"min-partition-size is {min_size}, but the {partitioner} partition gives "
            f"client {[len(part) for part in parts].index(least)} only {least} images; "
            f"lower it to {least} or less"
        )
    return parts


def _iid(table: Any, num_partitions: int, seed: int) -> Parts:
    from flwr_datasets.partitioner import IidPartitioner

    dealer = IidPartitioner(num_partitions)
    # It deals out slices: their order must not be that of the file.
    dealer.dataset = table.shuffle(seed)
    return _indices(dealer, num_partitions)


def _shards(table: Any, num_partitions: int, shards: int, seed: int) -> Parts:
    from flwr_datasets.partitioner import ShardPartitioner

    if num_partitions * shards > len(table):
        raise ValueError(
            f"shards-per-client is {shards}: {num_partitions} clients would need "
            f"{num_partitions * shards} images, there are {len(table)}; lower it or "
            "simulate fewer nodes"
        )
    cutter = ShardPartitioner(
        num_partitions=num_partitions,
        partition_by="label",
        num_shards_per_partition=shards,
        seed=seed,
    )
    cutter.dataset = table
    return _indices(cutter, num_partitions)


def _natural(table: Any, num_partitions: int) -> Parts:
    from flwr_datasets.partitioner import NaturalIdPartitioner

    sorter = NaturalIdPartitioner(partition_by="owner")
    sorter.dataset = table
    if sorter.num_partitions != num_partitions:
        raise ValueError(
            f"partition-column has {sorter.num_partitions} different values, but there "
            f"are {num_partitions} nodes; a natural partition needs a node for each: "
            f"--nodes {sorter.num_partitions} (flwr run: --federation-config "
            f"num-supernodes={sorter.num_partitions})"
        )
    return _indices(sorter, num_partitions)


def _dirichlet(
    table: Any, num_partitions: int, beta: float, min_size: int, seed: int
) -> Parts:
    from flwr_datasets.partitioner import DirichletPartitioner

    minimum = _Minimum(min_size)
    for attempt in range(SEEDS_TO_TRY):
        drawer = DirichletPartitioner(
            num_partitions=num_partitions,
            partition_by="label",
            alpha=beta,
            min_partition_size=minimum,
            self_balancing=True,
            seed=int(np.random.SeedSequence([seed, attempt]).generate_state(1)[0]),
        )
        drawer.dataset = table
        try:
            with warnings.catch_warnings():
                # It warns at every draw that is too small; the last one is an error.
                warnings.simplefilter("ignore", UserWarning)
                parts = _indices(drawer, num_partitions)
        except ValueError:
            continue
        if len(minimum.smallest) > 1:
            log(
                INFO,
                "Dirichlet partition: draw %d gives every client min-partition-size %d",
                len(minimum.smallest),
                min_size,
            )
        return parts
    best = max(minimum.smallest)
    cure = (
        f"the largest min-partition-size that works is {best}: lower it"
        if best
        else "not even 1 works"
    )
    raise ValueError(
        f"none of {len(minimum.smallest)} Dirichlet draws with dirichlet-beta {beta:g} "
        f"gives each of {num_partitions} clients min-partition-size {min_size} images; "
        f"{cure}, raise dirichlet-beta or simulate fewer nodes"
    )


class _Minimum(int):
    """A smallest size that remembers what it was compared with.

    The partitioner tells nobody how large the smallest client of a draw was, but it
    asks whether that is at least its minimum.
    """

    smallest: list[int]

    def __new__(cls, value: int) -> _Minimum:
        minimum = super().__new__(cls, value)
        minimum.smallest = []
        return minimum

    def __le__(self, size: int) -> bool:
        # Python asks the subclass first: `size >= minimum` comes here.
        self.smallest.append(size)
        return super().__le__(size)


def _indices(partitioner: Any, num_partitions: int) -> Parts:
    parts = (partitioner.load_partition(i) for i in range(num_partitions))
    return tuple(np.array(part["index"], np.int64) for part in parts)
