"""Gradient edits that are relative to the received weights, in a few calls a step."""

from __future__ import annotations

from typing import Any

from torch import Tensor, _foreach_add_, _foreach_sub, nn

__all__ = ["Anchor"]


class Anchor:
    """The parameters of a model as they are now; the trainable ones only."""

    def __init__(self, model: nn.Module) -> None:
        named = [(k, p) for k, p in model.named_parameters() if p.requires_grad]
        self.names = [name for name, _ in named]
        self.parameters: list[Any] = [parameter for _, parameter in named]
        self.values: list[Any] = [p.detach().clone() for p in self.parameters]

    def pull(self, strength: float) -> None:
        """Add ``strength (w - W)`` to the gradients; 0 leaves their bits alone."""
        if strength != 0:
            self.add(_foreach_sub(self.parameters, self.values), strength)

    def add(self, tensors: list[Tensor] | tuple[Tensor, ...], factor: float) -> None:
        """Add tensors, one for each parameter, to the gradients there are."""
        pairs = [
            (p.grad, t)
            for p, t in zip(self.parameters, tensors, strict=True)
            if p.grad is not None
        ]
        if pairs:
            grads, terms = map(list, zip(*pairs, strict=True))
            _foreach_add_(grads, terms, alpha=factor)

    def moved(self) -> dict[str, Tensor]:
        """Return ``w - W`` of each parameter."""
        apart = _foreach_sub([p.detach() for p in self.parameters], self.values)
        return dict(zip(self.names, apart, strict=True))
