"""The server side of FLFA: Flower and NumPy, and nothing of torch."""

from .cosine import layer_cosines, local_drift
from .fedadam import FLFAFedAdam
from .fedavg import FLFAFedAvg
from .fedavgm import FLFAFedAvgM
from .selection import FA_LAYERS, LayerSelection

__all__ = [
    "FA_LAYERS",
    "FLFAFedAdam",
    "FLFAFedAvg",
    "FLFAFedAvgM",
    "LayerSelection",
    "layer_cosines",
    "local_drift",
]
