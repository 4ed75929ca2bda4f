"""Feedback alignment in models as people build them."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize, prune
from torch.utils.checkpoint import checkpoint

from clients import feedback_alignment
from tests.unit.clients.cases import every_scaling, move_weights, same_bits
from tests.unit.clients.reference import (
    Reader,
    ReferenceLayer,
    distance,
    reference_twin,
    train,
)


class Net(nn.Module):
    """Three layers and a function that uses them."""

    def __init__(self, use: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.a = nn.Linear(6, 6)
        self.b = nn.Linear(6, 6)
        self.c = nn.Conv1d(2, 2, 3, padding=1)
        self.use = use
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.use(self, x)


def twice(net: Any, x: Tensor) -> Tensor:
    return net.b(torch.tanh(net.b(torch.tanh(net.a(x)))))


def twice_conv(net: Any, x: Tensor) -> Tensor:
    return net.c(torch.tanh(net.c(torch.tanh(net.a(x)))))


def first_and_last(net: Any, x: Tensor) -> Tensor:
    """``b`` gets the raw input, where it is plain, and later a hidden one."""
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


USES = [
    twice,
    twice_conv,
    first_and_last,
    in_place,
    in_place_on_a_view,
    residual,
    by_keyword,
]


def inputs() -> Tensor:
    return torch.randn(4, 2, 6).double()


def grads(model: nn.Module, x: Tensor) -> list[Tensor]:
    model.zero_grad()
    y = model(x)
    torch.manual_seed(9)
    y.backward(torch.randn_like(y))
    return [y.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


def check_twin(
    model: nn.Module, x: Tensor, names: list[str], scaling: str = "tensor"
) -> None:
    """On entry the gradients are plain; after a move they are the twin's."""
    plain = grads(model, x)
    twin = reference_twin(model, names, scaling)
    with feedback_alignment(model, names, scaling=scaling):
        assert same_bits(grads(model, x), plain)
        move_weights(model, seed=8)
        ours = grads(model, x)
    move_weights(twin, seed=8)
    assert distance(ours, grads(twin, x)) < 1e-12


@pytest.mark.parametrize("use", USES)
@every_scaling
def test_gradients_are_the_twins(use: Callable, scaling: str) -> None:
    model, x = Net(use), inputs()
    check_twin(model, x, ["b", "c"], scaling)
    with feedback_alignment(model, ["b", "c"], scaling=scaling):
        move_weights(model)
        aligned = grads(model, x)
    assert distance(aligned[1:2], grads(model, x)[1:2]) > 1e-6
    assert len(aligned) > 4


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("use", [twice, twice_conv, in_place])
def test_a_checkpoint_changes_nothing(use: Callable, use_reentrant: bool) -> None:
    def checkpointed(net: Any, x: Tensor) -> Tensor:
        h = torch.tanh(net.a(x))
        return checkpoint(lambda h: use(net, h), h, use_reentrant=use_reentrant)

    def stored(net: Any, x: Tensor) -> Tensor:
        return use(net, torch.tanh(net.a(x)))

    model, x = Net(stored), inputs()
    with feedback_alignment(model, ["a", "b", "c"]):
        move_weights(model)
        expected = grads(model, x)
        model.use = checkpointed
        assert same_bits(grads(model, x), expected)


@pytest.mark.parametrize("frozen", ["b.weight", "b.bias", "c.", ""])
def test_frozen_weights_propagate_the_error(frozen: str) -> None:
    model, x = Net(residual), inputs()
    for name, p in model.named_parameters():
        p.requires_grad_(not name.startswith(frozen) or name.startswith("a."))
    check_twin(model, x, ["b", "c"])
    assert (model.b.weight.grad is None) == (frozen in ("b.weight", ""))


def test_tied_weights_collect_both_gradients() -> None:
    model = Net(lambda net, x: net.b(torch.tanh(net.a(x))))
    model.b.weight = model.a.weight
    check_twin(model, inputs(), ["a", "b"])
    # A head that is tied to the embedding.
    model = nn.Sequential(nn.Embedding(7, 5), nn.Tanh(), nn.Linear(5, 7)).double()
    model[2].weight = model[0].weight
    check_twin(model, torch.tensor([[1, 2], [6, 2]]), ["2"])


def test_a_transformer_layer() -> None:
    model = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True).double()
    check_twin(model, torch.randn(2, 3, 8).double(), ["linear1", "linear2"])


