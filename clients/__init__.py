"""The client side of FLFA: torch, and nothing of Flower."""

from .alignment import eligible_layers, feedback_alignment
from .settings import TrainSettings, aligned_layers
from .trainer import LocalTrainer, TrainingDivergedError

__all__ = [
    "LocalTrainer",
    "TrainSettings",
    "TrainingDivergedError",
    "aligned_layers",
    "eligible_layers",
    "feedback_alignment",
]
