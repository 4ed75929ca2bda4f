"""The client side of FLFA: torch, and nothing of Flower."""

from .alignment import feedback_alignment
from .layers import effective_layers, eligible_layers
from .settings import TrainSettings, aligned_layers
from .trainer import LocalTrainer, TrainingDivergedError

__all__ = [
    "LocalTrainer",
    "TrainSettings",
    "TrainingDivergedError",
    "aligned_layers",
    "effective_layers",
    "eligible_layers",
    "feedback_alignment",
]
