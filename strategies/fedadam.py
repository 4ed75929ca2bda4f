"""FedAdam (Reddi et al., 2021) with FLFA."""

from __future__ import annotations

from flwr.serverapp.strategy import FedAdam

from .selection import LayerSelection

__all__ = ["FLFAFedAdam"]


class FLFAFedAdam(LayerSelection, FedAdam):
    """Flower's ``FedAdam`` with FLFA; ``rule="none"`` is Flower's own.

    Layers are scored relative to the weights that were sent, before the Adam step.
    As in Flower, every array takes part in it, BatchNorm's statistics included.
    """
