"""The paper's ablations: random feedback, and direct feedback from the output."""

from __future__ import annotations

import math
import zlib
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["DirectForward", "OutputError", "random_feedback"]


def random_feedback(name: str, weight: Tensor, seed: int) -> Tensor:
    """Return a random weight of the same norm, the same on every client (FLFA*).

    It depends on the seed and the layer's name, not on the round: B is constant but
    for its scale.
    """
    draw: Tensor = torch.randn(weight.shape, generator=_generator(name, seed)).to(
        weight
    )
    ratio: Tensor = torch.linalg.vector_norm(weight) / torch.linalg.vector_norm(draw)
    return draw * ratio


class OutputError:
    """The gradient at a model's output in the present backward pass."""

    def __init__(self, model: nn.Module) -> None:
        self.gradient: Tensor | None = None
        self._hook = model.register_forward_hook(self._watch)

    def remove(self) -> None:
        """Stop watching."""
        self._hook.remove()

    def _watch(self, model: nn.Module, inputs: Any, output: Any) -> None:
        if not isinstance(output, Tensor):
            raise ValueError(
                "direct feedback needs a model whose output is one tensor, not "
                f"{type(output).__name__}"
            )
        watched: Any = output
        if watched.requires_grad:
            watched.register_hook(self._keep)

    def _keep(self, gradient: Tensor) -> None:
        self.gradient = gradient


class DirectForward:
    """The ``forward`` of a layer whose output gets its error from the model's output.

    The gradient arriving at the layer's output is replaced by ``e B``, e the gradient
    at the logits and B random, uniform in [-1, 1) over the root of its columns: the
    layer's own gradients use it, and the layers before it go on from there.
    """

    def __init__(self, layer: Any, name: str, error: OutputError, seed: int) -> None:
        self.layer = layer
        self.name = name
        self.error = error
        self.seed = seed
        self.feedback: Tensor | None = None

    def __call__(self, input: Tensor) -> Tensor:
        """Compute the output as always, and watch for its error."""
        outputs: Any = type(self.layer).forward(self.layer, input)
        if outputs.requires_grad:
            outputs.register_hook(self._replace)
        plain: Tensor = outputs
        return plain

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self.layer, "forward")

    def _replace(self, gradient: Tensor) -> Tensor:
        error = self.error.gradient
        if error is None or error.dim() != 2 or len(error) != len(gradient):
            raise ValueError(
                "direct feedback needs logits of shape (batch, classes), computed "
                f"after layer {self.name!r}"
            )
        if self.feedback is None:
            self.feedback = self._random(error.shape[1], gradient[0].numel())
        direct = error @ self.feedback.to(error)
        return direct.reshape(gradient.shape).to(gradient.dtype)

    def _random(self, classes: int, size: int) -> Tensor:
        uniform = torch.rand(classes, size, generator=_generator(self.name, self.seed))
        return (2 * uniform - 1) / math.sqrt(size)


def _generator(name: str, seed: int) -> torch.Generator:
    # On the CPU, so that every machine draws the same numbers. Its generator looks at
    # the lower 32 bits of a seed.
    return torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
