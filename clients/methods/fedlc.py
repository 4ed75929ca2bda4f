"""FedLC (Zhang et al., ICML 2022): logits calibrated by the class counts."""

from __future__ import annotations

from torch import Tensor

from ..trainer import LocalTrainer
from .fedrs import class_counts

__all__ = ["FedLCTrainer"]


class FedLCTrainer(LocalTrainer):
    """Subtract ``tau n_c^(-1/4)`` from each logit before an ordinary softmax.

    The published loss omits the true class from the denominator, which makes it
    unbounded below; all implementations keep that class, and so does this one. A
    missing class has the logit minus infinity, so for every tau > 0 the softmax is over
    the classes that this client has. tau = 0 is FedAvg.
    """

    def begin(self, inputs: Tensor, targets: Tensor) -> None:
        """Keep all local targets, whose classes are counted with the first logits."""
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
