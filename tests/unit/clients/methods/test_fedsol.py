"""FedSOL: the perturbation, the two passes, and what they leave unchanged."""

import copy
import math
from collections import OrderedDict
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from clients import FedSOLTrainer, LocalTrainer, TrainSettings
from tests.unit.clients.cases import same_bits
from tests.unit.clients.federated import (
    SOLS,
    apart,
    bits,
    by_hand,
    data,
    fedsol,
    mlp,
    normed,
    trained,
    weights,
    without_dropout,
)
from tests.unit.clients.methods.slow_fedsol import (
    Watched,
    divergence,
    norm_of,
    perturbation,
    slow,
)

SETTINGS = TrainSettings(learning_rate=0.1, batch_size=5, epochs=2, seed=2)
ONCE = TrainSettings(learning_rate=0.1, batch_size=22, epochs=1, seed=2)
DOUBLE = torch.float64
every_variant = pytest.mark.parametrize(("variant", "part"), SOLS)
every_part = pytest.mark.parametrize("part", ["all", "head"])


def batchnormed() -> nn.Sequential:
    """BatchNorm of both kinds: a moving average, and one of all batches alike."""
    model = without_dropout(normed())
    model.norm2.momentum = None
    return model


def body_and(head: nn.Module, *last: nn.Module) -> Any:
    body = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 7), *last)
    return nn.Sequential(OrderedDict(body=body, head=head))


# --- The gradient ------------------------------------------------------------------


@every_variant
@pytest.mark.parametrize("rho", [0.1, 2.0])
def test_a_round_follows_the_slow_gradient(rho: float, variant: str, part: str) -> None:
    model, samples = mlp().double(), data(dtype=DOUBLE)
    config = fedsol(rho, variant, part)
    ours, _, _ = trained(FedSOLTrainer, model, SETTINGS, samples, config)
    gradient = slow(model, *samples, rho, variant, part)
    theirs = by_hand(model, len(samples[0]), SETTINGS, gradient)
    assert apart(weights(ours), weights(theirs)) < 1e-10


@every_part
def test_batchnorm_counts_the_first_pass_only(part: str) -> None:
    """The adaptive variant: with w = W both sides agree that there is no perturbation.

    The slow way runs the second pass on a copy, so its statistics are of the first.
    """
    model, samples = batchnormed().double(), data(dtype=DOUBLE)
    config = fedsol(1.0, "adaptive", part)
    ours, _, _ = trained(FedSOLTrainer, model, SETTINGS, samples, config)
    gradient = slow(model, *samples, 1.0, "adaptive", part)
    theirs = by_hand(model, len(samples[0]), SETTINGS, gradient)
    assert apart(weights(ours), weights(theirs)) < 1e-10
    for a, b in zip(ours.buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-13)
    assert ours.norm.num_batches_tracked == 10


def aligned(model: Any, x: Tensor, layer: str, feedback: Tensor) -> Tensor:
    """Run an ``mlp`` in which one layer propagates the error through ``feedback``."""
    for name, module in model.named_children():
        if name == layer:
            # The value is the layer's; the input's gradient goes through the second.
            x = module(x.detach()) + (x - x.detach()) @ feedback.T
        else:
            x = module(x)
    return x


@every_variant
@pytest.mark.parametrize("layer", ["hidden", "head"])
def test_feedback_is_scaled_to_the_unperturbed_weight_in_both_passes(
    layer: str, variant: str, part: str
) -> None:
    model, (inputs, targets) = mlp().double(), data(dtype=DOUBLE)
    frozen, rho = copy.deepcopy(model), 2.0
    on_entry = model.get_submodule(layer).weight.detach().clone()

    def gradient(net: nn.Module, batch: Tensor) -> list[Tensor]:
        x, weight = inputs[batch], net.get_submodule(layer).weight.detach()
        feedback = weight.norm() / on_entry.norm() * on_entry
        loss = divergence(frozen(x).detach(), aligned(net, x, layer, feedback))
        added = perturbation(net, frozen, loss, rho, variant, part)
        second = copy.deepcopy(net)
        with torch.no_grad():
            for p, e in zip(second.parameters(), added, strict=True):
                p.add_(e)
        error = cross_entropy(aligned(second, x, layer, feedback), targets[batch])
        return list(torch.autograd.grad(error, list(second.parameters())))

    given = TrainSettings(learning_rate=0.1, batch_size=5, epochs=2, fa_layers=(layer,))
    config = fedsol(rho, variant, part)
    ours, _, _ = trained(FedSOLTrainer, model, given, (inputs, targets), config)
    theirs = by_hand(model, len(inputs), given, gradient)
    assert apart(weights(ours), weights(theirs)) < 1e-10


