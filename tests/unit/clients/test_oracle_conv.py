"""Convolutions with feedback alignment against the reference twin."""

import copy

import pytest
import torch
from torch import nn

from clients import feedback_alignment
from tests.unit.clients.cases import (
    CONV_CASES,
    conv,
    conv_input,
    every_conv,
    every_scaling,
    gradients,
    moved,
    quiet,
    same_bits,
)
from tests.unit.clients.reference import (
    dense,
    distance,
    feedback,
    reference_twin,
    train,
)

pytestmark = quiet


VARIANTS = [("tensor", True), ("channel", False), ("none", True)]
# For the sake of time, the whole table in two dimensions only.
TABLE = [
    (case, scaling, bias)
    for case in CONV_CASES
    for scaling, bias in [*VARIANTS, ("tensor", False)]
    if "2d" in case or (scaling, bias) in VARIANTS
]
FLAT = [case for case in CONV_CASES if "2d" in case]
ALIGNED = ["2", "4", "7"]


def network(case: str, *, bias: bool = True) -> nn.Sequential:
    """Return a network in which layers 2 (the case's), 4 and 7 are to be aligned."""
    kind = type(conv(case))
    model = nn.Sequential(
        kind(4, 4, kernel_size=1, bias=bias),
        nn.Tanh(),
        conv(case, bias=bias),
        nn.Tanh(),
        kind(8, 3, kernel_size=1, bias=bias),
        nn.Tanh(),
        nn.Flatten(),
    )
    width = model(conv_input(case)).shape[1]
    return model.append(nn.Linear(width, 2, bias=bias))


@pytest.mark.parametrize(("case", "scaling", "bias"), TABLE)
def test_twenty_steps_are_the_twins(case: str, scaling: str, bias: bool) -> None:
    model = network(case, bias=bias).double()
    x, targets = conv_input(case).double(), torch.randn(2, 2).double()
    twin = reference_twin(model, ALIGNED, scaling)
    with feedback_alignment(model, ALIGNED, scaling=scaling):
        ours = train(model, x, targets)
    assert distance(ours, train(twin, x, targets)) < 1e-12


@every_scaling
@pytest.mark.parametrize("case", ["conv1d-padded", "conv2d-groups", "conv3d-circular"])
def test_twenty_steps_are_not_backpropagation(case: str, scaling: str) -> None:
    """So the twenty steps above would tell if nothing were aligned."""
    model = network(case).double()
    x, targets = conv_input(case).double(), torch.randn(2, 2).double()
    plain = copy.deepcopy(model)
    with feedback_alignment(model, ALIGNED, scaling=scaling):
        ours = train(model, x, targets)
    theirs = train(plain, x, targets)
    # The last layer's own gradient is exact, so its weights differ only indirectly.
    assert min(distance([a], [b]) for a, b in zip(ours, theirs, strict=True)) > 1e-6


@pytest.mark.parametrize("case", FLAT)
def test_each_gradient_of_twenty_steps_in_single_is_the_twins_in_double(
    case: str,
) -> None:
    """At the same weights, step by step: rounding has no time to grow.

    The loss is linear: no residual goes to zero, which would magnify the rounding.
    """
    model = network(case)
    x, error = conv_input(case), torch.randn(2, 2)
    twin = reference_twin(model, ALIGNED).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)
    with feedback_alignment(model, ALIGNED):
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
            optimizer.step()


@every_conv
@pytest.mark.parametrize(
    ("batch", "scaling"),
    [(None, "channel"), (2, "tensor"), (2, "channel"), (2, "none")],
)
def test_input_gradient_is_the_error_times_the_matrix_of_b(
    case: str, scaling: str, batch: int | None
) -> None:
    model = nn.Sequential(conv(case)).double()
    entry = model[0].weight.detach().clone()
    x = conv_input(case, batch).double().requires_grad_()
    with feedback_alignment(model, ["0"], scaling=scaling):
        moved(model)
        y = model(x)
        grad = torch.randn_like(y)
        y.backward(grad)
    shape = x.shape if batch is None else x.shape[1:]
    matrix = dense(model[0], feedback(model[0].weight, entry, scaling), shape)
    expected = (grad.reshape(-1, matrix.shape[1]) @ matrix.T).view_as(x)
    assert x.grad is not None
    torch.testing.assert_close(x.grad, expected, rtol=1e-12, atol=1e-13)
    # Output and weight gradients are those of the moved layer, to the bit.
    y_plain, _, *weights = gradients(model, x.detach(), grad=grad)
    assert same_bits([y.detach()], [y_plain])
    assert same_bits([p.grad for p in model.parameters()], weights)


@every_conv
def test_an_empty_batch_gives_what_backpropagation_gives(case: str) -> None:
    model = nn.Sequential(conv(case))
    x = conv_input(case, 0)
    assert same_bits(gradients(model, x, ["0"]), gradients(model, x))


@pytest.mark.parametrize("case", ["conv2d-padded", "conv2d-depthwise", "conv3d-padded"])
def test_channels_last_gives_the_same_gradients_in_the_same_layout(case: str) -> None:
    model = nn.Sequential(conv(case)).double()
    last = torch.channels_last if "2d" in case else torch.channels_last_3d
    x = conv_input(case).double()
    moved_by = [torch.randn_like(p) for p in model.parameters()]

    def change(model: nn.Module) -> None:
        with torch.no_grad():
            for p, step in zip(model.parameters(), moved_by, strict=True):
                p.add_(step)

    usual = gradients(model, x, ["0"], change=change)
    model, x = model.to(memory_format=last), x.to(memory_format=last)
    plain = gradients(model, x, change=change)
    ours = gradients(model, x, ["0"], change=change)
    assert distance(ours, usual) < 1e-12
    assert [t.stride() for t in ours] == [t.stride() for t in plain]


def test_a_wrong_number_of_axes_is_refused_as_by_the_plain_layer() -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 3))
    with (
        feedback_alignment(model, ["0"]),
        pytest.raises(RuntimeError, match=r"Expected 3D .* or 4D"),
    ):
        model(torch.randn(4, 4, requires_grad=True))
