"""BatchNorm without its usual dealings with running statistics, for a moment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

__all__ = ["running_statistics_if", "without_statistics"]


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
def without_statistics(model: nn.Module) -> Iterator[None]:
    """Let BatchNorm use the batch, and neither running statistics nor counters."""
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm)]
    tracking = [m for m in norms if m.training and m.track_running_stats]
    for norm in tracking:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in tracking:
            norm.track_running_stats = True
