"""The paper's ablations: random feedback, and direct feedback from the output."""

from __future__ import annotations

import math
import zlib
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["DirectForward", "OutputError", "random_feedback"]


def random_feedback(name: str, weight: Tensor, seed: int) -> Tensor:
    """Return a random weight with the norm of ``weight``, equal on all clients (FLFA*).

    Its direction depends only on the seed and the layer's name, so it is the same in
    all rounds.
    """
    draw: Tensor = torch.randn(weight.shape, generator=_generator(name, seed)).to(
        weight
    )
    ratio: Tensor = torch.linalg.vector_norm(weight) / torch.linalg.vector_norm(draw)
    return draw * ratio


class OutputError:
    """Record the gradient at a model's output in each backward pass."""

    def __init__(self, model: nn.Module) -> None:
        self.gradient: Tensor | None = None
        self._hook = model.register_forward_hook(self._watch_output)

    def remove(self) -> None:
        """Stop recording."""
        self._hook.remove()

    def _watch_output(self, model: nn.Module, inputs: Any, output: Any) -> None:
        if not isinstance(output, Tensor):
            raise ValueError(
                "direct feedback needs a model whose output is one tensor, not "
                f"{type(output).__name__}"
            )
        logits: Any = output
        if logits.requires_grad:
            logits.register_hook(self._record)

    def _record(self, gradient: Tensor) -> None:
        self.gradient = gradient


class DirectForward:
    """The ``forward`` of a layer with direct feedback alignment (DFA).

    The gradient at the layer's output is replaced by ``e B``: ``e`` is the gradient at
    the logits, ``B`` is uniform in [-1, 1) over the root of its number of columns. The
    layer's own gradients and those of the layers before it are computed from ``e B``.
    """

    def __init__(self, layer: Any, name: str, error: OutputError, seed: int) -> None:
        self.layer = layer
        self.name = name
        self.error = error
        self.seed = seed
        self.feedback: Tensor | None = None

    def __call__(self, input: Tensor) -> Tensor:
        """Compute the output as the stock layer does, and replace its gradient."""
        outputs: Any = type(self.layer).forward(self.layer, input)
        if outputs.requires_grad:
            outputs.register_hook(self._direct_error)
        result: Tensor = outputs
        return result

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy or a pickle of the layer has the plain forward.
        return getattr, (self.layer, "forward")

    def _direct_error(self, gradient: Tensor) -> Tensor:
        error = self.error.gradient
        if error is None or error.dim() != 2 or len(error) != len(gradient):
            raise ValueError(
                "direct feedback needs logits of shape (batch, classes), computed "
                f"after layer {self.name!r}"
            )
        if self.feedback is None:
            self.feedback = self._draw_feedback(error.shape[1], gradient[0].numel())
        direct = error @ self.feedback.to(error)
        return direct.reshape(gradient.shape).to(gradient.dtype)

    def _draw_feedback(self, classes: int, size: int) -> Tensor:
        uniform = torch.rand(classes, size, generator=_generator(self.name, self.seed))
        return (2 * uniform - 1) / math.sqrt(size)


def _generator(name: str, seed: int) -> torch.Generator:
    # On the CPU, so that every machine draws the same numbers. Its generator uses only
    # the lower 32 bits of a seed, and a CRC has 32 bits.
    return torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
