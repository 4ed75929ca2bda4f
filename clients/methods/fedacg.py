"""FedACG (Kim et al., CVPR 2024): FedProx around the look-ahead that was received."""

from __future__ import annotations

from .fedprox import FedProxTrainer

__all__ = ["FedACGTrainer"]


class FedACGTrainer(FedProxTrainer):
    """Add ``beta (w - W)`` to the gradient, W being the look-ahead."""

    key = "fedacg-beta"
