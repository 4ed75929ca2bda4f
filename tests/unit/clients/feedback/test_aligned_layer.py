"""Aligned layers: values by hand, the reference twin, and backpropagation on entry."""

import contextlib
import copy
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from clients import feedback_alignment
from clients.feedback import aligned_layer
from clients.feedback.aligned_layer import FeedbackForward
from tests.unit.clients.cases import (
    SCALINGS,
    conv,
    conv_input,
    every_conv,
    every_conv_and_scaling,
    every_scaling,
    gradients,
    move_weights,
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

# --- By hand -----------------------------------------------------------------------

# Norms: |W| = 13, |w| = 26; row by row 5 and 12, 26 and 0.
ON_ENTRY = [[3.0, 4.0], [0.0, 12.0]]
CURRENT = [[10.0, 24.0], [0.0, 0.0]]
B_BY_HAND = {
    "tensor": [[6.0, 8.0], [0.0, 24.0]],
    "channel": [[15.6, 20.8], [0.0, 0.0]],
    "none": ON_ENTRY,
}


def by_hand(
    on_entry: list[list[float]],
    current: list[list[float]],
    error: list[float],
    scaling: str,
) -> tuple[Tensor, nn.Linear, Tensor]:
    """Return output, layer and input gradient of a 2x2 layer for the input (1, 2)."""
    model = nn.Sequential(nn.Linear(2, 2)).double()
    x = torch.tensor([[1.0, 2.0]], dtype=torch.float64, requires_grad=True)
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor(on_entry))
        model[0].bias.copy_(torch.tensor([1.0, -1.0]))
    with feedback_alignment(model, ["0"], scaling=scaling):
        with torch.no_grad():
            model[0].weight.copy_(torch.tensor(current))
        y = model(x)
        y.backward(torch.tensor([error], dtype=torch.float64))
    assert x.grad is not None
    return y, model[0], x.grad


@every_scaling
def test_every_gradient_by_hand(scaling: str) -> None:
    y, layer, dx = by_hand(ON_ENTRY, CURRENT, [1.0, 10.0], scaling)
    # y = w x + b = (10 + 48 + 1, -1); dW = error' x; db = error; dx = error B.
    top, bottom = B_BY_HAND[scaling]
    expected = [[t + 10 * b for t, b in zip(top, bottom, strict=True)]]
    assert y.tolist() == [[59.0, -1.0]]
    assert layer.weight.grad is not None
    assert layer.weight.grad.tolist() == [[1.0, 2.0], [10.0, 20.0]]
    assert layer.bias.grad is not None
    assert layer.bias.grad.tolist() == [1.0, 10.0]
    torch.testing.assert_close(dx, torch.tensor(expected).double(), rtol=1e-7, atol=0)


@every_scaling
def test_a_weight_of_zeros_on_entry_propagates_no_error(scaling: str) -> None:
    _, _, dx = by_hand([[0.0, 0.0]] * 2, CURRENT, [1.0, 1.0], scaling)
    assert dx.tolist() == [[0.0, 0.0]]  # 0 / 0 would be nan


def test_one_row_of_zeros_on_entry_does_not_change_the_others() -> None:
    on_entry, current = [[0.0, 0.0], [0.0, 12.0]], [[1.0, 1.0], [24.0, 0.0]]
    _, _, dx = by_hand(on_entry, current, [1.0, 1.0], "channel")
    assert dx.tolist() == [[0.0, 24.0]]


@pytest.mark.parametrize("kind", [nn.Linear, lambda *a, **k: nn.Conv1d(*a, 1, **k)])
def test_the_scale_is_that_of_the_forward_pass_and_keeps_the_sign_of_b(
    kind: type[nn.Linear],
) -> None:
    """w = 2 on entry, -6 in the forward pass, 7 after it: the error is 2 * 3."""
    model = nn.Sequential(kind(1, 1, bias=False))
    nn.init.constant_(model[0].weight, 2.0)
    x = torch.ones(1, 1, requires_grad=True)
    with feedback_alignment(model, ["0"]):
        nn.init.constant_(model[0].weight, -6.0)
        y = model(x)
        nn.init.constant_(model[0].weight, 7.0)
        y.sum().backward()
    assert x.grad is not None
    assert x.grad.item() == 6.0


