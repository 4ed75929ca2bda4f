"""SCAFFOLD (Karimireddy et al., ICML 2020) with FLFA."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid

from ..decoding import encode
from ..options import Number, Option, WholeNumber
from ..selection import LayerSelection
from .base import Arrays, FedMethod, Reply, uniform_mean

__all__ = ["CONTROL", "STEP_LENGTH", "FLFAScaffold", "Scaffold"]

CONTROL = "control"
"""Record of a train message that holds the server's control variate."""
STEP_LENGTH = "step-length"
"""Metric of a reply: the change of a weight under a constant gradient of 1."""


class Scaffold(FedMethod):
    """Control variates against drift: ``W += s mean(w_i - W)``, ``c = mean(c_i)``.

    This is option II of the paper. The change of a client's variate is
    ``-c + (W - w_i) / step length``, in which c_i cancels out. So the server computes
    it, and the clients upload nothing but their weights. They download weights and c.
    Variates start at zero. All clients have the same weight.

    Parameters
    ----------
    num_clients : int
        The number of clients of the federation.
    global_learning_rate : float
        s, the learning rate of the server.
    **method : Any
        Arguments of :class:`~.base.FedMethod`.
    """

    display_name = "SCAFFOLD"
    global_learning_rate = Option(
        "scaffold-learning-rate", 1.0, Number(above=0), "learning rate of the server"
    )
    derived_arguments = ("parameters", "num_clients")
    control: Arrays
    state_names = ("control",)
    reply_metrics = (STEP_LENGTH,)

    def __init__(self, *, num_clients: int, **method: Any) -> None:
        super().__init__(**method)
        self.num_clients = WholeNumber(1).convert("num_clients", num_clients)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Configure the next round of federated training."""
        messages = list(super().configure_train(server_round, arrays, config, grid))
        if not self.control:
            self.control = {k: np.zeros_like(v) for k, v in self._sent.items()}
        control = {k: encode(values) for k, values in self.control.items()}
        for message in messages:
            message.content[CONTROL] = ArrayRecord(control)
        return messages

    def server_step(
        self, sent: Arrays, mean: Arrays, replies: Sequence[Reply]
    ) -> Arrays:
        """Update the weights and the control variate."""
        for name, control in self.control.items():
            changes = sum(
                (sent[name] - reply.arrays[name]) / reply.metrics[STEP_LENGTH] - control
                for reply in replies
            )
            self.control[name] = control + np.asarray(
                changes / self.num_clients, control.dtype
            )
        mean_of_clients = uniform_mean(replies)
        if self.global_learning_rate == 1:
            return mean_of_clients
        rate = self.global_learning_rate
        return {k: sent[k] + rate * (w - sent[k]) for k, w in mean_of_clients.items()}


class FLFAScaffold(LayerSelection, Scaffold):
    """:class:`Scaffold` with FLFA."""
