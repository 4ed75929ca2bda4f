"""Settings of a client's local training in one round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["FA_LAYERS", "PRECISIONS", "TrainSettings", "aligned_layers"]

PRECISIONS = ("float32", "bf16")

FA_LAYERS = "fa-layers"
"""Key of a train message's config: the layers with feedback alignment this round."""


def aligned_layers(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Read the layers with feedback alignment from a train message's config.

    Raises
    ------
    ValueError
        If the key is missing: then the server's strategy is not an FLFA strategy, and
        nobody would notice that training uses no feedback alignment. Also if the value
        is not a list of names.
    """
    if FA_LAYERS not in config:
        raise ValueError(
            f"the train message has no {FA_LAYERS!r} in its config; "
            "use a strategy that inherits from LayerSelection on the server"
        )
    names = config[FA_LAYERS]
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{FA_LAYERS!r} must be a list of names, not {names!r}")
    return tuple(names)


@dataclass(frozen=True)
class TrainSettings:
    """Settings of local training in one round; the defaults are the paper's.

    Parameters
    ----------
    learning_rate, momentum, weight_decay : float
        Of SGD. The learning rate is that of this round.
    batch_size, epochs : int
        Samples in a step, and passes over the local data.
    clip_norm : float (default: 0.0)
        Largest norm of the whole gradient; 0 switches clipping off.
    fa_layers : tuple[str, ...] (default: ())
        Layers with feedback alignment; without any, training is backpropagation.
    feedback, scaling : str
        See :func:`~.feedback.alignment.feedback_alignment`.
    feedback_seed : int (default: 0)
        Seed of random feedback; the same for all clients.
    augmentation : str (default: "none")
        Augmentation of the images of each batch; see :func:`~.augmentation.augment`.
    precision : str (default: "float32")
        ``"bf16"`` runs the forward pass and the loss under autocast to bfloat16.
        Weights, gradients and the optimiser keep their precision.
    diagnostics : bool (default: False)
        Whether to measure the aligned layers after training; see
        :func:`~.feedback.diagnostics.feedback_diagnostics`.
    seed : int
        Alone decides batch order, augmentation and dropout.
    """

    learning_rate: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 0.001
    batch_size: int = 64
    epochs: int = 5
    clip_norm: float = 0.0
    fa_layers: tuple[str, ...] = ()
    feedback: str = "global"
    scaling: str = "tensor"
    feedback_seed: int = 0
    augmentation: str = "none"
    precision: str = "float32"
    diagnostics: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        """Reject settings that would train on nothing, and unknown precisions."""
        for name in ("batch_size", "epochs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, not {getattr(self, name)}")
        if self.precision not in PRECISIONS:
            raise ValueError(
                f"precision {self.precision!r} is unknown; allowed: {PRECISIONS}"
            )
