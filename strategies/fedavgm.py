"""FedAvgM (Hsu et al., 2019) with FLFA."""

from __future__ import annotations

from flwr.serverapp.strategy import FedAvgM

from .selection import LayerSelection

__all__ = ["FLFAFedAvgM"]


class FLFAFedAvgM(LayerSelection, FedAvgM):
    """Flower's ``FedAvgM`` (heavy ball) with FLFA; ``rule="none"`` is Flower's own.

    Layers are scored relative to the weights that were sent, before the momentum step.
    As in Flower, every array takes part in it, BatchNorm's statistics included;
    :class:`~.momentum.FLFAServerMomentum` moves parameters only.
    """
