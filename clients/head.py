"""The head of a classifier, and the features it sees."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

__all__ = ["features_of", "head_of"]


def head_of(model: nn.Module) -> nn.Module:
    """Return the last child of ``model`` that has parameters: its classifier."""
    with_parameters = [m for m in model.children() if any(True for _ in m.parameters())]
    if len(with_parameters) < 2:
        raise ValueError(f"{type(model).__name__} has no body and head to tell apart")
    return with_parameters[-1]


@contextmanager
def features_of(model: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the input of the head in every forward pass of the block."""
    seen: list[Tensor] = []

    def note(head: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        seen.append(inputs[0])
        # The head may drop in place: it gets a copy.
        return (inputs[0].clone(), *inputs[1:])

    hook = head_of(model).register_forward_pre_hook(note)
    try:
        yield seen
    finally:
        hook.remove()
