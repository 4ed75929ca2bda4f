"""A small model, ways to use its layers, and its gradients beside the twin's."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from clients import feedback_alignment
from tests.unit.clients.cases import moved
from tests.unit.clients.reference import reference_twin


class Net(nn.Module):
    """Three layers and a way to use them."""

    def __init__(self, use: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.a = nn.Linear(6, 6)
        self.b = nn.Linear(6, 6)
        self.c = nn.Conv1d(2, 2, 3, padding=1)
        self.use = use

    def forward(self, x: Tensor) -> Tensor:
        return self.use(self, x)


def twice(net: Any, x: Tensor) -> Tensor:
    return net.b(torch.tanh(net.b(torch.tanh(net.a(x)))))


def twice_conv(net: Any, x: Tensor) -> Tensor:
    return net.c(torch.tanh(net.c(torch.tanh(net.a(x)))))


def first_and_last(net: Any, x: Tensor) -> Tensor:
    """``b`` sees the raw input, where it is plain, and later a hidden one."""
    return net.b(torch.tanh(net.a(torch.tanh(net.b(x)))))


def in_place(net: Any, x: Tensor) -> Tensor:
    y = functional.relu(net.b(functional.relu(net.a(x), inplace=True)), inplace=True)
    return net.c(y).mul_(2.0).add_(y)


def in_place_on_a_view(net: Any, x: Tensor) -> Tensor:
    y = net.c(net.a(x))
    y[:, :1].mul_(3.0)
    z = net.b(y)
    z.view(-1).tanh_()
    return z


def residual(net: Any, x: Tensor) -> Tensor:
    h = net.a(x)
    return h + net.b(torch.tanh(h)) + net.c(h)


def by_keyword(net: Any, x: Tensor) -> Tensor:
    return net.c(input=net.b(input=net.a(x)))


def through_a_sequence(net: Any, x: Tensor) -> Tensor:
    return nn.Sequential(net.a, nn.ReLU(inplace=True), net.b, nn.ReLU(True), net.c)(x)


def transposed(net: Any, x: Tensor) -> Tensor:
    return net.b(net.a(x).transpose(0, 1)).transpose(0, 2)


USES = [
    twice,
    twice_conv,
    first_and_last,
    in_place,
    in_place_on_a_view,
    residual,
    by_keyword,
    through_a_sequence,
    transposed,
]


def grads(model: nn.Module, x: Tensor) -> list[Tensor]:
    model.zero_grad()
    y = model(x)
    torch.manual_seed(9)
    y.backward(torch.randn_like(y))
    return [y.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


def both(
    model: nn.Module, x: Tensor, names: list[str], scaling: str = "tensor"
) -> tuple[list[Tensor], list[Tensor]]:
    """Return our gradients and the twin's, after the same move of the weights."""
    twin = reference_twin(model, names, scaling)
    with feedback_alignment(model, names, scaling=scaling):
        torch.manual_seed(8)
        moved(model)
        ours = grads(model, x)
    torch.manual_seed(8)
    moved(twin)
    return ours, grads(twin, x)
