"""Passes that leave no trace in running statistics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
    kept = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for module, name, buffer, value in kept:
                buffer.copy_(value)
                module._buffers[name] = buffer  # it may have been given another
