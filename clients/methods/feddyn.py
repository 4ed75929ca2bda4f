"""FedDyn (Acar et al., ICLR 2021): a dual variable and a proximal term."""

from __future__ import annotations

import torch
from torch import Tensor

from ..trainer import LocalTrainer
from .anchor import Anchor

__all__ = ["FedDynTrainer"]


class FedDynTrainer(LocalTrainer):
    """Add ``alpha (w - W + q)`` to the gradient; after the round ``q += w - W``.

    ``-alpha q`` is the paper's local gradient; in this form nothing is divided by
    alpha. q is zero for a client without state: the round is then FedProx with alpha.
    """

    def begin(self, inputs: Tensor, targets: Tensor) -> None:
        """Copy the received weights and this client's dual variable."""
        self.alpha = self.number("feddyn-alpha")
        self.anchor = Anchor(self.model)
        self.dual = {
            name: self.received_state.get(name, torch.zeros_like(value)).to(value)
            for name, value in zip(self.anchor.names, self.anchor.values, strict=True)
        }
        self.has_dual = bool(self.received_state)

    def edit_gradients(self) -> None:
        """Add the proximal and the dual term."""
        self.anchor.pull(self.alpha)
        if self.alpha != 0 and self.has_dual:
            self.anchor.add(list(self.dual.values()), self.alpha)

    def state(self) -> dict[str, Tensor]:
        """Return the new dual variable."""
        return {name: self.dual[name] + d for name, d in self.anchor.update().items()}
