"""Detection of training that has diverged."""

from __future__ import annotations

import math

import torch
from torch import nn

__all__ = ["TrainingDivergedError", "check_loss", "check_tensors", "finite_tensors"]


class TrainingDivergedError(RuntimeError):
    """Local training has produced a loss or a weight that is not finite."""


def check_loss(loss: float, epoch: int, learning_rate: float) -> None:
    """Raise :class:`TrainingDivergedError` unless an epoch's mean loss is finite."""
    if not math.isfinite(loss):
        raise TrainingDivergedError(
            f"the loss is {loss} in local epoch {epoch} at learning rate "
            f"{learning_rate:g}; lower the learning rate or set clip-norm (5 helps the "
            "networks without norm layers)"
        )


def check_tensors(
    model: nn.Module, finite_on_entry: set[str], learning_rate: float
) -> None:
    """Raise :class:`TrainingDivergedError` if a tensor is no longer finite."""
    if broken := finite_on_entry - finite_tensors(model):
        raise TrainingDivergedError(
            f"{min(broken)} is not finite after local training at learning rate "
            f"{learning_rate:g}; lower the learning rate or set clip-norm"
        )


def finite_tensors(model: nn.Module) -> set[str]:
    """Name the parameters and buffers without nan or infinity.

    A buffer may hold infinity from the start: an attention mask, for example.
    """
    tensors = dict((*model.named_parameters(), *model.named_buffers()))
    flags = [torch.isfinite(tensor).all() for tensor in tensors.values()]
    if not flags:
        return set()
    # Read all flags at once: reading each would make a GPU wait each time.
    finite = torch.stack([flag.to(flags[0].device) for flag in flags]).tolist()
    return {name for name, is_finite in zip(tensors, finite, strict=True) if is_finite}
