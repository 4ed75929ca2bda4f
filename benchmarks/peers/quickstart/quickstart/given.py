"""What the benchmark has exported, for both peers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import Sampler, TensorDataset

from quickstart.models import build_model

__all__ = [
    "SameOrder",
    "initial_model",
    "new_model",
    "partition",
    "seed_of",
    "settings",
]


@cache
def settings(folder: str) -> dict[str, Any]:
    """Return how to train: the model, the sizes, who takes part when."""
    given: dict[str, Any] = json.loads((Path(folder) / "work.json").read_text())
    return given


def new_model(folder: str) -> nn.Module:
    """Build the model, with weights of its own."""
    given = settings(folder)
    return build_model(given["model"], given["classes"], given["norm"])


def initial_model(folder: str) -> nn.Module:
    """Build the model with the weights of the first round."""
    model = new_model(folder)
    model.load_state_dict(load_file(Path(folder) / "initial.safetensors"))
    return model


def seed_of(folder: str, server_round: int, client: int) -> int:
    """Return the seed of a client's batch order and dropout in a round."""
    seed: int = settings(folder)["rounds"][server_round - 1][str(client)]
    return seed


@cache
def _images(folder: str) -> tuple[Tensor, Tensor]:
    """Return all training images, normalised, and their labels; kept in memory."""
    given = settings(folder)
    with np.load(Path(folder) / "images.npz") as file:
        pixels, labels = file["train_images"], file["train_labels"]
    images = (pixels - given["pixel-mean"]) / given["pixel-deviation"]
    tensor = torch.from_numpy(images.astype(np.float32))
    return tensor.permute(0, 3, 1, 2).contiguous(), torch.from_numpy(labels)


@cache
def partition(folder: str, client: int) -> TensorDataset:
    """Return the images and labels of a client; kept in memory."""
    images, labels = _images(folder)
    with np.load(Path(folder) / "partition.npz") as file:
        mine = torch.from_numpy(file[f"arr_{client}"])
    return TensorDataset(images[mine], labels[mine])


class SameOrder(Sampler[int]):
    """Shuffles as every arm of the benchmark does; otherwise a ``RandomSampler``."""

    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        self.generator = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(self.size, generator=self.generator).tolist())
