"""FedAvg (McMahan et al., 2017) with FLFA."""

from __future__ import annotations

from .selection import LayerSelection

__all__ = ["FLFAFedAvg"]


class FLFAFedAvg(LayerSelection):
    """Flower's ``FedAvg`` with FLFA; ``rule="none"`` is Flower's ``FedAvg``."""
