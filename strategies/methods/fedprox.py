"""FedProx (Li et al., 2020) with FLFA."""

from flwr.serverapp.strategy import FedProx

from ..aggregation import OnePassFedAvg
from ..options import Number, Option
from ..selection import LayerSelection

__all__ = ["FLFAFedProx"]


class FLFAFedProx(LayerSelection, FedProx, OnePassFedAvg):
    """Flower's ``FedProx`` with FLFA.

    The clients add ``mu (w - W)`` to the gradient, W being the weights they received.
    ``proximal_mu=0`` is FedAvg; it is Flower's default for the constructor.
    """

    display_name = "FedProx"
    proximal_mu = Option(
        "fedprox-mu",
        0.1,
        Number(least=0),
        "pull towards the received weights",
        fedavg=0.0,
        to_clients="proximal-mu",  # sent by Flower's class
    )
