"""FedAvgM (Hsu et al., 2019) with FLFA."""

from flwr.serverapp.strategy import FedAvgM

from ..aggregation import OnePassFedAvg
from ..selection import LayerSelection
from ..state import ServerState, flatten_state, state_group

__all__ = ["FLFAFedAvgM"]


class FLFAFedAvgM(LayerSelection, FedAvgM, OnePassFedAvg):
    """Flower's ``FedAvgM`` (heavy ball) with FLFA; ``rule="none"`` is Flower's own.

    Layers are scored relative to the weights that were sent, before the momentum step.
    As in Flower, it changes every array, BatchNorm's statistics included;
    :class:`~.momentum.FLFAServerMomentum` moves parameters only.
    """

    def server_state(self) -> ServerState:
        """Return the state that the next round needs besides the global model."""
        arrays, values = super().server_state()
        # Flower's vector is a list, without names.
        vector = {str(i): array for i, array in enumerate(self.momentum_vector or [])}
        return ServerState({**arrays, **flatten_state({"momentum": vector})}, values)

    def load_server_state(self, state: ServerState) -> None:
        """Restore the state that :meth:`server_state` has returned."""
        super().load_server_state(state)
        vector = state_group(state.arrays, "momentum")
        self.momentum_vector = [vector[str(i)] for i in range(len(vector))] or None
