"""The client side of FLFA: torch, and nothing of Flower."""

from .alignment import feedback_alignment
from .depthwise import fast_depthwise
from .diagnostics import feedback_diagnostics
from .fedacg import FedACGTrainer
from .feddyn import FedDynTrainer
from .fedlc import FedLCTrainer
from .fedprox import FedProxTrainer
from .fedrs import FedRSTrainer
from .fedsol import FedSOLTrainer
from .layers import effective_layers, eligible_layers
from .memory import keep_freed_memory
from .moon import MOONTrainer
from .scaffold import ScaffoldTrainer
from .settings import TrainSettings, aligned_layers
from .trainer import LocalTrainer, TrainingDivergedError

__all__ = [
    "FedACGTrainer",
    "FedDynTrainer",
    "FedLCTrainer",
    "FedProxTrainer",
    "FedRSTrainer",
    "FedSOLTrainer",
    "LocalTrainer",
    "MOONTrainer",
    "ScaffoldTrainer",
    "TrainSettings",
    "TrainingDivergedError",
    "aligned_layers",
    "effective_layers",
    "eligible_layers",
    "fast_depthwise",
    "feedback_alignment",
    "feedback_diagnostics",
    "keep_freed_memory",
]
