"""The server side of FLFA: Flower and NumPy, and nothing of torch."""

from .cosine import layer_cosines, local_drift
from .fedacg import FLFAFedACG
from .fedadam import FLFAFedAdam
from .fedavg import FLFAFedAvg
from .fedavgm import FLFAFedAvgM
from .feddyn import FLFAFedDyn
from .fedlc import FLFAFedLC
from .fedprox import FLFAFedProx
from .fedrs import FLFAFedRS
from .fedsol import FLFAFedSOL
from .momentum import FLFAServerMomentum
from .moon import FLFAMOON
from .scaffold import FLFAScaffold
from .selection import FA_LAYERS, LayerSelection

__all__ = [
    "FA_LAYERS",
    "FLFAMOON",
    "FLFAFedACG",
    "FLFAFedAdam",
    "FLFAFedAvg",
    "FLFAFedAvgM",
    "FLFAFedDyn",
    "FLFAFedLC",
    "FLFAFedProx",
    "FLFAFedRS",
    "FLFAFedSOL",
    "FLFAScaffold",
    "FLFAServerMomentum",
    "LayerSelection",
    "layer_cosines",
    "local_drift",
]
