"""FedACG (Kim et al., CVPR 2024) with FLFA."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord

from ..selection import LayerSelection
from .base import Arrays, FedMethod, Reply

__all__ = ["FEDACG_BETA", "FLFAFedACG", "FedACG"]

FEDACG_BETA = "fedacg-beta"


class FedACG(FedMethod):
    """Clients start from a look-ahead along the server's momentum.

    Sent: ``W + lambda m`` on the parameters, ``m`` the last change of the global model
    W; W itself is the mean of the replies, is returned, evaluated and saved. The
    clients add ``beta (w - sent)`` to the gradient. ``lambda = beta = 0`` is FedAvg.

    Parameters
    ----------
    lookahead : float (default: 0.85)
        lambda, the authors' value.
    beta : float (default: 0.002)
        The authors' 0.001 is on the square without a half.
    **method : Any
        For :class:`~.base.FedMethod`. Clients are weighted by their number of
        samples; the authors' equal splits weight them alike.
    """

    state_names = ("previous", "momentum")

    def __init__(
        self, *, lookahead: float = 0.85, beta: float = 0.002, **method: Any
    ) -> None:
        super().__init__(**method)
        self.lookahead = float(lookahead)
        self.beta = float(beta)
        self.previous: Arrays = {}
        self.momentum: Arrays = {}

    def client_settings(self) -> dict[str, Any]:
        """Tell the clients beta."""
        return {FEDACG_BETA: self.beta}

    def arrays_to_send(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return the look-ahead."""
        if not self.previous:
            self.previous = self._decoded_parameters(arrays)
        if self.lookahead == 0 or not self.momentum:
            return arrays
        ahead = {
            name: arrays[name].numpy() + self.lookahead * self.momentum[name]
            for name in self.momentum
        }
        new = {name: Array(np.asarray(values)) for name, values in ahead.items()}
        return ArrayRecord({k: new.get(k, array) for k, array in arrays.items()})

    def server_step(
        self, sent: Arrays, mean: Arrays, replies: Sequence[Reply]
    ) -> Arrays:
        """Take the mean as it is; remember how far it is from the last one."""
        self.momentum = {k: mean[k] - self.previous[k] for k in mean}
        self.previous = mean
        return {}


class FLFAFedACG(LayerSelection, FedACG):
    """:class:`FedACG` with FLFA; B and the scores are relative to the look-ahead."""
