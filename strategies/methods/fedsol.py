"""FedSOL (Lee et al., CVPR 2024) with FLFA."""

from __future__ import annotations

from typing import Any

from ..selection import LayerSelection
from .base import FedMethod

__all__ = ["FEDSOL_PART", "FEDSOL_RHO", "FEDSOL_VARIANT", "FLFAFedSOL", "FedSOL"]

FEDSOL_RHO = "fedsol-rho"
FEDSOL_VARIANT = "fedsol-variant"
FEDSOL_PART = "fedsol-part"


class FedSOL(FedMethod):
    """FedAvg whose clients take gradients at perturbed weights; 0 is FedAvg.

    Parameters
    ----------
    rho : float (default: 1.0)
        Size of the perturbation; the authors' value.
    variant : str (default: "adaptive")
        ``"adaptive"``: more where a weight has moved; ``"fixed"``: along the gradient.
    part : str (default: "all")
        What is perturbed: ``"all"`` weights or those of the ``"head"``.
    **method : Any
        For :class:`~.base.FedMethod`.
    """

    def __init__(
        self,
        *,
        rho: float = 1.0,
        variant: str = "adaptive",
        part: str = "all",
        **method: Any,
    ) -> None:
        super().__init__(**method)
        if variant not in ("adaptive", "fixed"):
            raise ValueError(
                f"variant {variant!r} is unknown; allowed: adaptive, fixed"
            )
        if part not in ("all", "head"):
            raise ValueError(f"part {part!r} is unknown; allowed: all, head")
        self.rho = rho
        self.variant = variant
        self.part = part

    def client_settings(self) -> dict[str, Any]:
        """Tell the clients all three."""
        return {
            FEDSOL_RHO: self.rho,
            FEDSOL_VARIANT: self.variant,
            FEDSOL_PART: self.part,
        }


class FLFAFedSOL(LayerSelection, FedSOL):
    """:class:`FedSOL` with FLFA."""
