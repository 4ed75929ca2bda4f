"""FedProx (Li et al., 2020) with FLFA."""

from __future__ import annotations

from flwr.serverapp.strategy import FedProx

from ..aggregation import OnePassFedAvg
from ..selection import LayerSelection

__all__ = ["FLFAFedProx"]


class FLFAFedProx(LayerSelection, FedProx, OnePassFedAvg):
    """Flower's ``FedProx`` with FLFA; ``proximal_mu=0`` is FedAvg.

    The clients add ``mu (w - W)`` to the gradient, W being what they received.
    """
