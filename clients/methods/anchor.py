"""The received weights, as reference for gradient edits (FedProx, FedDyn, SCAFFOLD)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from .._torch_compat import foreach_add_, foreach_sub

__all__ = ["Anchor"]


class Anchor:
    """A copy ``W`` of a model's trainable parameters ``w``, made when it is created."""

    def __init__(self, model: nn.Module) -> None:
        named = [(k, p) for k, p in model.named_parameters() if p.requires_grad]
        self.names = [name for name, _ in named]
        self.parameters: list[Any] = [parameter for _, parameter in named]
        self.values: list[Any] = [p.detach().clone() for p in self.parameters]

    def pull(self, strength: float) -> None:
        """Add ``strength (w - W)`` to the gradients; 0 does not change their bits."""
        if strength != 0:
            self.add(foreach_sub(self.parameters, self.values), strength)

    def add(self, tensors: list[Tensor] | tuple[Tensor, ...], factor: float) -> None:
        """Add ``factor`` times one tensor per parameter to the gradients that exist."""
        pairs = [
            (p.grad, t)
            for p, t in zip(self.parameters, tensors, strict=True)
            if p.grad is not None
        ]
        if pairs:
            grads, terms = map(list, zip(*pairs, strict=True))
            foreach_add_(grads, terms, alpha=factor)

    def update(self) -> dict[str, Tensor]:
        """Return ``w - W`` of each parameter."""
        differences = foreach_sub([p.detach() for p in self.parameters], self.values)
        return dict(zip(self.names, differences, strict=True))
