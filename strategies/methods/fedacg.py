"""FedACG (Kim et al., CVPR 2024) with FLFA."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord

from ..options import Number, Option
from ..selection import LayerSelection
from .base import Arrays, FedMethod, Reply

__all__ = ["FLFAFedACG", "FedACG"]


class FedACG(FedMethod):
    """Clients start from a look-ahead along the server's momentum.

    The server sends ``W + lambda m`` for the parameters, ``m`` being the last change of
    the global model W. W itself is the mean of the replies; it is returned, evaluated
    and saved. The clients add ``beta (w - sent)`` to the gradient.
    ``lambda = beta = 0`` is FedAvg.

    Parameters
    ----------
    lookahead : float
        lambda. The default is the authors' value.
    beta : float
        Strength of the clients' pull. The default is the authors' 0.001, which they
        apply to the square without a half.
    **method : Any
        Arguments of :class:`~.base.FedMethod`. Clients are weighted by their number of
        samples; the authors have clients of equal size.
    """

    display_name = "FedACG"
    lookahead = Option(
        "fedacg-lambda",
        0.85,
        Number(least=0, below=1),
        "look-ahead along the server's momentum",
        fedavg=0.0,
    )
    beta = Option(
        "fedacg-beta",
        0.002,
        Number(least=0),
        "pull towards the look-ahead",
        fedavg=0.0,
        to_clients=True,
    )
    state_names = ("previous", "momentum")

    def __init__(
        self,
        *,
        lookahead: float = lookahead.default,
        beta: float = beta.default,
        **method: Any,
    ) -> None:
        super().__init__(**method)
        self.lookahead = lookahead
        self.beta = beta
        self.previous: Arrays = {}
        self.momentum: Arrays = {}

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
        """Keep the mean; remember its difference from the last one."""
        self.momentum = {k: mean[k] - self.previous[k] for k in mean}
        self.previous = mean
        return {}


class FLFAFedACG(LayerSelection, FedACG):
    """:class:`FedACG` with FLFA; B and the scores are relative to the look-ahead."""