def test_the_first_scale_is_one() -> None:
    """A scale that is fixed before the first forward pass is that of B itself."""
    layer = nn.Linear(2, 2)
    forward = FeedbackForward(layer, 3 * layer.weight.detach(), "channel")
    forward.scale_is_fixed = True
    x = torch.ones(1, 2, requires_grad=True)
    forward(x).backward(torch.tensor([[1.0, 10.0]]))
    assert x.grad is not None
    expected = 3 * (layer.weight[:1] + 10 * layer.weight[1:]).detach()
    torch.testing.assert_close(x.grad, expected)


def test_an_input_without_a_gradient_runs_the_plain_layer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No error will come back: no scale is computed, and the output is the layer's."""
    for layer, x in (
        (nn.Linear(2, 2), torch.ones(3, 2)),
        (nn.Conv2d(2, 2, 1), torch.ones(3, 2, 4, 4)),
    ):
        forward = FeedbackForward(layer, layer.weight.detach().clone(), "tensor")
        monkeypatch.setattr(forward, "scale_for", None)
        y = forward(x)
        assert torch.equal(y, layer(x))
        assert type(y.grad_fn) is type(layer(x).grad_fn)
        with torch.no_grad():
            assert forward(x.clone().requires_grad_()).grad_fn is None


# --- The reference -----------------------------------------------------------------

LINEAR = [
    ((5,), "tensor", True, ["2"]),
    ((3, 5), "channel", False, ["6"]),
    ((2, 3, 5), "none", True, ["2", "4", "6"]),
    ((2, 2, 3, 5), "tensor", False, ["2", "4", "6"]),
]


def linear_network(*, bias: bool = True) -> nn.Sequential:
    sizes = [(5, 6), (6, 7), (7, 4), (4, 3)]
    layers = [(nn.Linear(*size, bias=bias), nn.Tanh()) for size in sizes]
    return nn.Sequential(*[m for pair in layers for m in pair][:-1])


def conv_network(case: str, *, bias: bool = True) -> nn.Sequential:
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


def twenty_steps_are_the_twins(
    model: nn.Module, x: Tensor, targets: Tensor, names: list[str], scaling: str
) -> None:
    """Compare with the reference, and make sure that backpropagation differs."""
    twin, plain = reference_twin(model, names, scaling), copy.deepcopy(model)
    with feedback_alignment(model, names, scaling=scaling):
        ours = train(model, x, targets)
    assert distance(ours, train(twin, x, targets)) < 1e-12
    assert distance(ours[:1], train(plain, x, targets)[:1]) > 1e-6


@pytest.mark.parametrize(("shape", "scaling", "bias", "names"), LINEAR)
def test_twenty_steps_of_linear_layers_are_the_twins(
    shape: tuple[int, ...], scaling: str, bias: bool, names: list[str]
) -> None:
    model = linear_network(bias=bias).double()
    x, targets = torch.randn(shape).double(), torch.randn(*shape[:-1], 3).double()
    twenty_steps_are_the_twins(model, x, targets, names, scaling)


@every_conv_and_scaling
def test_twenty_steps_of_convolutions_are_the_twins(
    case: str, scaling: str, bias: bool
) -> None:
    model = conv_network(case, bias=bias).double()
    x, targets = conv_input(case).double(), torch.randn(2, 2).double()
    twenty_steps_are_the_twins(model, x, targets, ["2", "4", "7"], scaling)


@pytest.mark.parametrize("case", ["conv2d-groups", "conv2d-same-mixed"])
def test_gradients_in_single_precision_are_the_twins_in_double(case: str) -> None:
    model, x = conv_network(case), conv_input(case)
    twin = reference_twin(model, ["2", "4", "7"]).double()
    error = torch.randn(2, 2)
    with feedback_alignment(model, ["2", "4", "7"]):
        move_weights(model)
        for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            theirs.data.copy_(ours.data)
        model(x).backward(error)
    twin(x.double()).backward(error.double())
    whole = [
        torch.cat([p.grad.flatten().double() for p in m.parameters()])
        for m in (model, twin)
    ]
    assert distance(whole[:1], whole[1:]) < 1e-6


