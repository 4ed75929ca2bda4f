"""SCAFFOLD (Karimireddy et al., ICML 2020): control variates in the gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from ..trainer import LocalTrainer
from .anchor import Anchor

__all__ = ["ScaffoldTrainer", "effective_steps"]


class ScaffoldTrainer(LocalTrainer):
    """Add ``c - c_i`` to the gradient; after the round ``c_i += (W - w) / length - c``.

    The correction passes through SGD's momentum, so the step length is the learning
    rate times the *effective* number of steps; with the plain number it diverges. c_i
    is zero for a client without state.
    """

    def begin(self, inputs: Tensor, targets: Tensor) -> None:
        """Read the server's control variate c and this client's own, c_i."""
        self.anchor = Anchor(self.model)
        pairs = list(zip(self.anchor.names, self.anchor.values, strict=True))
        self.server_control = [_or_zeros(self.received, *pair) for pair in pairs]
        self.client_control = [_or_zeros(self.received_state, *pair) for pair in pairs]
        self.correction = [
            c - c_i
            for c, c_i in zip(self.server_control, self.client_control, strict=True)
        ]
        self.corrects = any(bool(tensor.any()) for tensor in self.correction)

    def edit_gradients(self) -> None:
        """Add the correction."""
        if self.corrects:
            self.anchor.add(self.correction, 1.0)

    def report(self, steps: int) -> dict[str, float]:
        """Report the step length, from which the server computes the change of c."""
        effective = effective_steps(steps, self.settings.momentum)
        self.length = self.settings.learning_rate * effective
        return {"step-length": self.length}

    def state(self) -> dict[str, Tensor]:
        """Return the new control variate of this client."""
        update = self.anchor.update()
        return {
            name: c_i - c - update[name] / self.length
            for name, c_i, c in zip(
                self.anchor.names, self.client_control, self.server_control, strict=True
            )
        }


def effective_steps(steps: int, momentum: float) -> float:
    """Return how often heavy-ball SGD applies a constant gradient in ``steps`` steps.

    Without momentum this is ``steps``.
    """
    if momentum == 0:
        return float(steps)
    lost = momentum * (1 - momentum**steps) / (1 - momentum)
    return (steps - lost) / (1 - momentum)


def _or_zeros(tensors: dict[str, Tensor], name: str, like: Tensor) -> Tensor:
    """Return a tensor by name in the dtype and on the device of ``like``, or zeros."""
    return tensors[name].to(like) if name in tensors else torch.zeros_like(like)
