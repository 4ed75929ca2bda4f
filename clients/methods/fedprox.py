"""FedProx (Li et al., 2020): a pull towards the received weights."""

from __future__ import annotations

from torch import Tensor

from ..trainer import LocalTrainer
from .anchor import Anchor

__all__ = ["FedProxTrainer"]


class FedProxTrainer(LocalTrainer):
    """Minimise the loss plus ``mu/2 |w - W|^2`` over the parameters.

    The gradient ``mu (w - W)`` is added after the backward pass: no graph, no pass
    through a layer with feedback alignment. It enters SGD's momentum. mu = 0 is FedAvg;
    the first step of a round is FedAvg's for any mu.
    """

    key = "proximal-mu"

    def begin(self, inputs: Tensor, targets: Tensor) -> None:
        """Remember the received weights."""
        self.strength = self.number(self.key)
        self.anchor = Anchor(self.model)

    def edit_gradients(self) -> None:
        """Add the pull."""
        self.anchor.pull(self.strength)
