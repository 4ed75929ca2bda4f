"""MOON (Li et al., CVPR 2021) with FLFA."""

from ..options import Number, Option
from ..selection import LayerSelection
from .base import FedMethod

__all__ = ["FLFAMOON", "MOON"]


class MOON(FedMethod):
    """FedAvg whose clients add a contrastive term to the loss.

    Parameters
    ----------
    mu : float
        Weight of the term; 0 is FedAvg. The default is that of the FLFA paper's earlier
        code. MOON's authors use 1 to 5.
    temperature : float
        Temperature of the term. The default is that of both.
    """

    display_name = "MOON"
    mu = Option(
        "moon-mu",
        0.1,
        Number(least=0),
        "weight of the contrastive term",
        fedavg=0.0,
        to_clients=True,
    )
    temperature = Option(
        "moon-temperature",
        0.5,
        Number(above=0),
        "temperature of the contrastive term",
        to_clients=True,
    )


class FLFAMOON(LayerSelection, MOON):
    """:class:`MOON` with FLFA."""