# --- The perturbation --------------------------------------------------------------


@every_part
@pytest.mark.parametrize("rho", [0.01, 1.0])
def test_the_size_of_the_perturbation(part: str, rho: float) -> None:
    """rho (fixed), at most rho (adaptive), nothing in the first step (w = W)."""
    model, samples = mlp().double(), data(dtype=DOUBLE)
    for variant in ("fixed", "adaptive"):
        config = fedsol(rho, variant, part)
        _, _, trainer = trained(Watched, model, SETTINGS, samples, config)
        first, *others = trainer.added()
        assert not any(e.any() for e in first)
        assert len(others) == 9
        for added in others:
            if variant == "fixed":
                assert norm_of(added) == pytest.approx(rho, rel=1e-5)
            else:
                assert 0 < norm_of(added) <= rho
            # Weights outside the head stay if only the head is perturbed.
            assert all(e.any() for e in added[-2:])
            assert any(e.any() for e in added[:-2]) == (part == "all")


@pytest.mark.parametrize(("size", "expected"), [(0.9, 0), (1.1, 1), (0.0, 0)])
def test_a_gradient_below_the_smallest_norm_does_not_perturb(
    size: float, expected: float
) -> None:
    """The smallest norm is 1e-8."""
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)).double()
    trainer = FedSOLTrainer(model, SETTINGS, fedsol(1.0, "fixed", "head"))
    trainer.begin(torch.ones(2, 1).double(), torch.zeros(2, dtype=torch.int64))
    before = model[1].weight.detach().clone()
    gradients = [torch.zeros_like(p) for p in model[1].parameters()]
    gradients[0] += 1e-8 * size
    with trainer._perturbed_weights(gradients):
        added = (model[1].weight - before).item()
    assert added == pytest.approx(expected, rel=1e-3)
    assert torch.equal(model[1].weight, before)


def test_a_parameter_without_a_gradient_is_no_part_of_the_perturbation() -> None:
    """Neither of its norm: the other weights are trained as without it."""
    model, samples, results = mlp(), data(), []
    for unused in (False, True):
        if unused:
            model.act.weight = nn.Parameter(torch.randn(50))
        config = fedsol(1.0, "fixed", "all")
        ours, _, _ = trained(FedSOLTrainer, model, SETTINGS, samples, config)
        results.append({k: v for k, v in ours.state_dict().items() if "act" not in k})
    assert len(results[0]) == 6
    assert same_bits(*(list(result.values()) for result in results))
    assert torch.equal(ours.act.weight, model.act.weight)


def test_rounding_is_not_used_as_a_direction() -> None:
    """In float32, in the first step, of a network of an ordinary size."""
    model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
    samples = torch.randn(64, 784), torch.randint(0, 10, (64,))
    given = TrainSettings(batch_size=64, epochs=1)
    _, _, trainer = trained(Watched, model, given, samples, fedsol(1.0, "fixed", "all"))
    assert not any(e.any() for e in trainer.added()[0])


