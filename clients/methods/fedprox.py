"""FedProx (Li et al., 2020): a proximal term around the received weights."""

from __future__ import annotations

from torch import Tensor

from ..trainer import LocalTrainer
from .anchor import Anchor

__all__ = ["FedProxTrainer"]


class FedProxTrainer(LocalTrainer):
    """Minimise the loss plus ``mu/2 |w - W|^2`` over the parameters.

    The gradient ``mu (w - W)`` is added after the backward pass: it needs no autograd
    graph and does not pass through layers with feedback alignment. It enters SGD's
    momentum. mu = 0 is FedAvg; the first step of a round is FedAvg's for any mu.
    """

    key = "proximal-mu"

    def begin(self, inputs: Tensor, targets: Tensor) -> None:
        """Copy the received weights."""
        self.strength = self.number(self.key)
        self.anchor = Anchor(self.model)

    def edit_gradients(self) -> None:
        """Add the gradient of the proximal term."""
        self.anchor.pull(self.strength)