def test_a_model_that_is_a_layer() -> None:
    model = nn.Linear(3, 2).double()
    entry = model.weight.detach().clone()
    x = torch.randn(4, 3).double().requires_grad_()
    with feedback_alignment(model, [""], scaling="none"):
        move_weights(model)
        model(x).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, entry.sum(0).expand(4, 3), rtol=1e-14, atol=0)


def test_evaluation_mode_and_repeated_backward_passes() -> None:
    """In evaluation mode the error still goes through B; gradients accumulate."""
    model, x = Net(residual), inputs()
    with feedback_alignment(model, ["b", "c"]):
        move_weights(model)
        once = grads(model, x)
        assert same_bits(grads(model.eval(), x), once)
        model.zero_grad()
        y = model(x)
        torch.manual_seed(9)
        error = torch.randn_like(y)
        y.backward(error, retain_graph=True)
        y.backward(error)
    assert same_bits([p.grad for p in model.parameters()], [2 * g for g in once[1:]])


def test_a_functional_call_uses_the_given_weight_and_the_models_feedback() -> None:
    model, x = Net(residual), inputs()
    other, twin = copy.deepcopy(model), reference_twin(model, ["b", "c"])
    move_weights(other)
    with torch.no_grad():
        for p, q in zip(twin.parameters(), other.parameters(), strict=True):
            p.copy_(q)
    given = {name: p.detach().requires_grad_() for name, p in other.named_parameters()}
    with feedback_alignment(model, ["b", "c"]):
        y = functional_call(model, given, (x,))
    torch.manual_seed(9)
    y.backward(torch.randn_like(y))
    assert distance([y, *(p.grad for p in given.values())], grads(twin, x)) < 1e-12
    assert all(p.grad is None for p in model.parameters())


def test_hooks_of_an_aligned_layer_still_run() -> None:
    model, x, seen = Net(residual), inputs(), {}
    model.b.register_forward_hook(lambda m, args, y: seen.update(output=y))
    model.b.register_full_backward_hook(lambda m, dx, dy: seen.update(dx=dx, dy=dy))
    with feedback_alignment(model, ["b"], scaling="none"):
        entry = model.b.weight.detach().clone()
        move_weights(model)
        grads(model, x)
    assert seen["output"].shape == x.shape
    expected = torch.einsum("...o,oi->...i", seen["dy"][0], entry)
    torch.testing.assert_close(seen["dx"][0], expected, rtol=1e-12, atol=1e-14)


# --- Weights that are computed from others -----------------------------------------

Wrap = Callable[[nn.Module], nn.Module]
COMPUTED = ["2", "5"]
old_weight_norm = torch.nn.utils.weight_norm
old_spectral_norm = torch.nn.utils.spectral_norm
deprecated = pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated")


def network(wrap: Wrap) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv1d(2, 4, 3, padding=1),
        nn.Tanh(),
        wrap(nn.Conv1d(4, 4, 3, padding=1).double()),
        nn.Tanh(),
        nn.Flatten(),
        wrap(nn.Linear(20, 3).double()),
    ).double()


def samples() -> tuple[Tensor, Tensor]:
    return torch.randn(4, 2, 5).double(), torch.randn(4, 3).double()


def normed_by_hand(layer: Any) -> Tensor:
    """Return ``g * v / |v|`` with the norm over all axes but the first."""
    v = layer.weight_v
    size = v.flatten(1).norm(dim=1).view(-1, *[1] * (v.dim() - 1))
    return layer.weight_g * v / size


def pruned(layer: nn.Module) -> nn.Module:
    return prune.random_unstructured(layer, "weight", 0.5)


def pruned_by_hand(layer: Any) -> Tensor:
    return layer.weight_orig * layer.weight_mask


def hooked_twin(model: nn.Module, wrap: Wrap, scaling: str, read: Reader) -> nn.Module:
    """Build a twin from scratch: torch cannot copy a weight that a hook has set."""
    twin = network(wrap)
    twin.load_state_dict(model.state_dict())
    for name in COMPUTED:
        setattr(twin, name, ReferenceLayer(twin.get_submodule(name), scaling, read))
    return twin


