"""A strategy that knows nothing of FLFA."""

from collections.abc import Iterable

from flwr.app import Array, ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import FedAvg


class FedAvgEMA(FedAvg):
    """FedAvg whose global model is a moving average over the rounds.

    ``decay`` is the share of the old model in the new one; 0 is FedAvg. With few
    clients in a round it keeps one round's draw from moving the model too far.
    """

    def __init__(self, *, decay: float, **fedavg) -> None:
        super().__init__(**fedavg)
        self.decay = decay
        self.average: ArrayRecord | None = None

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        arrays, metrics = super().aggregate_train(server_round, replies)
        if arrays is None:  # nobody has replied
            return None, metrics
        if self.average is not None:
            arrays = ArrayRecord(
                {name: self._mix(self.average[name], arrays[name]) for name in arrays}
            )
        self.average = arrays
        return arrays, metrics

    def _mix(self, old: Array, new: Array) -> Array:
        return Array(self.decay * old.numpy() + (1 - self.decay) * new.numpy())
