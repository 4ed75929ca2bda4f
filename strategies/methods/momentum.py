"""FedAvgM (Hsu et al., 2019) in the three forms in use, with FLFA."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..selection import LayerSelection
from .base import Arrays, FedMethod, Reply

__all__ = ["FORMS", "FLFAServerMomentum", "ServerMomentum"]

FORMS = ("dampened", "heavy-ball", "nesterov")


class ServerMomentum(FedMethod):
    """FedAvg with momentum on the server, on parameters only.

    With ``d`` the sent minus the mean parameters, ``m`` the momentum and ``s`` the
    server's learning rate, the parameters go down by

    - ``dampened``: ``s v``, ``v = m v + (1 - m) d`` (the paper's earlier code);
    - ``heavy-ball``: ``s v``, ``v = m v + d`` (Flower's ``FedAvgM``);
    - ``nesterov``: ``s (d + m v)``, ``v = m v + d`` (Hsu et al. as Flower's baseline
      has it).

    ``dampened`` is ``heavy-ball`` with ``s`` times ``1 - m``. ``m = 0`` and ``s = 1``
    is FedAvg, bit for bit.

    Parameters
    ----------
    form : str (default: "dampened")
        One of the above.
    server_momentum : float (default: 0.1)
        m, the paper's earlier code has 0.1.
    server_learning_rate : float (default: 1.0)
        s.
    **method : Any
        For :class:`~.base.FedMethod`.
    """

    state_names = ("velocity",)

    def __init__(
        self,
        *,
        form: str = "dampened",
        server_momentum: float = 0.1,
        server_learning_rate: float = 1.0,
        **method: Any,
    ) -> None:
        super().__init__(**method)
        if form not in FORMS:
            raise ValueError(f"form {form!r} is unknown; allowed: {', '.join(FORMS)}")
        self.form = form
        self.server_momentum = float(server_momentum)
        self.server_learning_rate = float(server_learning_rate)
        self.velocity: Arrays = {}

    def server_step(
        self, sent: Arrays, mean: Arrays, replies: Sequence[Reply]
    ) -> Arrays:
        """Move the parameters by the momentum."""
        m, rate = self.server_momentum, self.server_learning_rate
        if m == 0 and rate == 1:
            return {}  # sent - (sent - mean) would not be the mean's bits
        gain = 1 - m if self.form == "dampened" else 1.0
        apart = {name: sent[name] - mean[name] for name in mean}
        self.velocity = {
            name: m * self.velocity.get(name, np.zeros_like(d)) + gain * d
            for name, d in apart.items()
        }
        if self.form == "nesterov":
            steps = {k: d + m * self.velocity[k] for k, d in apart.items()}
        else:
            steps = self.velocity
        return {name: sent[name] - rate * step for name, step in steps.items()}


class FLFAServerMomentum(LayerSelection, ServerMomentum):
    """:class:`ServerMomentum` with FLFA; layers are scored before the momentum step."""
