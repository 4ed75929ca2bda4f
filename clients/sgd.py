"""Stochastic gradient descent, written by hand to keep client processes quick to start.

Importing ``torch.optim`` loads torch's compiler, which takes 1.3 seconds, and a
SuperNode starts a process for each message.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ._torch_compat import foreach_add, foreach_add_, foreach_mul_

__all__ = ["SGD"]


class SGD:
    """SGD with momentum and weight decay; the same bits as ``torch.optim.SGD``."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        learning_rate: float,
        momentum: float,
        weight_decay: float,
    ) -> None:
        self.parameters: list[Tensor] = list(parameters)
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.weight_decay = weight_decay
        self._velocities: dict[Tensor, Tensor] = {}

    def zero_grad(self) -> None:
        """Delete the gradients of all parameters."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient."""
        trained = [p for p in self.parameters if p.grad is not None]
        updates = [p.grad for p in trained if p.grad is not None]
        if not trained:
            return
        if self.weight_decay != 0:
            updates = list(foreach_add(updates, trained, alpha=self.weight_decay))
        if self.momentum != 0:
            updates = self._apply_momentum(trained, updates)
        foreach_add_(trained, updates, alpha=-self.learning_rate)

    def _apply_momentum(
        self, trained: list[Tensor], updates: list[Tensor]
    ) -> list[Tensor]:
        """Add the updates to the velocities; return the velocities."""
        velocities, added = [], []
        for parameter, update in zip(trained, updates, strict=True):
            velocity = self._velocities.get(parameter)
            if velocity is None:
                # The first velocity is the update itself.
                self._velocities[parameter] = update.clone()
            else:
                velocities.append(velocity)
                added.append(update)
        if velocities:
            foreach_mul_(velocities, self.momentum)
            foreach_add_(velocities, added)
        return [self._velocities[parameter] for parameter in trained]
