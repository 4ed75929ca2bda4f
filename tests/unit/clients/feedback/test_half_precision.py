"""Feedback alignment under autocast, and of models whose weights are in half."""

import contextlib

import pytest
import torch
from torch import Tensor, nn

from clients import feedback_alignment
from tests.unit.clients.cases import every_scaling, move_weights, same_bits
from tests.unit.clients.reference import distance, feedback, reference_twin

NAMES = ["2", "5", "7"]
BF16 = torch.bfloat16
# bfloat16 has 8 bits: one rounding is at most half a unit in the last place.
ROUNDING = 2.0**-9


def network(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(4, 4, 3, padding="same", groups=2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(4 * 4 * 4, 8),
        nn.Tanh(),
        nn.Linear(8, 3),
    ).to(dtype)


def images(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(6, 2, 4, 4).to(dtype)


def autocast(enabled: bool = True) -> contextlib.AbstractContextManager:
    return torch.autocast("cpu", dtype=BF16, enabled=enabled)


def step(
    model: nn.Module, x: Tensor, *, autocasts: bool = False, by: float = 0.3
) -> list[Tensor]:
    """Return output, input gradient and weight gradients after a move."""
    x = x.clone().requires_grad_()
    move_weights(model, by, seed=3)
    with autocast(autocasts):
        y = model(x)
    y.float().square().sum().backward()
    return [y.detach(), x.grad, *(p.grad for p in model.parameters())]


@every_scaling
def test_autocast_gives_the_twins_gradients(scaling: str) -> None:
    model, x = network(), images()
    twin, exact = (reference_twin(model, NAMES, scaling) for _ in range(2))
    plain = network()
    plain.load_state_dict(model.state_dict())
    with feedback_alignment(model, NAMES, scaling=scaling):
        ours = step(model, x, autocasts=True)
    assert ours[0].dtype == BF16
    assert all(t.dtype == torch.float32 for t in ours[1:])
    # The same casts in the same places: at most a rounding apart.
    assert distance(ours, step(twin, x, autocasts=True)) < ROUNDING
    # Against single precision: a few roundings in each of four layers.
    assert distance(ours, step(exact, x)) < 16 * ROUNDING
    # Backpropagation is further away.
    backpropagated = step(plain, x, autocasts=True)
    assert distance(ours[1:2], backpropagated[1:2]) > 100 * ROUNDING


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


def test_autocast_does_not_touch_double_precision() -> None:
    model, x = network(torch.float64), images(torch.float64)
    twin = reference_twin(model, NAMES)
    with feedback_alignment(model, NAMES):
        ours = step(model, x, autocasts=True)
    assert all(t.dtype == torch.float64 for t in ours)
    assert distance(ours, step(twin, x)) < 1e-12


@pytest.mark.parametrize(
    ("dtype", "scaling"), [(BF16, "tensor"), (torch.float16, "channel")]
)
def test_a_model_in_half_precision(dtype: torch.dtype, scaling: str) -> None:
    """It is near the twin; on entry it backpropagates."""
    model, x = network(dtype), images(dtype)
    twin = reference_twin(model, NAMES, scaling)
    on_entry = []
    for names in ([], NAMES):
        with feedback_alignment(model, names, scaling=scaling):
            model.zero_grad()
            on_entry.append(step(model, x, by=0.0))
    assert same_bits(*on_entry)
    with feedback_alignment(model, NAMES, scaling=scaling):
        model.zero_grad()
        ours = step(model, x)
    assert all(t.dtype == dtype for t in ours)
    assert distance(ours, step(twin, x)) < 16 * ROUNDING


@pytest.mark.parametrize("scaling", ["tensor", "channel"])
def test_the_scale_of_a_half_precision_weight_is_not_rounded_to_half(
    scaling: str,
) -> None:
    """B is rounded once, as a whole: an identity as error shows B itself."""
    model = nn.Sequential(nn.Linear(32, 32, bias=False)).to(BF16)
    entry = model[0].weight.detach().clone()
    x = torch.randn(32, 32).to(BF16).requires_grad_()
    with feedback_alignment(model, ["0"], scaling=scaling):
        move_weights(model, 0.3)
        model(x).backward(torch.eye(32).to(BF16))
    b = feedback(model[0].weight.double(), entry.double(), scaling)
    assert x.grad is not None
    assert torch.equal(x.grad, b.to(BF16))


def test_the_dtype_of_the_model_can_change_inside_the_block() -> None:
    model, x = network(), images(torch.float64)
    twin = reference_twin(model, NAMES).double()
    with feedback_alignment(model, NAMES):
        ours = step(model.double(), x)
    # The norm on entry was computed in single precision.
    assert distance(ours, step(twin, x)) < 1e-6
