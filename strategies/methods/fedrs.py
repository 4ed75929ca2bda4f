"""FedRS (Li and Zhan, KDD 2021) with FLFA."""

from __future__ import annotations

from typing import Any

from ..selection import LayerSelection
from .base import FedMethod

__all__ = ["FEDRS_ALPHA", "FEDRS_VARIANT", "FLFAFedRS", "FedRS"]

FEDRS_ALPHA = "fedrs-alpha"
FEDRS_VARIANT = "fedrs-variant"


class FedRS(FedMethod):
    """FedAvg whose clients scale the logits of classes they lack; 1 is FedAvg.

    Parameters
    ----------
    alpha : float (default: 0.5)
        The factor; the authors try 0.9, 0.5, 0.1, FedDecorr's code has 0.5.
    variant : str (default: "hard")
        ``"hard"``: alpha for missing classes, 1 for others (the paper); ``"soft"``:
        ``alpha + (1 - alpha) n_c / max n`` (the authors' repository).
    **method : Any
        For :class:`~.base.FedMethod`.
    """

    def __init__(
        self, *, alpha: float = 0.5, variant: str = "hard", **method: Any
    ) -> None:
        super().__init__(**method)
        if variant not in ("hard", "soft"):
            raise ValueError(f"variant {variant!r} is unknown; allowed: hard, soft")
        self.alpha = alpha
        self.variant = variant

    def client_settings(self) -> dict[str, Any]:
        """Tell the clients both."""
        return {FEDRS_ALPHA: self.alpha, FEDRS_VARIANT: self.variant}


class FLFAFedRS(LayerSelection, FedRS):
    """:class:`FedRS` with FLFA."""
