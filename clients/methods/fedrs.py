"""FedRS (Li and Zhan, KDD 2021): restricted softmax."""

from __future__ import annotations

import torch
from torch import Tensor

from ..trainer import LocalTrainer

__all__ = ["VARIANTS", "FedRSTrainer", "class_counts"]

VARIANTS = ("hard", "soft")


class FedRSTrainer(LocalTrainer):
    """Scale the logits of the classes that this client lacks before the softmax.

    The factor is ``alpha`` for a missing class and 1 for others (``hard``), or ``alpha
    + (1 - alpha) n_c / max n`` (``soft``). The whole logit is scaled, bias included.
    alpha = 1 is FedAvg, bit for bit. Evaluation uses the unscaled logits.
    """

    def begin(self, inputs: Tensor, targets: Tensor) -> None:
        """Keep all local targets, whose classes are counted with the first logits."""
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


def class_counts(targets: Tensor, outputs: Tensor) -> Tensor:
    """Return the number of targets of each class; ``outputs`` has one column for each.

    In the dtype of the outputs, but at least single precision: bfloat16 has no 257.
    """
    counts = torch.bincount(targets, minlength=outputs.shape[1])
    return counts.to(torch.promote_types(outputs.dtype, torch.float32))