@every_conv_and_scaling
def test_the_input_gradient_of_a_convolution_is_the_error_times_the_matrix_of_b(
    case: str, scaling: str, bias: bool
) -> None:
    model = nn.Sequential(conv(case, bias=bias)).double()
    entry = model[0].weight.detach().clone()
    for batch in (None, 2):
        model.zero_grad()
        x = conv_input(case, batch).double().requires_grad_()
        with torch.no_grad():
            model[0].weight.copy_(entry)
        with feedback_alignment(model, ["0"], scaling=scaling):
            move_weights(model)
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


@pytest.mark.parametrize("case", ["conv2d-depthwise", "conv3d-circular-uneven"])
def test_channels_last_gives_the_same_gradients_in_the_same_layout(case: str) -> None:
    model = nn.Sequential(conv(case)).double()
    last = torch.channels_last if "2d" in case else torch.channels_last_3d
    x = conv_input(case).double()
    steps = [torch.randn_like(p) for p in model.parameters()]

    def change(model: nn.Module) -> None:
        with torch.no_grad():
            for p, step in zip(model.parameters(), steps, strict=True):
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


# --- Replacing the saved weight, and the autograd function -------------------------


@contextlib.contextmanager
def saved_tensor_hooks() -> Iterator[None]:
    """Hooks of somebody else, as in checkpointing: the autograd function is used."""
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        yield


def change(model: nn.Module) -> None:
    move_weights(model, seed=1)


def fast_and_slow(
    model: nn.Module, x: Tensor, scaling: str
) -> tuple[list[Tensor], list[Tensor]]:
    fast = gradients(model, x, ["0"], scaling=scaling, change=change)
    with saved_tensor_hooks():
        return fast, gradients(model, x, ["0"], scaling=scaling, change=change)


@every_conv_and_scaling
def test_both_ways_give_the_same_bits(case: str, scaling: str, bias: bool) -> None:
    model = nn.Sequential(conv(case, bias=bias))
    for batch in (None, 3):
        x = conv_input(case, batch)
        fast, slow = fast_and_slow(model, x, scaling)
        assert same_bits(fast, slow)
        assert not same_bits(fast, gradients(model, x, change=change))


@every_scaling
def test_both_ways_give_the_same_bits_under_autocast(scaling: str) -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3)), torch.randn(2, 3, 6, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert same_bits(*fast_and_slow(model, x, scaling))


def function_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    calls: list[str] = []
    apply = aligned_layer._apply

    def recorded(function, *args) -> Tensor:
        calls.append(function.__name__)
        return apply(function, *args)

    monkeypatch.setattr(aligned_layer, "_apply", recorded)
    return calls


def test_the_function_is_used_only_where_others_pack_the_saved_tensors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = function_calls(monkeypatch)
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3)), torch.randn(2, 3, 6, 6)
    gradients(model, x, ["0"])
    assert calls == []
    with saved_tensor_hooks():
        gradients(model, x, ["0"])
    assert calls == ["ConvFeedback"]


