"""MOON (Li et al., CVPR 2021) with FLFA."""

from __future__ import annotations

from typing import Any

from ..selection import LayerSelection
from .base import FedMethod

__all__ = ["FLFAMOON", "MOON", "MOON_MU", "MOON_TEMPERATURE"]

MOON_MU = "moon-mu"
MOON_TEMPERATURE = "moon-temperature"


class MOON(FedMethod):
    """FedAvg whose clients add a contrastive term; ``mu = 0`` is FedAvg.

    Parameters
    ----------
    mu : float (default: 0.1)
        Weight of the term; 0.1 in the FLFA paper's earlier code, 1 to 5 in MOON's.
    temperature : float (default: 0.5)
        Of the term; the value of both.
    **method : Any
        For :class:`~.base.FedMethod`.
    """

    def __init__(
        self, *, mu: float = 0.1, temperature: float = 0.5, **method: Any
    ) -> None:
        super().__init__(**method)
        self.mu = mu
        self.temperature = temperature

    def client_settings(self) -> dict[str, Any]:
        """Tell the clients both numbers."""
        return {MOON_MU: self.mu, MOON_TEMPERATURE: self.temperature}


class FLFAMOON(LayerSelection, MOON):
    """:class:`MOON` with FLFA."""
