"""Where the maths says feedback alignment is backpropagation, the bits agree."""

import copy

import pytest
import torch
from torch import Tensor, nn

from clients import feedback_alignment
from tests.unit.clients.cases import (
    both_bias,
    both_dtypes,
    conv,
    conv_input,
    every_conv,
    every_scaling,
    gradients,
    quiet,
    same_bits,
)
from tests.unit.clients.reference import train

pytestmark = quiet
SHAPES = [(5,), (3, 5), (2, 3, 5), (2, 2, 3, 5), (0, 5)]


@every_conv
@both_dtypes
@both_bias
def test_on_entry_a_convolution_backpropagates(
    case: str, dtype: torch.dtype, bias: bool
) -> None:
    model = nn.Sequential(conv(case, bias=bias)).to(dtype)
    for batch in (None, 1, 3):
        x = conv_input(case, batch).to(dtype)
        assert same_bits(gradients(model, x, ["0"]), gradients(model, x))


@every_conv
@pytest.mark.parametrize("scaling", ["channel", "none"])
def test_on_entry_every_scaling_is_one(case: str, scaling: str) -> None:
    model, x = nn.Sequential(conv(case)), conv_input(case)
    assert same_bits(gradients(model, x, ["0"], scaling=scaling), gradients(model, x))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@both_dtypes
@both_bias
@every_scaling
def test_on_entry_a_linear_layer_backpropagates(
    shape: tuple[int, ...], dtype: torch.dtype, bias: bool, scaling: str
) -> None:
    model = nn.Sequential(nn.Linear(5, 4, bias=bias)).to(dtype)
    x = torch.randn(shape).to(dtype)
    assert same_bits(gradients(model, x, ["0"], scaling=scaling), gradients(model, x))


@pytest.mark.parametrize("batch", [1, 64], ids=["one", "batch"])
@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels_last"])
@both_dtypes
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


def small(dtype: torch.dtype) -> tuple[nn.Sequential, Tensor, Tensor]:
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
    ).to(dtype)
    return model, torch.randn(5, 2, 6, 6).to(dtype), torch.randn(5, 3).to(dtype)


def trained(
    names: tuple[str, ...], steps: int, scaling: str, dtype: torch.dtype
) -> list[Tensor]:
    torch.manual_seed(1)
    model, x, targets = small(dtype)
    with feedback_alignment(model, names, scaling=scaling):
        train(model, x, targets, steps)
    return list(model.state_dict().values())


@both_dtypes
@every_scaling
def test_one_step_is_a_step_of_plain_sgd(dtype: torch.dtype, scaling: str) -> None:
    everything = ("0", "3", "6", "8")
    plain = trained((), 1, scaling, dtype)
    assert same_bits(trained(everything, 1, scaling, dtype), plain)
    # The second step is where the two part.
    assert not same_bits(
        trained(everything, 2, scaling, dtype), trained((), 2, scaling, dtype)
    )


@both_dtypes
@every_scaling
def test_no_layers_is_plain_training(dtype: torch.dtype, scaling: str) -> None:
    torch.manual_seed(1)
    model, x, targets = small(dtype)
    train(model, x, targets, 20)
    plain = list(model.state_dict().values())
    assert same_bits(trained((), 20, scaling, dtype), plain)


@both_dtypes
@every_scaling
def test_the_first_layer_alone_is_plain_training(
    dtype: torch.dtype, scaling: str
) -> None:
    plain = trained((), 20, scaling, dtype)
    assert same_bits(trained(("0",), 20, scaling, dtype), plain)
    assert not same_bits(trained(("3",), 20, scaling, dtype), plain)


@pytest.mark.parametrize("layers", ["a layer", "no layer"])
def test_without_a_gradient_the_block_changes_nothing(layers: str) -> None:
    model, x, _ = small(torch.float32)
    model.eval()
    plain = copy.deepcopy(model)(x)
    with (
        feedback_alignment(model, ["3", "6"] if layers == "a layer" else []),
        torch.no_grad(),
    ):
        y = model(x)
    assert torch.equal(y, plain)
    assert not y.requires_grad


def test_on_entry_a_linear_layer_followed_by_a_transpose_backpropagates() -> None:
    model = nn.Sequential(nn.Linear(65, 130)).double()
    x = torch.randn(32, 17, 65).double()
    error = torch.randn(32, 130, 17).double().transpose(1, 2)
    assert same_bits(
        gradients(model, x, ["0"], grad=error), gradients(model, x, grad=error)
    )
