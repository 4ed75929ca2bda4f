"""FedLC (Zhang et al., ICML 2022) with FLFA."""

from __future__ import annotations

from typing import Any

from ..selection import LayerSelection
from .base import FedMethod

__all__ = ["FEDLC_TAU", "FLFAFedLC", "FedLC"]

FEDLC_TAU = "fedlc-tau"


class FedLC(FedMethod):
    """FedAvg whose clients calibrate the logits by their class counts; 0 is FedAvg.

    Parameters
    ----------
    tau : float (default: 1.0)
        Strength, as in FL-bench and FedACG's code; the paper gives no value.
    **method : Any
        For :class:`~.base.FedMethod`.
    """

    def __init__(self, *, tau: float = 1.0, **method: Any) -> None:
        super().__init__(**method)
        self.tau = tau

    def client_settings(self) -> dict[str, Any]:
        """Tell the clients tau."""
        return {FEDLC_TAU: self.tau}


class FLFAFedLC(LayerSelection, FedLC):
    """:class:`FedLC` with FLFA."""
