"""FedLC (Zhang et al., ICML 2022): logits calibrated by the class counts."""

from __future__ import annotations

from torch import Tensor

from ..trainer import LocalTrainer
from .counts import class_counts

__all__ = ["FedLCTrainer"]


class FedLCTrainer(LocalTrainer):
    """Subtract ``tau n_c^(-1/4)`` from each logit before an ordinary softmax.

    The published loss leaves the true class out of the denominator, which is unbounded
    below; all implementations keep it. A missing class has the logit minus infinity:
    the softmax is over the present classes for every tau > 0. tau = 0 is FedAvg.
    """

    def begin(self, inputs: Tensor, targets: Tensor) -> None:
        """Count the classes in all of the local data."""
        self.tau = self.number("fedlc-tau")
        self.targets = targets
        self.shift: Tensor | None = None

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy of the calibrated logits."""
        if self.tau == 0:
            return super().loss(outputs, targets)
        if self.shift is None:
            counts = class_counts(self.targets, outputs)
            self.shift = self.tau * counts**-0.25
        return super().loss(outputs - self.shift, targets)
