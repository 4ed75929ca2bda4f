"""FedAvgM (Hsu et al., 2019) in the three forms in use, with FLFA."""

from collections.abc import Sequence

import numpy as np

from ..options import Number, OneOf, Option
from ..selection import LayerSelection
from .base import Arrays, FedMethod, Reply

__all__ = ["FLFAServerMomentum", "ServerMomentum"]


class ServerMomentum(FedMethod):
    """FedAvg with momentum on the server, for the parameters only.

    With ``d`` the sent minus the mean parameters, ``m`` the momentum and ``s`` the
    server's learning rate, the parameters decrease by

    - ``dampened``: ``s v``, ``v = m v + (1 - m) d`` (the paper's earlier code);
    - ``heavy-ball``: ``s v``, ``v = m v + d`` (Flower's ``FedAvgM``);
    - ``nesterov``: ``s (d + m v)``, ``v = m v + d`` (Hsu et al. as Flower's baseline
      has it).

    ``dampened`` is ``heavy-ball`` with ``s`` times ``1 - m``. ``m = 0`` and ``s = 1``
    is FedAvg, bit for bit.

    Parameters
    ----------
    form : str
        One of the above.
    server_momentum : float
        m. The default is that of the FLFA paper's earlier code.
    server_learning_rate : float
        s.
    """

    display_name = "FedAvgM"
    form = Option(
        "fedavgm-form",
        "dampened",
        OneOf(
            {
                "dampened": "the FLFA paper's earlier code",
                "heavy-ball": "Flower's FedAvgM",
                "nesterov": "Flower's baseline",
            }
        ),
        "form of the server's momentum",
    )
    server_momentum = Option(
        "fedavgm-momentum",
        0.1,
        Number(least=0, below=1),
        "momentum of the server",
        fedavg=0.0,
    )
    server_learning_rate = Option(
        "fedavgm-learning-rate", 1.0, Number(above=0), "learning rate of the server"
    )
    velocity: Arrays
    state_names = ("velocity",)

    def server_step(
        self, sent: Arrays, mean: Arrays, replies: Sequence[Reply]
    ) -> Arrays:
        """Move the parameters by the momentum."""
        m, rate = self.server_momentum, self.server_learning_rate
        if m == 0 and rate == 1:
            return {}  # sent - (sent - mean) would not be the mean's bits
        gain = 1 - m if self.form == "dampened" else 1.0
        difference = {name: sent[name] - mean[name] for name in mean}
        self.velocity = {
            name: m * self.velocity.get(name, np.zeros_like(d)) + gain * d
            for name, d in difference.items()
        }
        if self.form == "nesterov":
            steps = {k: d + m * self.velocity[k] for k, d in difference.items()}
        else:
            steps = self.velocity
        return {name: sent[name] - rate * step for name, step in steps.items()}


class FLFAServerMomentum(LayerSelection, ServerMomentum):
    """:class:`ServerMomentum` with FLFA; layers are scored before the momentum step."""
