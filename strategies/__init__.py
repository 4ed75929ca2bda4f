"""The server side of FLFA; it needs Flower and NumPy, not torch."""

from .aggregation import OnePassFedAvg
from .checked_replies import CheckedReplies
from .checks import ReplyRules, problem_of
from .cosine import layer_cosines, local_drift
from .methods.fedacg import FLFAFedACG
from .methods.fedadam import FLFAFedAdam
from .methods.fedavg import FLFAFedAvg
from .methods.fedavgm import FLFAFedAvgM
from .methods.feddyn import FLFAFedDyn
from .methods.fedlc import FLFAFedLC
from .methods.fedprox import FLFAFedProx
from .methods.fedrs import FLFAFedRS
from .methods.fedsol import FLFAFedSOL
from .methods.momentum import FLFAServerMomentum
from .methods.moon import FLFAMOON
from .methods.scaffold import FLFAScaffold
from .selection import FA_LAYERS, LayerSelection
from .state import ServerState

__all__ = [
    "FA_LAYERS",
    "FLFAMOON",
    "CheckedReplies",
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
    "OnePassFedAvg",
    "ReplyRules",
    "ServerState",
    "layer_cosines",
    "local_drift",
    "problem_of",
]
