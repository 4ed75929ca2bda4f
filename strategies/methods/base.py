"""What the server sides of the methods share."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from ..aggregation import OnePassFedAvg
from ..decoding import Decoded, encoded
from ..state import ServerState, joined, parted

__all__ = ["Arrays", "FedMethod", "Reply", "uniform_mean"]

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]

STATISTICS = ("running_mean", "running_var")
"""The last part of the names of BatchNorm's floating buffers."""


@dataclass(frozen=True)
class Reply:
    """What one client has sent back: its parameters and its metrics.

    The parameters are read-only, and decoded each time they are asked for.
    """

    arrays: Mapping[str, npt.NDArray[Any]]
    metrics: Mapping[str, Any]


class FedMethod(OnePassFedAvg):
    """FedAvg with hooks for what a method does on the server.

    Flower's weighted mean stays as it is for everything but the parameters: buffers
    (BatchNorm's statistics) have no gradient, and a momentum could push a variance
    below zero.

    Parameters
    ----------
    parameters : Collection[str], optional
        The arrays that are parameters (``dict(model.named_parameters())``). If it is
        not given: all floating ones but BatchNorm's statistics, which are known by
        their names. A model with other floating buffers should name its parameters.
    **fedavg : Any
        For FedAvg.
    """

    state_names: ClassVar[tuple[str, ...]] = ()
    """The attributes, arrays by name, that a method carries from round to round."""
    reply_metrics: ClassVar[tuple[str, ...]] = ()
    """The metrics of a reply that the method needs; each above 0."""

    def __init__(
        self, *, parameters: Collection[str] | None = None, **fedavg: Any
    ) -> None:
        super().__init__(**fedavg)
        if isinstance(parameters, str):
            raise ValueError(f"parameters must be a set of names, not {parameters!r}")
        self.parameters = None if parameters is None else frozenset(parameters)
        self._sent: Arrays = {}

    def server_state(self) -> ServerState:
        """Return what the next round depends on besides the global model."""
        groups = {name: getattr(self, name) for name in self.state_names}
        return ServerState(joined(groups), {})

    def load_server_state(self, state: ServerState) -> None:
        """Take up what :meth:`server_state` has returned, in a new strategy."""
        for name in self.state_names:
            setattr(self, name, parted(state.arrays, name))

    def client_settings(self) -> dict[str, Any]:
        """Return what the clients need to know, for the message's config."""
        return {}

    def arrays_to_send(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return what the clients start from, if it is not the global model."""
        return arrays

    def server_step(
        self, sent: Arrays, mean: Arrays, replies: Sequence[Reply]
    ) -> Arrays:
        """Return new parameters, given those sent, their mean and the replies.

        Parameters that are not returned stay the mean, bit for bit. What is given is
        read-only.
        """
        return {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Configure the next round of federated training."""
        config.update(self.client_settings())
        if self.parameters is None:
            # Settled once: a counter that is averaged comes back as a float.
            self.parameters = frozenset(
                name
                for name, array in arrays.items()
                if np.issubdtype(np.dtype(array.dtype), np.floating)
                and name.rpartition(".")[2] not in STATISTICS
            )
        arrays = self.arrays_to_send(arrays)
        self._sent = self._decoded_parameters(arrays)
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average as FedAvg does, then take the method's own step."""
        replies = list(replies)
        mean, metrics = super().aggregate_train(server_round, replies)
        if mean is None or type(self).server_step is FedMethod.server_step:
            return mean, metrics
        good = [self._reply(message) for message in replies if not message.has_error()]
        stepped = self.server_step(self._sent, self._decoded_parameters(mean), good)
        new = {name: encoded(values) for name, values in stepped.items()}
        return ArrayRecord({k: new.get(k, array) for k, array in mean.items()}), metrics

    def _reply(self, message: Message) -> Reply:
        (arrays,) = message.content.array_records.values()
        (metrics,) = message.content.metric_records.values()
        return Reply(Decoded(arrays, self.parameters or ()), dict(metrics))

    def _decoded_parameters(self, arrays: ArrayRecord) -> Arrays:
        return dict(Decoded(arrays, self.parameters or ()))


def uniform_mean(replies: Sequence[Reply]) -> Arrays:
    """Return the mean in which every client counts alike, summed as Flower does it."""
    share = 1 / len(replies)
    mean = {name: values * share for name, values in replies[0].arrays.items()}
    for reply in replies[1:]:
        for name in mean:
            mean[name] = mean[name] + reply.arrays[name] * share
    return mean
