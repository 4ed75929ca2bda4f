"""The server side of FLFA: Flower and NumPy, and nothing of torch."""

from .averaging import OnePassFedAvg
from .checked import CheckedReplies
from .checks import ReplyRules, problem_of
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
