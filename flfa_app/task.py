"""The model, the data and the seeds of a run, for server and clients alike."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from clients.depthwise import fast_depthwise
from flfa_app.config import RunConfig
from flfa_app.data.cache import cached_partition
from flfa_app.data.dataset import DataDescription, ImageDataset
from flfa_app.data.loading import load_dataset
from flfa_app.models import build_model

# torch's own choice: the CPUs of the process, which Ray limits in a simulation.
ALL_THREADS = torch.get_num_threads()


def images_of(config: RunConfig) -> ImageDataset:
    """Return the data set of a run."""
    return load_dataset(config.dataset, config.data_dir, config.image_size)


def model_of(config: RunConfig) -> nn.Module:
    """Build the model of a run with its initial weights."""
    return model_for(config, images_of(config).description)


def model_for(config: RunConfig, description: DataDescription) -> nn.Module:
    """Build the model of a run from the description of its data alone."""
    model = build_model(
        config.model,
        channels=description.channels,
        size=description.size,
        classes=len(description.class_names),
        norm=config.norm,
        seed=config.seed,
    )
    # The memory format of the images, so that convolutions convert nothing in a step.
    model = model.to(memory_format=torch.channels_last)
    return fast_depthwise(model) if config.fast_kernels else model


@cache
def partitions_of(
    config: RunConfig, num_partitions: int
) -> Sequence[NDArray[np.int64]]:
    """Return the indices of each client's training images; cached in the process."""
    images = images_of(config)
    owners = _owners(config, images) if config.partitioner == "natural" else None
    used = _used_images(len(images.train_labels), config.train_fraction, config.seed)
    shards = cached_partition(
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


def _owners(config: RunConfig, images: ImageDataset) -> NDArray[Any]:
    """Return the owner of each training image, from ``partition-column``."""
    if config.partition_column in images.columns:
        return images.columns[config.partition_column]
    columns = ", ".join(images.columns)
    known = f"the columns {columns}" if columns else "no columns"
    raise ValueError(
        f"partition-column is {config.partition_column!r}; the training images of "
        f"{config.dataset} have {known}"
    )


def _used_images(number: int, fraction: float, seed: int) -> NDArray[np.int64]:
    """Return the sorted indices of the training images that the clients share.

    With the same seed, a smaller fraction is part of a larger one.
    """
    if fraction == 1.0:
        return np.arange(number)
    # The second number makes this draw independent of others with the same seed.
    drawn = np.random.default_rng([seed, number]).permutation(number)
    return np.sort(drawn[: max(1, round(fraction * number))])


def client_seed(seed: int, server_round: int, partition_id: int) -> int:
    """Return the seed of one client in one round; no process or order affects it."""
    sequence = np.random.SeedSequence([seed, server_round, partition_id])
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


def use_threads(config: RunConfig) -> None:
    """Set torch's number of threads, for calls from the current thread."""
    torch.set_num_threads(config.threads_per_client or ALL_THREADS)


def device_of(config: RunConfig) -> str:
    """Return the device to compute on; raise :class:`RuntimeError` without a GPU."""
    if config.device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if config.device == "cuda" and not torch.cuda.is_available():
        raise RuntimeError(
            "device is 'cuda', but torch finds no GPU; use 'auto' or 'cpu', or give "
            "each simulated client a share of a GPU: --gpus-per-client 0.25 (flwr run: "
            "--federation-config client-resources-num-gpus=0.25)"
        )
    return config.device
