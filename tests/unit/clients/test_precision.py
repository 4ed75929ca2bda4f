"""Half precision: autocast, and models whose weights are bfloat16."""

import contextlib

import pytest
import torch
from torch import Tensor, nn

from clients import feedback_alignment
from tests.unit.clients.cases import every_scaling, same_bits
from tests.unit.clients.reference import distance, feedback, reference_twin

NAMES = ["2", "5", "7"]
BF16 = torch.bfloat16
# bfloat16 has 8 bits: one rounding is at most half a unit in the last place.
ROUNDING = 2.0**-9


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(4, 4, 3, padding="same", groups=2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(4 * 4 * 4, 8),
        nn.Tanh(),
        nn.Linear(8, 3),
    )


def images(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(6, 2, 4, 4).to(dtype)


def move(model: nn.Module) -> None:
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in model.parameters():
            p.add_((0.3 * torch.randn(p.shape, generator=generator)).to(p.dtype))


def step(model: nn.Module, x: Tensor, context: contextlib.AbstractContextManager):
    """Return output, input gradient and weight gradients after a move."""
    x = x.clone().requires_grad_()
    move(model)
    with context:
        y = model(x)
    y.float().square().sum().backward()
    return [y.detach(), x.grad, *(p.grad for p in model.parameters())]


def autocast() -> contextlib.AbstractContextManager:
    return torch.autocast("cpu", dtype=BF16)


@every_scaling
def test_autocast_gives_the_twins_gradients(scaling: str) -> None:
    model, x = network(), images()
    twin, exact = (reference_twin(model, NAMES, scaling) for _ in range(2))
    with feedback_alignment(model, NAMES, scaling=scaling):
        ours = step(model, x, autocast())
    theirs = step(twin, x, autocast())
    truth = step(exact, x, contextlib.nullcontext())
    assert ours[0].dtype == BF16
    assert all(t.dtype == torch.float32 for t in ours[1:])
    # The same casts in the same places: at most a rounding apart.
    assert distance(ours, theirs) < ROUNDING
    # Against single precision: a few roundings in each of four layers.
    assert distance(ours, truth) < 16 * ROUNDING


def test_autocast_feeds_back_and_does_not_backpropagate() -> None:
    """The test above can tell: backpropagation is further away."""
    model, plain, x = network(), network(), images()
    plain.load_state_dict(model.state_dict())
    with feedback_alignment(model, NAMES):
        ours = step(model, x, autocast())
    assert distance(ours[1:2], step(plain, x, autocast())[1:2]) > 100 * ROUNDING


@pytest.mark.parametrize("inside", [True, False], ids=["inside", "outside"])
def test_autocast_on_entry_is_backpropagation(inside: bool) -> None:
    """Wherever backward is called; torch recommends outside."""
    x, results = images(), []
    for names in (NAMES, []):
        torch.manual_seed(5)
        model, leaf = network(), x.clone().requires_grad_()
        with feedback_alignment(model, names):
            with autocast():
                loss = model(leaf).float().square().sum()
                if inside:
                    loss.backward()
            if not inside:
                loss.backward()
        results.append(
            [loss.detach(), leaf.grad, *(p.grad for p in model.parameters())]
        )
    assert same_bits(*results)


def test_a_layer_outside_autocast_keeps_its_precision_in_a_model_with_autocast() -> (
    None
):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    x = torch.randn(3, 4, requires_grad=True)
    with feedback_alignment(model, ["1", "2"]):
        with autocast():
            half = model[1](x)
        y = model[2](half.float())
    y.sum().backward()
    assert half.dtype == BF16
    assert y.dtype == torch.float32
    assert x.grad is not None
    assert x.grad.dtype == torch.float32


def test_autocast_leaves_double_precision_alone() -> None:
    model, x = network().double(), images(torch.float64)
    twin = reference_twin(model, NAMES)
    with feedback_alignment(model, NAMES):
        ours = step(model, x, autocast())
    assert all(t.dtype == torch.float64 for t in ours)
    assert distance(ours, step(twin, x, contextlib.nullcontext())) < 1e-12


@pytest.mark.parametrize("dtype", [BF16, torch.float16], ids=str)
@every_scaling
def test_a_model_in_half_precision(dtype: torch.dtype, scaling: str) -> None:
    model, x = network().to(dtype), images(dtype)
    twin = reference_twin(model, NAMES, scaling)
    with feedback_alignment(model, NAMES, scaling=scaling):
        ours = step(model, x, contextlib.nullcontext())
    assert all(t.dtype == dtype for t in ours)
    theirs = step(twin, x, contextlib.nullcontext())
    assert distance(ours, theirs) < 16 * ROUNDING


@pytest.mark.parametrize("dtype", [BF16, torch.float16], ids=str)
def test_on_entry_a_model_in_half_precision_backpropagates(dtype: torch.dtype) -> None:
    results = []
    for names in (NAMES, []):
        torch.manual_seed(5)
        model, leaf = network().to(dtype), images(dtype).requires_grad_()
        with feedback_alignment(model, names):
            model(leaf).float().square().sum().backward()
        results.append([leaf.grad, *(p.grad for p in model.parameters())])
    assert same_bits(*results)


@pytest.mark.parametrize("scaling", ["tensor", "channel"])
def test_the_scale_of_a_half_precision_weight_is_not_rounded_to_half(
    scaling: str,
) -> None:
    """B is rounded once, as a whole: an identity as error shows B itself."""
    model = nn.Sequential(nn.Linear(32, 32, bias=False)).to(BF16)
    entry = model[0].weight.detach().clone()
    x = torch.randn(32, 32).to(BF16).requires_grad_()
    with feedback_alignment(model, ["0"], scaling=scaling):
        move(model)
        model(x).backward(torch.eye(32).to(BF16))
    b = feedback(model[0].weight.double(), entry.double(), scaling)
    assert x.grad is not None
    assert torch.equal(x.grad, b.to(BF16))


def test_the_dtype_of_the_model_can_change_inside_the_block() -> None:
    model, x = network(), images(torch.float64)
    twin = reference_twin(model, NAMES).double()
    with feedback_alignment(model, NAMES):
        model.double()
        ours = step(model, x, contextlib.nullcontext())
    theirs = step(twin, x, contextlib.nullcontext())
    # The norm on entry was taken in single precision.
    assert distance(ours, theirs) < 1e-6
