"""FedACG (Kim et al., CVPR 2024) with FLFA."""

from collections.abc import Sequence

from flwr.app import ArrayRecord

from ..decoding import encode
from ..options import Number, Option
from ..selection import LayerSelection
from .base import Arrays, FedMethod, Reply

__all__ = ["FLFAFedACG", "FedACG"]


class FedACG(FedMethod):
    """Clients start from a look-ahead along the server's momentum.

    The server sends ``W + lambda m`` for the parameters, ``m`` being the last change of
    the global model W. W itself is the mean of the replies; it is returned, evaluated
    and saved. The clients add ``beta (w - sent)`` to the gradient.
    ``lambda = beta = 0`` is FedAvg. Clients are weighted by their number of samples;
    the authors have clients of equal size.

    Parameters
    ----------
    lookahead : float
        lambda. The default is the authors' value.
    beta : float
        Strength of the clients' pull. The default is the authors' 0.001, which they
        apply to the square without a half.
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
    previous: Arrays
    momentum: Arrays
    state_names = ("previous", "momentum")

    def arrays_to_send(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return the look-ahead."""
        if not self.previous:
            self.previous = self._decoded_parameters(arrays)
        if self.lookahead == 0 or not self.momentum:
            return arrays
        new = {
            name: encode(arrays[name].numpy() + self.lookahead * momentum)
            for name, momentum in self.momentum.items()
        }
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
