"""Linear layers with feedback alignment: values by hand, and the reference twin."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from clients import feedback_alignment
from tests.unit.clients.cases import (
    both_bias,
    every_scaling,
    gradients,
    moved,
    same_bits,
)
from tests.unit.clients.reference import distance, feedback, reference_twin, train

SHAPES = [(5,), (3, 5), (2, 3, 5), (2, 2, 3, 5), (0, 5), (2, 0, 5)]
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)

# Norms: |W| = 13, |w| = 26; row by row 5 and 12, 26 and 0.
ON_ENTRY = [[3.0, 4.0], [0.0, 12.0]]
PRESENT = [[10.0, 24.0], [0.0, 0.0]]
B_BY_HAND = {
    "tensor": [[6.0, 8.0], [0.0, 24.0]],
    "channel": [[15.6, 20.8], [0.0, 0.0]],
    "none": ON_ENTRY,
}


def linear(weight: list[list[float]]) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(2, 2)).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor(weight))
        model[0].bias.copy_(torch.tensor([1.0, -1.0]))
    return model


def put(model: nn.Sequential, weight: list[list[float]]) -> None:
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor(weight))


@every_scaling
def test_every_gradient_by_hand(scaling: str) -> None:
    model = linear(ON_ENTRY)
    x = torch.tensor([[1.0, 2.0]], dtype=torch.float64, requires_grad=True)
    error = torch.tensor([[1.0, 10.0]], dtype=torch.float64)
    with feedback_alignment(model, ["0"], scaling=scaling):
        put(model, PRESENT)
        y = model(x)
        y.backward(error)
    # y = w x + b = (10 + 48 + 1, -1); dW = error' x; db = error; dx = error B.
    (top, bottom), error_of = B_BY_HAND[scaling], error[0].tolist()
    dx = [error_of[0] * t + error_of[1] * b for t, b in zip(top, bottom, strict=True)]
    assert y.tolist() == [[59.0, -1.0]]
    assert model[0].weight.grad.tolist() == [[1.0, 2.0], [10.0, 20.0]]
    assert model[0].bias.grad.tolist() == [1.0, 10.0]
    assert x.grad is not None
    expected = torch.tensor([dx], dtype=torch.float64)
    torch.testing.assert_close(x.grad, expected, rtol=1e-15, atol=0)


def test_the_scale_keeps_the_sign_of_the_weight_on_entry() -> None:
    model = nn.Sequential(nn.Linear(1, 1, bias=False))
    x = torch.ones(1, 1, requires_grad=True)
    nn.init.constant_(model[0].weight, 2.0)
    with feedback_alignment(model, ["0"]):
        nn.init.constant_(model[0].weight, -6.0)
        model(x).sum().backward()
    assert x.grad is not None
    assert x.grad.item() == 6.0  # |-6| / |2| * 2, though the weight itself is -6


@every_scaling
def test_a_weight_of_zeros_on_entry_sends_nothing_back(scaling: str) -> None:
    model = linear([[0.0, 0.0], [0.0, 0.0]])
    x = torch.ones(1, 2, dtype=torch.float64, requires_grad=True)
    with feedback_alignment(model, ["0"], scaling=scaling):
        put(model, PRESENT)
        model(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[0.0, 0.0]]  # 0 / 0 would be nan


def test_one_row_of_zeros_on_entry_leaves_the_others_alone() -> None:
    model = linear([[0.0, 0.0], [0.0, 12.0]])
    x = torch.ones(1, 2, dtype=torch.float64, requires_grad=True)
    with feedback_alignment(model, ["0"], scaling="channel"):
        put(model, [[1.0, 1.0], [24.0, 0.0]])
        model(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[0.0, 24.0]]


@every_shape
@every_scaling
@both_bias
def test_input_gradient_is_the_error_times_b(
    shape: tuple[int, ...], scaling: str, bias: bool
) -> None:
    model = nn.Sequential(nn.Linear(5, 4, bias=bias)).double()
    entry = model[0].weight.detach().clone()
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    with feedback_alignment(model, ["0"], scaling=scaling):
        moved(model)
        y = model(x)
        error = torch.randn_like(y)
        y.backward(error)
    b = feedback(model[0].weight, entry, scaling)
    expected = torch.einsum("...o,oi->...i", error, b)
    assert x.grad is not None
    torch.testing.assert_close(x.grad, expected, rtol=1e-12, atol=1e-14)
    y_plain, _, *weights = gradients(model, x.detach(), grad=error)
    assert same_bits([y.detach()], [y_plain])
    assert same_bits([p.grad for p in model.parameters()], weights)


def network(*, bias: bool) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(5, 6, bias=bias),
        nn.Tanh(),
        nn.Linear(6, 7, bias=bias),
        nn.Tanh(),
        nn.Linear(7, 4, bias=bias),
        nn.Tanh(),
        nn.Linear(4, 3, bias=bias),
    )


def data(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    return torch.randn(shape), torch.randn(*shape[:-1], 3)


@pytest.mark.parametrize("shape", SHAPES[:4], ids=str)
@every_scaling
@both_bias
@pytest.mark.parametrize("names", [["2"], ["6"], ["2", "4", "6"]], ids=str)
def test_twenty_steps_are_the_twins(
    shape: tuple[int, ...], scaling: str, bias: bool, names: list[str]
) -> None:
    model = network(bias=bias).double()
    x, targets = (t.double() for t in data(shape))
    twin, plain = reference_twin(model, names, scaling), copy.deepcopy(model)
    with feedback_alignment(model, names, scaling=scaling):
        ours = train(model, x, targets)
    assert distance(ours, train(twin, x, targets)) < 1e-12
    assert distance(ours[:1], train(plain, x, targets)[:1]) > 1e-6


@pytest.mark.parametrize("shape", SHAPES[:4], ids=str)
def test_each_gradient_of_twenty_steps_in_single_is_the_twins_in_double(
    shape: tuple[int, ...],
) -> None:
    model, names = network(bias=True), ["2", "4", "6"]
    twin = reference_twin(model, names).double()
    x, error = data(shape)
    with feedback_alignment(model, names):
        for _ in range(20):
            for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
                theirs.data.copy_(ours.data)
                ours.grad = theirs.grad = None
            model(x).backward(error)
            twin(x.double()).backward(error.double())
            whole = [
                torch.cat([p.grad.flatten().double() for p in m.parameters()])
                for m in (model, twin)
            ]
            assert distance(whole[:1], whole[1:]) < 1e-6
            with torch.no_grad():
                for p in model.parameters():
                    p.sub_(0.02 * p.grad)


def test_the_second_block_has_the_weight_on_its_own_entry() -> None:
    """Round after round on one model: each starts from what it has received."""
    model = network(bias=True).double()
    x, targets = (t.double() for t in data((8, 5)))
    twin = copy.deepcopy(model)
    for _ in range(3):
        with feedback_alignment(model, ["2", "4"]):
            ours = train(model, x, targets, steps=5)
        aligned = reference_twin(twin, ["2", "4"])
        theirs = train(aligned, x, targets, steps=5)
        with torch.no_grad():
            for p, trained in zip(twin.parameters(), theirs, strict=True):
                p.copy_(trained)
        assert distance(ours, theirs) < 1e-12


def test_the_input_of_the_model_gets_the_feedback_gradient_if_it_wants_one() -> None:
    model = network(bias=True).double()
    twin = reference_twin(model, ["0", "4"])
    x, targets = (t.double() for t in data((8, 5)))
    grads = []
    with feedback_alignment(model, ["0", "4"]):
        for network_ in (model, twin):
            train(network_, x, targets, steps=5)
            leaf = x.clone().requires_grad_()
            functional.mse_loss(network_(leaf), targets).backward()
            grads.append(leaf.grad)
    assert distance(grads[:1], grads[1:]) < 1e-12
