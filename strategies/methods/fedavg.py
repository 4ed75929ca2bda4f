"""FedAvg (McMahan et al., 2017) with FLFA."""

from ..aggregation import OnePassFedAvg
from ..selection import LayerSelection

__all__ = ["FLFAFedAvg"]


class FLFAFedAvg(LayerSelection, OnePassFedAvg):
    """Flower's ``FedAvg`` with FLFA; ``rule="none"`` is Flower's ``FedAvg``."""

    display_name = "FedAvg"