def test_the_function_is_used_where_the_node_has_saved_no_weight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A backend with a convolution of its own: here, its output goes through a view."""
    calls = function_calls(monkeypatch)
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3)), torch.randn(2, 3, 6, 6)
    expected = gradients(model, x, ["0"], change=change)
    stock = nn.Conv2d._conv_forward

    def wrapped(self, *args) -> Tensor:
        outputs = stock(self, *args)
        return outputs.view_as(outputs)

    with feedback_alignment(model, ["0"]):
        monkeypatch.setattr(nn.Conv2d, "_conv_forward", wrapped)
        change(model)
        x.requires_grad_()
        y = model(x)
        y.sum().backward()
    assert calls == ["ConvFeedback"]
    assert torch.equal(y, expected[0])


def test_second_derivatives_are_refused_and_not_wrong() -> None:
    def second(model: nn.Module, x: Tensor) -> None:
        (dx,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        dx.sum().backward()

    for layer, shape, message in (
        (nn.Conv2d(3, 4, 3), (2, 3, 6, 6), "no second derivatives"),
        (nn.Linear(3, 4), (2, 3), "once_differentiable"),
    ):
        model, x = nn.Sequential(layer), torch.randn(shape, requires_grad=True)
        with (
            feedback_alignment(model, ["0"]),
            pytest.raises(RuntimeError, match=message),
        ):
            second(model, x)


# --- On entry: backpropagation -----------------------------------------------------


@every_conv
def test_on_entry_a_convolution_backpropagates(case: str) -> None:
    for bias, dtype in ((True, torch.float32), (False, torch.float64)):
        model = nn.Sequential(conv(case, bias=bias)).to(dtype)
        for batch, scaling in zip((None, 1, 3, 0), (*SCALINGS, "tensor"), strict=True):
            x = conv_input(case, batch).to(dtype)
            ours = gradients(model, x, ["0"], scaling=scaling)
            assert same_bits(ours, gradients(model, x))


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 2, 3, 5), (0, 5)], ids=str)
def test_on_entry_a_linear_layer_backpropagates(shape: tuple[int, ...]) -> None:
    for bias, dtype in ((True, torch.float32), (False, torch.float64)):
        model = nn.Sequential(nn.Linear(5, 4, bias=bias)).to(dtype)
        x = torch.randn(shape).to(dtype)
        plain = gradients(model, x)
        for scaling in SCALINGS:
            assert same_bits(gradients(model, x, ["0"], scaling=scaling), plain)


def test_on_entry_a_linear_layer_followed_by_a_transpose_backpropagates() -> None:
    model = nn.Sequential(nn.Linear(65, 130)).double()
    x = torch.randn(32, 17, 65).double()
    error = torch.randn(32, 130, 17).double().transpose(1, 2)
    ours = gradients(model, x, ["0"], grad=error)
    assert same_bits(ours, gradients(model, x, grad=error))


@pytest.mark.parametrize(
    ("batch", "last", "dtype"),
    [(64, False, torch.float32), (64, True, torch.float32), (1, True, torch.float64)],
)
def test_on_entry_layers_of_real_size_backpropagate(
    batch: int, last: bool, dtype: torch.dtype
) -> None:
    """Large enough for torch to choose other kernels than for the toy layers."""
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1, groups=32, bias=False),
        nn.Flatten(),
        nn.Linear(32 * 8 * 8, 50),
        nn.ReLU(),
        nn.Linear(50, 10),
    ).to(dtype)
    x = torch.randn(batch, 3, 16, 16).to(dtype)
    if last:
        model = model.to(memory_format=torch.channels_last)
        x = x.to(memory_format=torch.channels_last)
    names = ["0", "2", "4", "6", "8"]
    assert same_bits(gradients(model, x, names), gradients(model, x))


def trained(names: tuple[str, ...] | None, steps: int, scaling: str) -> list[Tensor]:
    """Train a network with all kinds of layers; ``None`` is without the block."""
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 4, 3, stride=2, padding="valid", groups=2),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(4 * 2 * 2, 6),
        nn.ReLU(),
        nn.Linear(6, 3),
    )
    x, targets = torch.randn(5, 2, 6, 6), torch.randn(5, 3)
    block = (
        contextlib.nullcontext()
        if names is None
        else feedback_alignment(model, names, scaling=scaling)
    )
    with block:
        train(model, x, targets, steps)
    return list(model.state_dict().values())


@every_scaling
def test_training_that_is_backpropagation(scaling: str) -> None:
    """The first step; without layers; and with the first layer alone."""
    everything = ("0", "3", "6", "8")
    one, two, ten = (trained(None, steps, scaling) for steps in (1, 2, 10))
    assert same_bits(trained(everything, 1, scaling), one)
    assert not same_bits(trained(everything, 2, scaling), two)
    assert same_bits(trained((), 10, scaling), ten)
    assert same_bits(trained(("0",), 10, scaling), ten)
    assert not same_bits(trained(("3",), 10, scaling), ten)
