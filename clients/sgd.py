"""Stochastic gradient descent without torch's compiler."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

__all__ = ["SGD"]


class SGD:
    """SGD with momentum and weight decay: ``torch.optim.SGD``, to the bit.

    torch's imports its compiler, which takes two seconds in every process that serves
    clients, and a SuperNode starts one for each message; its step is slower, too.
    """

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
        """Forget the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Move every parameter that has a gradient."""
        moving = [p for p in self.parameters if p.grad is not None]
        updates = [p.grad for p in moving if p.grad is not None]
        if not moving:
            return
        if self.weight_decay != 0:
            updates = list(torch._foreach_add(updates, moving, alpha=self.weight_decay))
        if self.momentum != 0:
            updates = self._with_momentum(moving, updates)
        torch._foreach_add_(moving, updates, alpha=-self.learning_rate)

    def _with_momentum(
        self, moving: list[Tensor], updates: list[Tensor]
    ) -> list[Tensor]:
        old, added = [], []
        for parameter, update in zip(moving, updates, strict=True):
            velocity = self._velocities.get(parameter)
            if velocity is None:
                # The first velocity is the gradient itself.
                self._velocities[parameter] = update.clone()
            else:
                old.append(velocity)
                added.append(update)
        if old:
            torch._foreach_mul_(old, self.momentum)
            torch._foreach_add_(old, added)
        return [self._velocities[parameter] for parameter in moving]
