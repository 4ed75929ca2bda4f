"""FedDyn (Acar et al., ICLR 2021) with FLFA."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..options import Number, Option, WholeNumber
from ..selection import LayerSelection
from .base import Arrays, FedMethod, Reply, uniform_mean

__all__ = ["FLFAFedDyn", "FedDyn"]


class FedDyn(FedMethod):
    """Dynamic regularisation: ``W = mean(w_i) + H``, ``H += sum(w_i - sent) / N``.

    H, the mean of the clients' dual variables, is updated first. All clients have the
    same weight, as in the paper. Only the clients use ``alpha``: with ``alpha = 0``
    they train as in FedAvg, but the server's step is not FedAvg's.

    Parameters
    ----------
    num_clients : int
        N, the number of clients of the federation.
    alpha : float
        Strength of the regularisation. The default is the authors' value for CIFAR-10.
    **method : Any
        Arguments of :class:`~.base.FedMethod`.
    """

    display_name = "FedDyn"
    alpha = Option(
        "feddyn-alpha",
        0.01,
        Number(least=0),
        "strength of the dynamic regularisation",
        to_clients=True,
    )
    derived_arguments = ("parameters", "num_clients")
    dual: Arrays
    state_names = ("dual",)

    def __init__(self, *, num_clients: int, **method: Any) -> None:
        super().__init__(**method)
        self.num_clients = WholeNumber(1).convert("num_clients", num_clients)

    def server_step(
        self, sent: Arrays, mean: Arrays, replies: Sequence[Reply]
    ) -> Arrays:
        """Correct the mean by the mean dual variable."""
        share = len(replies) / self.num_clients
        mean_of_clients = uniform_mean(replies)
        self.dual = {
            k: self.dual.get(k, np.zeros_like(w)) + share * (w - sent[k])
            for k, w in mean_of_clients.items()
        }
        return {name: w + self.dual[name] for name, w in mean_of_clients.items()}


class FLFAFedDyn(LayerSelection, FedDyn):
    """:class:`FedDyn` with FLFA."""