@deprecated
@every_scaling
@pytest.mark.parametrize(
    ("wrap", "read"),
    [
        (parametrizations.weight_norm, None),
        (parametrizations.spectral_norm, None),
        (old_weight_norm, normed_by_hand),
        (pruned, pruned_by_hand),
    ],
    ids=["weight-norm", "spectral-norm", "old-weight-norm", "pruned"],
)
def test_twenty_steps_with_a_computed_weight_are_the_twins(
    wrap: Wrap, read: Reader | None, scaling: str
) -> None:
    model, (x, targets) = network(wrap), samples()
    if read is None:
        twin = reference_twin(model, COMPUTED, scaling)
    else:
        twin = hooked_twin(model, wrap, scaling, read)
    with feedback_alignment(model, COMPUTED, scaling=scaling):
        ours = train(model, x, targets)
    assert distance(ours, train(twin, x, targets)) < 1e-12
    # Spectral norm: one power iteration for each pass, none for reading the weight.
    theirs = [b for name, b in twin.named_buffers() if not name.endswith("entry")]
    if theirs:
        assert distance(list(model.buffers()), theirs) < 1e-12


@deprecated
@pytest.mark.parametrize("wrap", [old_weight_norm, old_spectral_norm, pruned])
@pytest.mark.parametrize("called", [True, False], ids=["used", "fresh"])
def test_hooks_compute_the_weight_anew_after_loading_weights(
    wrap: Wrap, called: bool
) -> None:
    """``weight`` is outdated until the next call; the block must not use it."""
    model, other = network(wrap), network(wrap)
    x, _ = samples()
    for used in (model, other) if called else ():
        used(x)
    for used in (model, other):
        used.eval()
    model.load_state_dict(other.state_dict())
    outdated = model[5].weight.detach().clone()
    ours, theirs = (x.clone().requires_grad_() for _ in range(2))
    with feedback_alignment(model, COMPUTED, scaling="none"):
        assert torch.equal(model[5].weight, outdated)  # nor does entering change it
        model(ours).square().sum().backward()
    other(theirs).square().sum().backward()
    assert not torch.allclose(outdated, other[5].weight)
    # No step yet: B is the weight.
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-12, atol=1e-14)


@deprecated
@pytest.mark.parametrize("scaling", ["none", "tensor"])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda layer: old_weight_norm(layer, "bias"),
        lambda layer: old_spectral_norm(layer, "extra"),
        lambda layer: prune.random_unstructured(layer, "bias", 1),
    ],
    ids=["weight-norm", "spectral-norm", "pruned"],
)
def test_hooks_of_another_parameter_do_not_change_the_feedback(
    wrap: Wrap, scaling: str
) -> None:
    """B has the shape and the values of the weight."""
    layer = nn.Linear(3, 2).double()
    layer.extra = nn.Parameter(torch.randn(2, 3).double())
    entry = layer.weight.detach().clone()
    model, x = nn.Sequential(wrap(layer)), torch.ones(1, 3).double().requires_grad_()
    with feedback_alignment(model, ["0"], scaling=scaling):
        with torch.no_grad():
            model[0].weight.mul_(-2)
        model(x).backward(torch.tensor([[1.0, 10.0]]).double())
    assert x.grad is not None
    factor = 1 if scaling == "none" else 2
    expected = factor * (entry[:1] + 10 * entry[1:])
    torch.testing.assert_close(x.grad, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("training", [True, False])
def test_entering_does_not_change_spectral_norms_buffers_and_modes(
    training: bool,
) -> None:
    model = network(parametrizations.spectral_norm).train(training)
    model[2].parametrizations.weight.eval()  # a mode of its own, to be restored
    before, modes = copy.deepcopy(list(model.buffers())), modes_of(model)
    with feedback_alignment(model, COMPUTED):
        assert same_bits(list(model.buffers()), before)
        assert modes_of(model) == modes
    assert len(before) == 4


def modes_of(model: nn.Module) -> list[bool]:
    return [m.training for m in model.modules()]


def test_a_parametrised_weight_is_computed_once_for_each_pass() -> None:
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
    model, (x, targets) = network(lambda m: m), samples()
    for layer in (model[2], model[5]):
        parametrize.register_parametrization(layer, "bias", nn.Softplus())
    twin = reference_twin(model, COMPUTED)
    with feedback_alignment(model, COMPUTED):
        ours = train(model, x, targets)
    assert distance(ours, train(twin, x, targets)) < 1e-12


def test_a_parametrisation_added_inside_the_block_stays() -> None:
    model, (x, _) = network(lambda m: m), samples()
    plain = copy.deepcopy(model)
    with feedback_alignment(model, COMPUTED):
        parametrizations.weight_norm(model[5])
        model(x).sum().backward()
    torch.testing.assert_close(model(x), plain(x), rtol=1e-12, atol=1e-14)
    assert "forward" not in vars(model[5])
