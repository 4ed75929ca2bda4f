"""The head of a classifier (its last layer) and the features it receives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

__all__ = ["capture_features", "classifier_head"]


def classifier_head(model: nn.Module) -> nn.Module:
    """Return the last child of ``model`` that has parameters.

    Raises
    ------
    ValueError
        If fewer than two children have parameters: there is no body before the head.
    """
    with_parameters = [m for m in model.children() if any(True for _ in m.parameters())]
    if len(with_parameters) < 2:
        raise ValueError(
            f"{type(model).__name__} has no body and head: fewer than two of its "
            "children have parameters"
        )
    return with_parameters[-1]


@contextmanager
def capture_features(model: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the input of the head in every forward pass inside the block."""
    features: list[Tensor] = []

    def capture(head: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        features.append(inputs[0])
        # The head may begin with in-place dropout, so it gets a copy.
        return (inputs[0].clone(), *inputs[1:])

    hook = classifier_head(model).register_forward_pre_hook(capture)
    try:
        yield features
    finally:
        hook.remove()
