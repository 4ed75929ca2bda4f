"""The client side of FLFA; it needs torch, but not Flower."""

from .depthwise import fast_depthwise
from .divergence import TrainingDivergedError
from .feedback.alignment import feedback_alignment
from .feedback.diagnostics import feedback_diagnostics
from .feedback.layers import effective_layers, eligible_layers
from .memory import keep_freed_memory
from .methods.fedacg import FedACGTrainer
from .methods.feddyn import FedDynTrainer
from .methods.fedlc import FedLCTrainer
from .methods.fedprox import FedProxTrainer
from .methods.fedrs import FedRSTrainer
from .methods.fedsol import FedSOLTrainer
from .methods.moon import MOONTrainer
from .methods.scaffold import ScaffoldTrainer
from .settings import TrainSettings, aligned_layers
from .trainer import LocalTrainer

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
