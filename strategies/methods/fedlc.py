"""FedLC (Zhang et al., ICML 2022) with FLFA."""

from ..options import Number, Option
from ..selection import LayerSelection
from .base import FedMethod

__all__ = ["FLFAFedLC", "FedLC"]


class FedLC(FedMethod):
    """FedAvg whose clients calibrate the logits by their class counts.

    Parameters
    ----------
    tau : float
        Strength of the calibration; 0 is FedAvg. The default is that of FL-bench and of
        FedACG's code; the paper gives no value.
    """

    display_name = "FedLC"
    tau = Option(
        "fedlc-tau",
        1.0,
        Number(least=0),
        "strength of the calibration by class counts",
        fedavg=0.0,
        to_clients=True,
    )


class FLFAFedLC(LayerSelection, FedLC):
    """:class:`FedLC` with FLFA."""
