"""FedDyn (Acar et al., ICLR 2021) with FLFA."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..selection import LayerSelection
from .base import Arrays, FedMethod, Reply, uniform_mean

__all__ = ["FEDDYN_ALPHA", "FLFAFedDyn", "FedDyn"]

FEDDYN_ALPHA = "feddyn-alpha"


class FedDyn(FedMethod):
    """Dynamic regularisation: ``W = mean(w_i) + H``, ``H += sum(w_i - sent) / N``.

    H, the mean of the clients' dual variables, is updated first. Clients count alike,
    as in the paper. ``alpha`` is known to the clients only; with ``alpha = 0`` their
    training is FedAvg's, but the server's step is not.

    Parameters
    ----------
    num_clients : int
        N, all clients of the federation.
    alpha : float (default: 0.01)
        The authors' value for CIFAR-10.
    **method : Any
        For :class:`~.base.FedMethod`.
    """

    state_names = ("dual",)

    def __init__(self, *, num_clients: int, alpha: float = 0.01, **method: Any) -> None:
        super().__init__(**method)
        self.num_clients = int(num_clients)
        self.alpha = float(alpha)
        self.dual: Arrays = {}

    def client_settings(self) -> dict[str, Any]:
        """Tell the clients alpha."""
        return {FEDDYN_ALPHA: self.alpha}

    def server_step(
        self, sent: Arrays, mean: Arrays, replies: Sequence[Reply]
    ) -> Arrays:
        """Correct the mean by the mean dual variable."""
        share = len(replies) / self.num_clients
        alike = uniform_mean(replies)
        self.dual = {
            k: self.dual.get(k, np.zeros_like(w)) + share * (w - sent[k])
            for k, w in alike.items()
        }
        return {name: w + self.dual[name] for name, w in alike.items()}


class FLFAFedDyn(LayerSelection, FedDyn):
    """:class:`FedDyn` with FLFA."""
