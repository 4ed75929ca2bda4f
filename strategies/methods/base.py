"""Base class of the methods that change the server's step or configure the clients."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from ..aggregation import OnePassFedAvg
from ..decoding import DecodedArrays, encode
from ..options import options_of
from ..state import ServerState, flatten_state, state_group

__all__ = ["Arrays", "FedMethod", "Reply", "uniform_mean"]

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]

STATISTICS = ("running_mean", "running_var")
"""Last part of the names of BatchNorm's floating-point buffers."""


@dataclass(frozen=True)
class Reply:
    """The parameters and the metrics in one client's reply.

    The parameters are read-only. They are decoded at each access.
    """

    arrays: Mapping[str, npt.NDArray[Any]]
    metrics: Mapping[str, Any]


class FedMethod(OnePassFedAvg):
    """FedAvg with hooks for the method's own step on the server.

    A method declares its options as class attributes of type
    :class:`~..options.Option`. They are arguments of its constructor, and those that
    the clients need are added to the config of each train message.

    Only parameters take part in a method's step. Buffers (BatchNorm's statistics) keep
    Flower's weighted mean: they have no gradient, and a momentum could push a variance
    below zero.

    Parameters
    ----------
    parameters : Collection[str], optional
        Names of the arrays that are parameters (``dict(model.named_parameters())``). By
        default these are all floating-point arrays except BatchNorm's statistics, which
        are recognised by their names. A model with other floating-point buffers should
        name its parameters.
    **arguments : Any
        The method's options, and arguments of FedAvg.
    """

    display_name: ClassVar[str]
    """The method's name as papers spell it."""
    derived_arguments: ClassVar[tuple[str, ...]] = ("parameters",)
    """Arguments that follow from the model and the federation, not from a choice."""
    state_names: ClassVar[tuple[str, ...]] = ()
    """Attributes (arrays by name, at first none) that are kept from round to round."""
    reply_metrics: ClassVar[tuple[str, ...]] = ()
    """Metrics that each reply must have, each above 0."""

    def __init__(
        self, *, parameters: Collection[str] | None = None, **arguments: Any
    ) -> None:
        for option in options_of(type(self)):
            value = arguments.pop(option.argument, option.default)
            setattr(self, option.argument, value)
        super().__init__(**arguments)
        if isinstance(parameters, str):
            raise ValueError(f"parameters must be a set of names, not {parameters!r}")
        self.parameters = None if parameters is None else frozenset(parameters)
        self._sent: Arrays = {}
        for name in self.state_names:
            setattr(self, name, {})

    def server_state(self) -> ServerState:
        """Return the state that the next round needs besides the global model."""
        groups = {name: getattr(self, name) for name in self.state_names}
        return ServerState(flatten_state(groups), {})

    def load_server_state(self, state: ServerState) -> None:
        """Restore the state that :meth:`server_state` has returned."""
        for name in self.state_names:
            setattr(self, name, state_group(state.arrays, name))

    def client_settings(self) -> dict[str, Any]:
        """Return the options that the clients need, under their message keys."""
        return {
            option.message_key: getattr(self, option.argument)
            for option in options_of(type(self))
            if option.message_key
        }

    def arrays_to_send(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return the arrays that are sent; a method may send others than the model."""
        return arrays

    def server_step(
        self, sent: Arrays, mean: Arrays, replies: Sequence[Reply]
    ) -> Arrays:
        """Return new parameters, given those sent, their mean and the replies.

        Parameters that are not returned keep the mean, bit for bit. All arguments are
        read-only.
        """
        return {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Configure the next round of federated training."""
        config.update(self.client_settings())
        if self.parameters is None:
            # Only in the first round: the mean of integer counters is floating-point.
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
        """Average as FedAvg does, then take the method's step."""
        replies = list(replies)
        mean, metrics = super().aggregate_train(server_round, replies)
        if mean is None or type(self).server_step is FedMethod.server_step:
            return mean, metrics
        good = [self._reply(message) for message in replies if not message.has_error()]
        stepped = self.server_step(self._sent, self._decoded_parameters(mean), good)
        new = {name: encode(values) for name, values in stepped.items()}
        return ArrayRecord({k: new.get(k, array) for k, array in mean.items()}), metrics

    def _reply(self, message: Message) -> Reply:
        (arrays,) = message.content.array_records.values()
        (metrics,) = message.content.metric_records.values()
        return Reply(DecodedArrays(arrays, self.parameters or ()), dict(metrics))

    def _decoded_parameters(self, arrays: ArrayRecord) -> Arrays:
        return dict(DecodedArrays(arrays, self.parameters or ()))


def uniform_mean(replies: Sequence[Reply]) -> Arrays:
    """Return the unweighted mean of the replies, summed in Flower's order."""
    share = 1 / len(replies)
    mean = {name: values * share for name, values in replies[0].arrays.items()}
    for reply in replies[1:]:
        for name in mean:
            mean[name] = mean[name] + reply.arrays[name] * share
    return mean
