"""FedSOL the slow way: copies of the model, and every formula written out."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from clients.methods.fedsol import FedSOLTrainer
from tests.unit.clients.federated import Gradient


def divergence(received: Tensor, local: Tensor) -> Tensor:
    """Return KL(received | local) at temperature 3, the mean over the samples."""
    p, q = ((z / 3).exp() / (z / 3).exp().sum(1, True) for z in (received, local))
    return (p * (p.log() - q.log())).sum(1).mean()


def share(way: Tensor) -> Tensor:
    """Return ``|w - W|`` over its norm along the first axis, column by column."""
    columns = way.abs().reshape(len(way), -1).clone()
    for j in range(columns.shape[1]):
        norm = columns[:, j].square().sum().sqrt()
        columns[:, j] = columns[:, j] / norm if norm > 0 else 0.0
    return columns.reshape(way.shape)


def perturbation(
    model: nn.Module,
    received: nn.Module,
    loss: Tensor,
    rho: float,
    variant: str,
    part: str,
) -> list[Tensor]:
    """Return what is added to each parameter, given the proximal loss."""
    names = [
        name
        for name, _ in model.named_parameters()
        if part == "all" or name.startswith("head.")
    ]
    chosen = [model.get_parameter(name) for name in names]
    gradients = torch.autograd.grad(loss, chosen)
    norm = torch.cat([g.flatten() for g in gradients]).norm()
    added = {k: torch.zeros_like(p) for k, p in model.named_parameters()}
    for name, p, g in zip(names, chosen, gradients, strict=True):
        if norm >= 1e-8:
            way = (p - received.get_parameter(name)).detach()
            scale = share(way) if variant == "adaptive" else 1.0
            added[name] = rho * scale * g / (norm + 1e-12)
    return list(added.values())


def slow(
    received: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    rho: float,
    variant: str,
    part: str,
) -> Gradient:
    """Return FedSOL's gradient; only the first pass is of the model itself."""
    frozen = copy.deepcopy(received).eval()

    def gradient(model: nn.Module, batch: Tensor) -> list[Tensor]:
        x = inputs[batch]
        second = copy.deepcopy(model)
        with torch.no_grad():
            anchor = frozen(x)
        with torch.random.fork_rng([]):
            loss = divergence(anchor, model(x))
        added = perturbation(model, received, loss, rho, variant, part)
        with torch.no_grad():
            for p, e in zip(second.parameters(), added, strict=True):
                p.add_(e)
        error = cross_entropy(second(x), targets[batch])
        return list(torch.autograd.grad(error, list(second.parameters())))

    return gradient


class Watched(FedSOLTrainer):
    """Write down the weights: before the two passes, in the second, and after."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.before: list[list[Tensor]] = []
        self.inside: list[list[Tensor]] = []
        self.after: list[list[Tensor]] = []
        self.fails_in_step = 0

    def now(self) -> list[Tensor]:
        return [p.detach().clone() for p in self.model.parameters()]

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.inside.append(self.now())
        if len(self.inside) == self.fails_in_step:
            raise ArithmeticError("in the second pass")
        return super().loss(outputs, targets)

    def compute_gradients(self, inputs: Tensor, targets: Tensor) -> Tensor:
        self.before.append(self.now())
        loss = super().compute_gradients(inputs, targets)
        self.after.append(self.now())
        return loss

    def added(self) -> list[list[Tensor]]:
        return [
            [b - a for a, b in zip(before, inside, strict=True)]
            for before, inside in zip(self.before, self.inside, strict=True)
        ]


def norm_of(tensors: list[Tensor]) -> float:
    return float(torch.cat([t.flatten() for t in tensors]).norm())
