"""FedACG (Kim et al., CVPR 2024): FedProx around the received look-ahead."""

from __future__ import annotations

from .fedprox import FedProxTrainer

__all__ = ["FedACGTrainer"]


class FedACGTrainer(FedProxTrainer):
    """Add ``beta (w - W)`` to the gradient, where W is the look-ahead."""

    key = "fedacg-beta"