def test_weights_that_have_not_moved_are_not_perturbed_if_adaptive() -> None:
    """An input that is always zero: 0 / 0 would be nan."""
    model, (inputs, targets) = mlp().double(), data(dtype=DOUBLE)
    inputs[:, 2] = 0.0
    given = replace(SETTINGS, weight_decay=0.0)
    config = fedsol(1.0, "adaptive", "all")
    ours, _, _ = trained(FedSOLTrainer, model, given, (inputs, targets), config)
    gradient = slow(model, inputs, targets, 1.0, "adaptive", "all")
    theirs = by_hand(model, len(inputs), given, gradient)
    assert apart(weights(ours), weights(theirs)) < 1e-10
    assert torch.equal(ours.first.weight[:, 2], model.first.weight[:, 2])


@every_variant
def test_the_weights_are_restored_in_every_bit_and_after_an_error(
    variant: str, part: str
) -> None:
    config = fedsol(1.0, variant, part)
    _, _, trainer = trained(Watched, normed(), SETTINGS, data(), config)
    for before, after in zip(trainer.before, trainer.after, strict=True):
        assert same_bits(before, after)
    assert not same_bits(trainer.before[-1], trainer.inside[-1])
    model = normed()
    trainer = Watched(model, SETTINGS, config)
    trainer.fails_in_step = 3
    with pytest.raises(ArithmeticError):
        trainer.fit(*data())
    assert not same_bits(trainer.inside[2], trainer.before[2])
    assert same_bits(weights(model), trainer.before[2])
    assert model.norm.training
    assert not any(m._forward_pre_hooks for m in model.modules())


# --- The first step ----------------------------------------------------------------


@every_variant
def test_the_first_step_is_fedavgs(variant: str, part: str) -> None:
    """Weights, metrics and statistics; also with norms, and in-place dropout."""
    head = nn.Sequential(nn.Dropout(0.4, inplace=True), nn.Linear(7, 4))
    samples = data()
    for model in (mlp(), normed(), body_and(head, nn.Dropout(0.5))):
        plain, expected, _ = trained(LocalTrainer, model, ONCE, samples)
        config = fedsol(1.0, variant, part)
        ours, metrics, _ = trained(FedSOLTrainer, model, ONCE, samples, config)
        assert same_bits(bits(ours), bits(plain))
        assert metrics == expected
        trained(FedSOLTrainer, model, SETTINGS, samples, config)  # torch accepts it


def test_a_frozen_head_is_fedavg_if_it_alone_is_perturbed() -> None:
    model, samples = mlp(), data()
    model.head.requires_grad_(False)
    plain, _, _ = trained(LocalTrainer, model, SETTINGS, samples)
    config = fedsol(1.0, "fixed", "head")
    ours, _, _ = trained(FedSOLTrainer, model, SETTINGS, samples, config)
    assert same_bits(bits(ours), bits(plain))


# --- The passes --------------------------------------------------------------------


@pytest.mark.parametrize(("part", "passes"), [("all", 2), ("head", 1)])
def test_how_often_the_body_is_run(part: str, passes: int) -> None:
    """5 batches, 2 epochs, of which the first step is plain.

    The received logits are computed once, in evaluation mode.
    """
    model, modes = mlp(), []
    trainer = FedSOLTrainer(model, SETTINGS, fedsol(1.0, "fixed", part))
    model.first.register_forward_hook(lambda m, *_: modes.append(m.training))
    trainer.fit(*data())
    assert modes.count(True) == 1 + passes * 9
    assert modes.count(False) == 1


@every_part
def test_the_norm_of_a_head_counts_one_pass_of_each_step(part: str) -> None:
    model = body_and(nn.Sequential(nn.BatchNorm1d(7), nn.Linear(7, 4)))
    config = fedsol(1.0, "fixed", part)
    ours, _, _ = trained(FedSOLTrainer, model, SETTINGS, data(), config)
    assert ours.head[0].num_batches_tracked == 10


