"""Passes that leave no trace in running statistics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

__all__ = ["kept_buffers", "running_statistics_if"]


@contextmanager
def running_statistics_if(needed: bool, model: nn.Module) -> Iterator[None]:
    """Let BatchNorm use its running statistics instead of the batch's, if needed."""
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm)] if needed else []
    training = [norm for norm in norms if norm.training]
    for norm in training:
        norm.eval()
    try:
        yield
    finally:
        for norm in training:
            norm.train()


@contextmanager
def kept_buffers(model: nn.Module) -> Iterator[None]:
    """Give all buffers back the values they had: statistics, counters, and the like."""
    buffers: list[Any] = list(model.buffers())
    values = [buffer.clone() for buffer in buffers]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in zip(buffers, values, strict=True):
                buffer.copy_(value)
