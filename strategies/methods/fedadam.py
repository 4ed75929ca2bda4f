"""FedAdam (Reddi et al., 2021) with FLFA."""

from flwr.serverapp.strategy import FedAdam

from ..aggregation import OnePassFedAvg
from ..selection import LayerSelection
from ..state import ServerState, flatten_state, state_group

__all__ = ["FLFAFedAdam"]


class FLFAFedAdam(LayerSelection, FedAdam, OnePassFedAvg):
    """Flower's ``FedAdam`` with FLFA; ``rule="none"`` is Flower's own.

    Layers are scored relative to the weights that were sent, before the Adam step.
    As in Flower, it changes every array, BatchNorm's statistics included.
    """

    def server_state(self) -> ServerState:
        """Return the state that the next round needs besides the global model."""
        arrays, values = super().server_state()
        moments = flatten_state({"m_t": self.m_t or {}, "v_t": self.v_t or {}})
        return ServerState({**arrays, **moments}, values)

    def load_server_state(self, state: ServerState) -> None:
        """Restore the state that :meth:`server_state` has returned."""
        super().load_server_state(state)
        self.m_t = state_group(state.arrays, "m_t") or None
        self.v_t = state_group(state.arrays, "v_t") or None
