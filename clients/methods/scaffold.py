"""SCAFFOLD (Karimireddy et al., ICML 2020): control variates in the gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from ..trainer import LocalTrainer
from .anchor import Anchor

__all__ = ["ScaffoldTrainer", "effective_steps"]


class ScaffoldTrainer(LocalTrainer):
    """Add ``c - c_i`` to the gradient; afterwards ``c_i += (W - w) / length - c``.

    The correction goes through SGD's momentum, so the step length is the learning rate
    times the *effective* number of steps; with the plain number it diverges. c_i is
    zero for a client without state.
    """

    def begin(self, inputs: Tensor, targets: Tensor) -> None:
        """Take up both control variates."""
        self.anchor = Anchor(self.model)
        pairs = list(zip(self.anchor.names, self.anchor.values, strict=True))
        self.control = [_like(self.received, name, value) for name, value in pairs]
        self.own = [_like(self.received_state, name, value) for name, value in pairs]
        self.correction = [
            c - own for c, own in zip(self.control, self.own, strict=True)
        ]
        self.corrects = any(bool(tensor.any()) for tensor in self.correction)

    def edit_gradients(self) -> None:
        """Add the correction."""
        if self.corrects:
            self.anchor.add(self.correction, 1.0)

    def report(self, steps: int) -> dict[str, float]:
        """Tell the server the step length: it computes the change of c from it."""
        effective = effective_steps(steps, self.settings.momentum)
        self.length = self.settings.learning_rate * effective
        return {"step-length": self.length}

    def state(self) -> dict[str, Tensor]:
        """Return the new control variate of this client."""
        moved = self.anchor.moved()
        return {
            name: own - c - moved[name] / self.length
            for name, own, c in zip(
                self.anchor.names, self.own, self.control, strict=True
            )
        }


def effective_steps(steps: int, momentum: float) -> float:
    """Return how often heavy-ball SGD applies a constant gradient in so many steps.

    Without momentum: ``steps``.
    """
    if momentum == 0:
        return float(steps)
    lost = momentum * (1 - momentum**steps) / (1 - momentum)
    return (steps - lost) / (1 - momentum)


def _like(tensors: dict[str, Tensor], name: str, value: Tensor) -> Tensor:
    return tensors[name].to(value) if name in tensors else torch.zeros_like(value)
