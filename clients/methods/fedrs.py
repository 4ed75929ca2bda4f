"""FedRS (Li and Zhan, KDD 2021): restricted softmax."""

from __future__ import annotations

import torch
from torch import Tensor

from ..trainer import LocalTrainer
from .counts import class_counts

__all__ = ["VARIANTS", "FedRSTrainer"]

VARIANTS = ("hard", "soft")


class FedRSTrainer(LocalTrainer):
    """Scale the logits of the classes this client lacks before the softmax.

    The factor is ``alpha`` for a missing class and 1 for others (``hard``), or ``alpha
    + (1 - alpha) n_c / max n`` (``soft``). The whole logit is scaled, bias included.
    alpha = 1 is FedAvg, bit for bit. Evaluation uses the logits as they are.
    """

    def begin(self, inputs: Tensor, targets: Tensor) -> None:
        """Count the classes in all of the local data."""
        self.alpha = self.number("fedrs-alpha")
        self.variant = self.choice("fedrs-variant", VARIANTS)
        self.targets = targets
        self.factors: Tensor | None = None

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy of the scaled logits."""
        if self.alpha == 1:
            return super().loss(outputs, targets)
        if self.factors is None:
            self.factors = self._factors(outputs)
        return super().loss(outputs * self.factors, targets)

    def _factors(self, outputs: Tensor) -> Tensor:
        counts = class_counts(self.targets, outputs)
        if self.variant == "soft":
            return self.alpha + (1 - self.alpha) * counts / counts.max()
        return torch.full_like(counts, self.alpha).masked_fill(counts > 0, 1.0)
