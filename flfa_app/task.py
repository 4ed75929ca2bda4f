"""What server and clients do alike: build the model, know the data, seed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from clients.depthwise import fast_depthwise
from flfa_app.client.node_config import Place
from flfa_app.config import RunConfig
from flfa_app.data import (
    Description,
    Images,
    OwnImages,
    kept_partition,
    load_images,
    load_own_images,
)
from flfa_app.models import build_model

__all__ = [
    "client_seed",
    "device_of",
    "images_of",
    "model_for",
    "model_of",
    "shard_of",
    "shards_of",
    "use_threads",
]

# As many as the process has CPUs; in a simulation Ray has told torch the client's.
ALL_THREADS = torch.get_num_threads()


def images_of(config: RunConfig) -> Images:
    """Return the run's data set."""
    return load_images(config.dataset, config.data_dir, config.image_size)


def model_of(config: RunConfig) -> nn.Module:
    """Build the run's model with its initial weights."""
    return model_for(config, images_of(config).description)


def model_for(config: RunConfig, description: Description) -> nn.Module:
    """Build the run's model where only the description of the data is known."""
    model = build_model(
        config.model,
        channels=description.channels,
        size=description.size,
        classes=len(description.class_names),
        norm=config.norm,
        seed=config.seed,
    )
    # As the images: convolutions need not lay out weights anew in every step.
    model = model.to(memory_format=torch.channels_last)
    return fast_depthwise(model) if config.fast_kernels else model


@cache
def shards_of(config: RunConfig, num_partitions: int) -> Sequence[NDArray[np.int64]]:
    """Return which training images each client holds; kept by the process."""
    images = images_of(config)
    owners = None
    if config.partitioner == "natural":
        if config.partition_column not in images.columns:
            raise ValueError(
                f"partition-column is {config.partition_column!r}; the training images "
                f"of {config.dataset} have "
                + (
                    f"the columns {', '.join(images.columns)}"
                    if images.columns
                    else "none"
                )
            )
        owners = images.columns[config.partition_column]
    used = _used_images(len(images.train_labels), config.train_fraction, config.seed)
    shards = kept_partition(
        images.train_labels[used],
        num_partitions,
        partitioner=config.partitioner,
        beta=config.dirichlet_beta,
        min_size=config.min_partition_size,
        seed=config.seed,
        shards_per_client=config.shards_per_client,
        owners=None if owners is None else owners[used],
    )
    return [used[shard] for shard in shards]


def _used_images(number: int, fraction: float, seed: int) -> NDArray[np.int64]:
    """Return which training images are dealt out, in their order.

    A smaller fraction is a part of a larger one with the same seed.
    """
    if fraction == 1.0:
        return np.arange(number)
    # The second number: other draws with the seed have nothing to do with this one.
    drawn = np.random.default_rng([seed, number]).permutation(number)
    return np.sort(drawn[: max(1, round(fraction * number))])


def shard_of(config: RunConfig, place: Place, description: Description) -> OwnImages:
    """Return the training images and labels of one client, as pixels.

    They are the node's own if it has a ``dataset-path``, otherwise its part of the
    run's data set. Nothing is kept: the pixels come from a file in memory.
    """
    if place.dataset_path:
        return load_own_images(place.dataset_path, description)
    images = images_of(config)
    mine = shards_of(config, place.num_partitions)[place.partition_id]
    return OwnImages(images.train[mine], images.train_labels[mine])


def client_seed(seed: int, server_round: int, partition_id: int) -> int:
    """Return the seed of one client in one round, whichever process serves it."""
    sequence = np.random.SeedSequence([seed, server_round, partition_id])
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


def use_threads(config: RunConfig) -> None:
    """Let torch use as many threads as the run config says, in the present thread."""
    torch.set_num_threads(config.threads_per_client or ALL_THREADS)


def device_of(config: RunConfig) -> str:
    """Return the device to compute on; raise if it is asked for and not there."""
    if config.device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if config.device == "cuda" and not torch.cuda.is_available():
        raise RuntimeError(
            "device is 'cuda', but torch sees no GPU here; use 'auto' or 'cpu', or "
            "give each simulated client a share of one: --gpus-per-client 0.25 (flwr "
            "run: --federation-config client-resources-num-gpus=0.25)"
        )
    return config.device
