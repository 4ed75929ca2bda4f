"""Random and direct feedback, the ablations of the paper."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from torch import Tensor, nn

from clients import feedback_alignment
from clients.feedback.ablations import random_feedback


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)
    ).double()


def gradients(model: nn.Module, inputs: Tensor, targets: Tensor) -> list[Tensor]:
    model.zero_grad()
    nn.functional.cross_entropy(model(inputs), targets).backward()
    return [p.grad.clone() for p in model.parameters()]


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(7, 4).double(), torch.arange(7) % 3


def test_random_feedback_is_shared_and_has_the_norm_of_the_weight() -> None:
    weight = torch.randn(3, 2, 5)
    one = random_feedback("a", weight, 1)
    assert torch.equal(one, random_feedback("a", weight, 1))
    torch.testing.assert_close(one.norm(), weight.norm())
    for other in (random_feedback("b", weight, 1), random_feedback("a", weight, 2)):
        assert not torch.equal(one, other)
    # Constant over the rounds but for its scale: another weight, the same direction.
    later = random_feedback("a", 3 * weight + 1, 1)
    torch.testing.assert_close(later / later.norm(), one / one.norm())


def test_random_feedback_in_a_network(batch: tuple[Tensor, Tensor]) -> None:
    """Layer 2 sends back d B, d its output's error, so layer 0 gets (d B * f') x."""
    model, (x, y) = network(), batch
    plain = gradients(model, x, y)
    with feedback_alignment(model, ["2"], feedback="random", seed=3):
        random = gradients(model, x, y)
    feedback = random_feedback("2", model[2].weight.detach(), 3)
    hidden = torch.tanh(model[0](x))
    out = model[2](hidden)
    error = torch.autograd.grad(
        nn.functional.cross_entropy(model[4](torch.tanh(out)), y), out
    )[0]
    below = (error @ feedback) * (1 - hidden.detach() ** 2)
    torch.testing.assert_close(random[0], below.T @ x)
    torch.testing.assert_close(random[1], below.sum(0))
    for got, want in zip(random[2:], plain[2:], strict=True):
        assert torch.equal(got, want)  # the layer itself and all after it


def test_random_feedback_follows_the_norm_of_the_weight(
    batch: tuple[Tensor, Tensor],
) -> None:
    """Twice the weight below a linear path: B doubles with it."""
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), torch.randn(2, 4)
    with feedback_alignment(model, ["1"], feedback="random"):
        model(x).sum().backward()
        once = model[0].weight.grad.clone()
        with torch.no_grad():
            model[1].weight.mul_(2)
        model.zero_grad()
        model(x).sum().backward()
    torch.testing.assert_close(model[0].weight.grad, 2 * once)


def direct(classes: int, size: int, name: str, seed: int) -> Tensor:
    """B of the specification: uniform [-1, 1) / sqrt(size)."""
    import zlib

    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
    uniform = torch.rand(classes, size, generator=generator)
    return ((2 * uniform - 1) / math.sqrt(size)).double()


@pytest.mark.parametrize("name", ["0", "2"])
def test_direct_feedback(name: str, batch: tuple[Tensor, Tensor]) -> None:
    """The layer's output gets e B, e = (softmax - one-hot) / batch at the logits."""
    model, (x, y) = network(), batch
    plain = gradients(model, x, y)
    with feedback_alignment(model, [name], feedback="dfa", seed=5):
        got = gradients(model, x, y)
    logits = model(x).detach()
    error = (logits.softmax(1) - nn.functional.one_hot(y, 3)) / len(y)
    layer = int(name)
    delta = error @ direct(3, model[layer].out_features, name, 5)
    inputs = model[:layer](x).detach() if layer else x
    torch.testing.assert_close(got[layer], delta.T @ inputs)
    torch.testing.assert_close(got[layer + 1], delta.sum(0))
    for own, want in zip(got[layer + 2 :], plain[layer + 2 :], strict=True):
        assert torch.equal(own, want)
    if name == "2":  # the layers before go on with backpropagation from there
        below = (delta @ model[2].weight) * (1 - inputs**2)
        torch.testing.assert_close(got[0], below.T @ x)


def test_direct_feedback_of_a_convolution_and_no_error_no_gradient() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2))
    x = torch.randn(3, 1, 4, 4)
    with feedback_alignment(model, ["0"], feedback="dfa"):
        (0 * model(x)).sum().backward()
        assert not model[0].weight.grad.any()
        model(x).sum().backward()
        assert model[0].weight.grad.any()


def test_direct_feedback_on_the_last_layer_is_refused() -> None:
    with (
        pytest.raises(ValueError, match=r"'4': it is the model's last"),
        feedback_alignment(network(), ["4"], feedback="dfa"),
    ):
        pass


@pytest.mark.parametrize("feedback", ["random", "dfa"])
def test_the_model_is_as_before(feedback: str, batch: tuple[Tensor, Tensor]) -> None:
    model, (x, y) = network(), batch
    plain = gradients(model, x, y)
    keys = {name: set(vars(m)) for name, m in model.named_modules()}
    with feedback_alignment(model, ["2"], feedback=feedback):
        copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    assert {name: set(vars(m)) for name, m in model.named_modules()} == keys
    assert not model._forward_hooks
    for net in (model, copies[1] if feedback == "random" else model):
        for got, want in zip(gradients(net, x, y), plain, strict=True):
            assert torch.equal(got, want)
