"""How many samples of each class a client has."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["class_counts"]


def class_counts(targets: Tensor, outputs: Tensor) -> Tensor:
    """Return how many targets each class of the outputs has.

    In the outputs' type, but with at least single precision: bfloat16 knows no 257.
    """
    counts = torch.bincount(targets, minlength=outputs.shape[1])
    return counts.to(torch.promote_types(outputs.dtype, torch.float32))
