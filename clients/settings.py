"""What a client is told to do in one round, parsed once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["FA_LAYERS", "PRECISIONS", "TrainSettings", "aligned_layers"]

PRECISIONS = ("float32", "bf16")

FA_LAYERS = "fa-layers"
"""The key under which the server sends this round's layers."""


def aligned_layers(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Read this round's layers from a message's config.

    Raises
    ------
    ValueError
        If the key is missing: the server's strategy is not an FLFA strategy, and
        training without feedback alignment would go unnoticed. Also if it is not a
        list of names.
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
    """Local training in one round; the defaults are the paper's.

    Parameters
    ----------
    learning_rate, momentum, weight_decay : float
        Of SGD. The learning rate is the one of this round.
    batch_size, epochs : int
        Samples a step and passes over the local data.
    clip_norm : float (default: 0.0)
        Largest norm of the whole gradient; 0 does not clip.
    fa_layers : tuple[str, ...] (default: ())
        Layers with feedback alignment; none is plain backpropagation.
    feedback, scaling : str
        As in :func:`~.feedback.alignment.feedback_alignment`.
    feedback_seed : int (default: 0)
        Of random feedback; the same for all clients.
    augmentation : str (default: "none")
        What happens to the images of each batch; see :func:`~.augmentation.augment`.
    precision : str (default: "float32")
        ``"bf16"``: forward and loss under autocast to bfloat16; weights, gradients and
        the optimiser stay as they are.
    diagnostics : bool (default: False)
        Whether the aligned layers are measured after training; see
        :func:`~.feedback.diagnostics.feedback_diagnostics`.
    seed : int
        Decides batch order, augmentation and dropout, and nothing else does.
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
        """Refuse what would train on nothing."""
        for name in ("batch_size", "epochs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, not {getattr(self, name)}")
        if self.precision not in PRECISIONS:
            raise ValueError(
                f"precision {self.precision!r} is unknown; allowed: {PRECISIONS}"
            )
