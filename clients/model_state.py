"""Context managers that change a model for a moment and restore it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from ._torch_compat import BATCH_NORMS, buffers_of

__all__ = ["evaluation_mode", "preserved_buffers", "use_running_statistics"]


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode; restore the mode of each of its modules."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def use_running_statistics(model: nn.Module, *, enabled: bool) -> Iterator[None]:
    """Let BatchNorm use its running statistics, not the batch's, if ``enabled``."""
    layers = model.modules() if enabled else ()
    norms = [m for m in layers if isinstance(m, BATCH_NORMS) and m.training]
    for norm in norms:
        norm.eval()
    try:
        yield
    finally:
        for norm in norms:
            norm.train()


@contextmanager
def preserved_buffers(model: nn.Module) -> Iterator[None]:
    """Restore all buffers on exit: running statistics, counters and the like."""
    saved = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in buffers_of(module).items()
        if buffer is not None
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for module, name, buffer, value in saved:
                buffer.copy_(value)
                # A module may have assigned another tensor in place of the buffer.
                if buffers_of(module).get(name) is not buffer:
                    setattr(module, name, buffer)
