"""FedRS (Li and Zhan, KDD 2021) with FLFA."""

from ..options import Number, OneOf, Option
from ..selection import LayerSelection
from .base import FedMethod

__all__ = ["FLFAFedRS", "FedRS"]


class FedRS(FedMethod):
    """FedAvg whose clients scale the logits of the classes they lack.

    Parameters
    ----------
    alpha : float
        The factor; 1 is FedAvg. The authors try 0.9, 0.5 and 0.1; the default is that
        of FedDecorr's code.
    variant : str
        ``"hard"``: alpha for missing classes, 1 for others (the paper); ``"soft"``:
        ``alpha + (1 - alpha) n_c / max n`` (the authors' repository).
    """

    display_name = "FedRS"
    alpha = Option(
        "fedrs-alpha",
        0.5,
        Number(least=0, most=1),
        "factor on the logits of missing classes",
        fedavg=1.0,
        to_clients=True,
    )
    variant = Option(
        "fedrs-variant",
        "hard",
        OneOf({"hard": "1, as in the paper", "soft": "by their number of samples"}),
        "factor of the classes a client has",
        to_clients=True,
    )


class FLFAFedRS(LayerSelection, FedRS):
    """:class:`FedRS` with FLFA."""
