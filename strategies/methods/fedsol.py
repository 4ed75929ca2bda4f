"""FedSOL (Lee et al., CVPR 2024) with FLFA."""

from ..options import Number, OneOf, Option
from ..selection import LayerSelection
from .base import FedMethod

__all__ = ["FLFAFedSOL", "FedSOL"]


class FedSOL(FedMethod):
    """FedAvg whose clients take gradients at perturbed weights.

    Parameters
    ----------
    rho : float
        Size of the perturbation; 0 is FedAvg. The default is the authors' value.
    variant : str
        ``"adaptive"``: larger where a weight has moved more; ``"fixed"``: along the
        gradient.
    part : str
        The perturbed weights: ``"all"`` or those of the ``"head"``.
    """

    display_name = "FedSOL"
    rho = Option(
        "fedsol-rho",
        1.0,
        Number(least=0),
        "size of the perturbation",
        fedavg=0.0,
        to_clients=True,
    )
    variant = Option(
        "fedsol-variant",
        "adaptive",
        OneOf({"adaptive": "larger where a weight has moved", "fixed": ""}),
        "shape of the perturbation",
        to_clients=True,
    )
    part = Option(
        "fedsol-part",
        "all",
        OneOf({"all": "", "head": "those of the last layer only"}),
        "weights that are perturbed",
        to_clients=True,
    )


class FLFAFedSOL(LayerSelection, FedSOL):
    """:class:`FedSOL` with FLFA."""