class Counting(nn.Module):
    """Assigns a new tensor to its buffer in every pass."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("passes", torch.zeros(()))
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        self.passes = self.passes + 1
        return self.linear(x)


def test_a_buffer_that_is_assigned_counts_the_first_pass_only() -> None:
    model = nn.Sequential(Counting(), nn.Tanh(), nn.Linear(6, 4))
    inputs, targets = data()
    trainer = FedSOLTrainer(model, SETTINGS, fedsol(1.0, "fixed", "all"))
    trainer.fit(inputs, targets)
    assert model[0].passes == 2 * math.ceil(len(inputs) / 5)  # steps of two epochs


class Masks(nn.Dropout):
    """Record the masks in training mode."""

    def __init__(self) -> None:
        super().__init__(0.5)
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen.append(super().forward(torch.ones_like(x)))
            return x * self.seen[-1]
        return x

    def different(self) -> int:
        return len({tuple(mask.flatten().tolist()) for mask in self.seen})


@pytest.mark.parametrize("in_head", [True, False])
@every_part
def test_both_passes_have_the_same_dropout_and_each_step_another(
    part: str, in_head: bool
) -> None:
    """Four steps, of which the first is plain; every batch has 22 samples."""
    masks = Masks() if in_head else None
    head = nn.Sequential(masks, nn.Linear(7, 4)) if masks else nn.Linear(7, 4)
    model = body_and(head, Masks())
    given = TrainSettings(batch_size=22, epochs=4)
    FedSOLTrainer(model, given, fedsol(1.0, "fixed", part)).fit(*data())
    twice = [m for m in (masks, model.body[-1] if part == "all" else None) if m]
    for module in twice:
        assert len(module.seen) == 1 + 3 * 2
        for first, second in zip(module.seen[1::2], module.seen[2::2], strict=True):
            assert torch.equal(first, second)
        assert module.different() == 4
    assert model.body[-1].different() == 4


def test_scalar_parameters_and_norms_without_statistics() -> None:
    """A learnt temperature has no first axis; such a BatchNorm has no buffers."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(2.0))
            self.first = nn.Linear(6, 7)
            self.norm = nn.BatchNorm1d(7, track_running_stats=False)
            self.head = nn.Linear(7, 4)

        def forward(self, x: torch.Tensor) -> Any:
            return self.scale * self.head(torch.tanh(self.norm(self.first(x))))

    model = Scaled()
    for variant in ("fixed", "adaptive"):
        config = fedsol(1.0, variant, "all")
        ours, _, _ = trained(FedSOLTrainer, model, SETTINGS, data(20), config)
        assert not torch.equal(ours.scale, model.scale)
    # Its output is not that of its head.
    with pytest.raises(ValueError, match="output is that of its head"):
        FedSOLTrainer(model, SETTINGS, fedsol(1.0, "fixed", "head")).fit(*data(20))


def test_the_received_logits_are_those_of_evaluation_mode() -> None:
    model, (inputs, targets) = normed(), data()
    for _ in range(3):
        model(inputs)
    trainer = FedSOLTrainer(model, SETTINGS, fedsol(1.0, "fixed", "all"))
    trainer.begin(inputs, targets)
    logits = trainer.received_logits.for_batch(torch.arange(len(inputs)), inputs)
    with torch.no_grad():
        assert torch.equal(logits, copy.deepcopy(model).eval()(inputs))


# --- Errors ------------------------------------------------------------------------


def test_direct_feedback_is_refused_with_the_head_alone() -> None:
    """Its second pass has no output of the model, only the error of the first."""
    given = TrainSettings(batch_size=5, epochs=1, fa_layers=("hidden",), feedback="dfa")
    FedSOLTrainer(mlp(), given, fedsol(1.0, "fixed", "all")).fit(*data())
    with pytest.raises(ValueError, match="feedback 'dfa'"):
        FedSOLTrainer(mlp(), given, fedsol(1.0, "fixed", "head")).fit(*data())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (fedsol(1.0, "fixed", "haed"), "fedsol-part is 'haed'"),
        (fedsol(1.0, "adptive", "all"), "fedsol-variant is 'adptive'"),
        ({"fedsol-rho": 1.0}, "FedSOLTrainer needs 'fedsol-variant'"),
    ],
)
def test_options_that_are_wrong_or_missing(
    config: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        FedSOLTrainer(mlp(), SETTINGS, config).fit(*data())
