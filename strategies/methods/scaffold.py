"""SCAFFOLD (Karimireddy et al., ICML 2020) with FLFA."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid

from ..selection import LayerSelection
from .base import Arrays, FedMethod, Reply, uniform_mean

__all__ = ["CONTROL", "STEP_LENGTH", "FLFAScaffold", "Scaffold"]

CONTROL = "control"
"""The record of a train message that holds the server's control variate."""
STEP_LENGTH = "step-length"
"""The metric of a reply: how far a gradient of 1 would have moved a weight."""


class Scaffold(FedMethod):
    """Control variates against drift: ``W += s mean(w_i - W)``, ``c`` the mean c_i.

    Option II of the paper. The change of a client's variate is
    ``-c + (W - w_i) / step length``, in which c_i cancels out: the server computes it,
    and nothing but the weights is uploaded. Downloaded are weights and c. Variates
    begin at zero; clients count alike.

    Parameters
    ----------
    num_clients : int
        All clients of the federation.
    global_learning_rate : float (default: 1.0)
        s.
    **method : Any
        For :class:`~.base.FedMethod`.
    """

    state_names = ("control",)
    reply_metrics = (STEP_LENGTH,)

    def __init__(
        self, *, num_clients: int, global_learning_rate: float = 1.0, **method: Any
    ) -> None:
        super().__init__(**method)
        self.num_clients = int(num_clients)
        self.global_learning_rate = float(global_learning_rate)
        self.control: Arrays = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Configure the next round of federated training."""
        messages = list(super().configure_train(server_round, arrays, config, grid))
        if not self.control:
            self.control = {k: np.zeros_like(v) for k, v in self._sent.items()}
        control = {k: Array(np.asarray(values)) for k, values in self.control.items()}
        for message in messages:
            message.content[CONTROL] = ArrayRecord(control)
        return messages

    def server_step(
        self, sent: Arrays, mean: Arrays, replies: Sequence[Reply]
    ) -> Arrays:
        """Move weights and control variate."""
        for name, control in self.control.items():
            changes = sum(
                (sent[name] - reply.arrays[name]) / reply.metrics[STEP_LENGTH] - control
                for reply in replies
            )
            self.control[name] = control + np.asarray(
                changes / self.num_clients, control.dtype
            )
        alike = uniform_mean(replies)
        if self.global_learning_rate == 1:
            return alike
        rate = self.global_learning_rate
        return {k: sent[k] + rate * (w - sent[k]) for k, w in alike.items()}


class FLFAScaffold(LayerSelection, Scaffold):
    """:class:`Scaffold` with FLFA."""
