"""Weights that are computed from others: weight_norm, spectral_norm, pruning."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

from clients import feedback_alignment
from tests.unit.clients.cases import every_scaling, same_bits
from tests.unit.clients.reference import (
    Reader,
    ReferenceLayer,
    distance,
    reference_twin,
    train,
)

Wrap = Callable[[nn.Module], nn.Module]

old_weight_norm = torch.nn.utils.weight_norm
old_spectral_norm = torch.nn.utils.spectral_norm
pytestmark = pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated")


def by_hand(layer: Any) -> Tensor:
    """Return ``g * v / |v|`` with the norm over all axes but the first."""
    v = layer.weight_v
    size = v.flatten(1).norm(dim=1).view(-1, *[1] * (v.dim() - 1))
    return layer.weight_g * v / size


def network(wrap: Wrap) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv1d(2, 4, 3, padding=1),
        nn.Tanh(),
        wrap(nn.Conv1d(4, 4, 3, padding=1).double()),
        nn.Tanh(),
        nn.Flatten(),
        wrap(nn.Linear(20, 3).double()),
    ).double()


NAMES = ["2", "5"]


def hooked_twin(model: nn.Module, wrap: Wrap, scaling: str, read: Reader) -> nn.Module:
    """Build a twin from scratch: torch cannot copy a weight that a hook has set."""
    twin = network(wrap)
    twin.load_state_dict(model.state_dict())
    for name in NAMES:
        setattr(twin, name, ReferenceLayer(twin.get_submodule(name), scaling, read))
    return twin


def data() -> tuple[Tensor, Tensor]:
    return torch.randn(4, 2, 5).double(), torch.randn(4, 3).double()


@every_scaling
def test_weight_norm(scaling: str) -> None:
    model, (x, targets) = network(parametrizations.weight_norm), data()
    twin = reference_twin(model, NAMES, scaling)
    with feedback_alignment(model, NAMES, scaling=scaling):
        ours = train(model, x, targets)
    assert distance(ours, train(twin, x, targets)) < 1e-12


@every_scaling
def test_the_older_weight_norm(scaling: str) -> None:
    model, (x, targets) = network(old_weight_norm), data()
    twin = hooked_twin(model, old_weight_norm, scaling, by_hand)
    with feedback_alignment(model, NAMES, scaling=scaling):
        ours = train(model, x, targets)
    assert distance(ours, train(twin, x, targets)) < 1e-12


@pytest.mark.parametrize("called", [True, False], ids=["used", "fresh"])
def test_the_older_weight_norm_after_loading_weights(called: bool) -> None:
    """Its ``weight`` is stale until the next call; the block must not believe it."""
    model, other = network(old_weight_norm), network(old_weight_norm)
    x, targets = data()
    if called:
        model(x)
    model.load_state_dict(other.state_dict())
    stale = model[5].weight.detach().clone()
    twin = hooked_twin(other, old_weight_norm, "none", by_hand)
    assert not torch.allclose(stale, twin[5].entry)
    with feedback_alignment(model, NAMES, scaling="none"):
        assert torch.equal(model[5].weight, stale)  # nor change it
        ours = train(model, x, targets)
    assert distance(ours, train(twin, x, targets)) < 1e-12


def buffers(model: nn.Module) -> list[Tensor]:
    return [b.clone() for b in model.buffers()]


@pytest.mark.parametrize("training", [True, False])
def test_entering_leaves_spectral_norms_buffers_and_modes_alone(training: bool) -> None:
    model = network(parametrizations.spectral_norm).train(training)
    model[2].parametrizations.weight.eval()  # a mode of its own, to be kept
    before, modes = buffers(model), [m.training for m in model.modules()]
    with feedback_alignment(model, NAMES):
        assert same_bits(buffers(model), before)
        assert [m.training for m in model.modules()] == modes
    assert same_bits(buffers(model), before)
    assert len(before) == 4


@every_scaling
def test_spectral_norm(scaling: str) -> None:
    model, (x, targets) = network(parametrizations.spectral_norm), data()
    twin = reference_twin(model, NAMES, scaling)
    with feedback_alignment(model, NAMES, scaling=scaling):
        ours = train(model, x, targets)
    theirs = train(twin, x, targets)
    assert distance(ours, theirs) < 1e-12
    # One power iteration for each pass, not one more for reading the weight.
    moving = [b for name, b in twin.named_buffers() if not name.endswith("entry")]
    assert distance(buffers(model), moving) < 1e-12


def test_one_reading_of_a_parametrised_weight_for_each_pass() -> None:
    class Counting(nn.Module):
        calls = 0

        def forward(self, weight: Tensor) -> Tensor:
            Counting.calls += 1
            return 2 * weight

    layer = nn.Linear(3, 3)
    parametrize.register_parametrization(layer, "weight", Counting())
    model = nn.Sequential(nn.Linear(3, 3), layer)
    with feedback_alignment(model, ["1"]):
        Counting.calls = 0
        for _ in range(3):
            model(torch.ones(1, 3)).sum().backward()
        assert Counting.calls == 3


def test_a_parametrised_bias() -> None:
    model, (x, targets) = network(lambda m: m), data()
    for layer in (model[2], model[5]):
        parametrize.register_parametrization(layer, "bias", nn.Softplus())
    twin = reference_twin(model, NAMES)
    with feedback_alignment(model, NAMES):
        ours = train(model, x, targets)
    assert distance(ours, train(twin, x, targets)) < 1e-12


def pruned(layer: nn.Module) -> nn.Module:
    return prune.random_unstructured(layer, "weight", 0.5)


def what_is_left(layer: Any) -> Tensor:
    return layer.weight_orig * layer.weight_mask


def test_a_pruned_weight_feeds_back_through_what_is_left() -> None:
    model, (x, targets) = network(pruned), data()
    twin = hooked_twin(model, pruned, "tensor", what_is_left)
    with feedback_alignment(model, NAMES):
        ours = train(model, x, targets)
    assert distance(ours, train(twin, x, targets)) < 1e-12


@pytest.mark.parametrize("wrap", [pruned, old_spectral_norm])
def test_other_weights_set_by_a_hook_after_loading_weights(wrap: Wrap) -> None:
    model, other = network(wrap), network(wrap)
    x, _ = data()
    for used in (model, other):
        used(x)
        used.eval()
    model.load_state_dict(other.state_dict())
    ours, theirs = (x.clone().requires_grad_() for _ in range(2))
    with feedback_alignment(model, NAMES):
        model(ours).square().sum().backward()
    other(theirs).square().sum().backward()
    # No step yet: B is the weight.
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-12, atol=1e-14)


def test_a_parametrisation_added_inside_the_block_survives_it() -> None:
    model, (x, _) = network(lambda m: m), data()
    plain = copy.deepcopy(model)
    with feedback_alignment(model, NAMES):
        parametrizations.weight_norm(model[5])
        model(x).sum().backward()
    torch.testing.assert_close(model(x), plain(x), rtol=1e-12, atol=1e-14)
    assert "forward" not in vars(model[5])
