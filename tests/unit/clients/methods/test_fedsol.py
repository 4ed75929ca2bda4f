"""FedSOL: the perturbation, the two passes, and what they leave behind."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clients import LocalTrainer, TrainSettings
from clients.methods.fedsol import FedSOLTrainer
from tests.unit.clients.cases import same_bits
from tests.unit.clients.methods.methods import (
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
)
from tests.unit.clients.methods.sol import Watched, norm_of, slow

SETTINGS = TrainSettings(learning_rate=0.1, batch_size=5, epochs=2, seed=2)
ONCE = TrainSettings(learning_rate=0.1, batch_size=22, epochs=1, seed=2)
every_kind = pytest.mark.parametrize(("variant", "part"), SOLS)


def batchnormed() -> nn.Sequential:
    """BatchNorm of both kinds: a moving average, and one of all batches alike."""
    model = normed()
    model.norm2.momentum = None
    model.drop.p = model.drop2.p = 0.0
    return model


@every_kind
@pytest.mark.parametrize("rho", [0.1, 2.0])
def test_a_round_follows_the_slow_gradient(rho: float, variant: str, part: str) -> None:
    model, samples = mlp().double(), data(dtype=torch.float64)
    config = fedsol(rho, variant, part)
    ours, _, _ = trained(FedSOLTrainer, model, SETTINGS, samples, config)
    gradient = slow(model, *samples, rho, variant, part)
    theirs = by_hand(model, len(samples[0]), SETTINGS, gradient)
    assert apart(weights(ours), weights(theirs)) < 1e-10


@pytest.mark.parametrize("part", ["all", "head"])
def test_batchnorm_sees_the_first_pass_only(part: str) -> None:
    """The adaptive variant: with w = W both sides agree that there is no perturbation.

    The slow way runs the second pass on a copy, so its statistics are of the first.
    """
    model, samples = batchnormed().double(), data(dtype=torch.float64)
    config = fedsol(1.0, "adaptive", part)
    ours, _, _ = trained(FedSOLTrainer, model, SETTINGS, samples, config)
    gradient = slow(model, *samples, 1.0, "adaptive", part)
    theirs = by_hand(model, len(samples[0]), SETTINGS, gradient)
    assert apart(weights(ours), weights(theirs)) < 1e-10
    for a, b in zip(ours.buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-13)
    assert ours.norm.num_batches_tracked == 10


@every_kind
def test_after_one_step_the_statistics_are_fedavgs(variant: str, part: str) -> None:
    """The first pass is at w = W whatever is perturbed later."""
    model, samples = normed(), data()
    plain, _, _ = trained(LocalTrainer, model, ONCE, samples)
    for rho in (0.0, 1.0):
        config = fedsol(rho, variant, part)
        ours, _, _ = trained(FedSOLTrainer, model, ONCE, samples, config)
        assert same_bits(list(ours.buffers()), list(plain.buffers()))


@pytest.mark.parametrize("part", ["all", "head"])
@pytest.mark.parametrize("rho", [0.01, 1.0])
def test_the_size_of_the_perturbation(part: str, rho: float) -> None:
    """rho (fixed), at most rho (adaptive), nothing in the first step (w = W)."""
    model, samples = mlp().double(), data(dtype=torch.float64)
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
            # Weights outside the head are left alone if only the head is perturbed.
            assert all(e.any() for e in added[-2:])
            assert any(e.any() for e in added[:-2]) == (part == "all")


@every_kind
def test_the_weights_come_back_in_every_bit(variant: str, part: str) -> None:
    config = fedsol(1.0, variant, part)
    _, _, trainer = trained(Watched, normed(), SETTINGS, data(), config)
    for before, after in zip(trainer.before, trainer.after, strict=True):
        assert same_bits(before, after)
    assert not same_bits(trainer.before[-1], trainer.inside[-1])


@every_kind
def test_the_weights_come_back_after_an_error(variant: str, part: str) -> None:
    model = normed()
    trainer = Watched(model, SETTINGS, fedsol(1.0, variant, part))
    trainer.fails_in_step = 3
    with pytest.raises(ArithmeticError):
        trainer.fit(*data())
    assert not same_bits(trainer.inside[2], trainer.before[2])
    assert same_bits(weights(model), trainer.before[2])
    assert model.norm.track_running_stats
    assert model.norm.training
    assert not any(m._forward_pre_hooks for m in model.modules())


@every_kind
def test_the_first_step_is_fedavgs(variant: str, part: str) -> None:
    """At w = W the local and the received logits agree, so nothing is perturbed.

    That is so without BatchNorm and dropout, which are in training mode in the local
    model and in evaluation mode in the received one.
    """
    model, samples = mlp().double(), data(dtype=torch.float64)
    plain, expected, _ = trained(LocalTrainer, model, ONCE, samples)
    config = fedsol(1.0, variant, part)
    ours, metrics, _ = trained(FedSOLTrainer, model, ONCE, samples, config)
    assert same_bits(weights(ours), weights(plain))
    assert metrics == expected


def test_the_first_step_is_fedavgs_with_norms_and_dropout_if_adaptive() -> None:
    """Each step is scaled by |w - W| = 0 there, whatever the logits are."""
    model, samples = normed(), data()
    plain, _, _ = trained(LocalTrainer, model, ONCE, samples)
    config = fedsol(1.0, "adaptive", "all")
    ours, _, _ = trained(FedSOLTrainer, model, ONCE, samples, config)
    assert same_bits(bits(ours), bits(plain))


def test_rounding_is_not_taken_for_a_direction() -> None:
    """In float32, in the first step, of a network of an ordinary size."""
    model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
    samples = torch.randn(64, 784), torch.randint(0, 10, (64,))
    given = TrainSettings(batch_size=64, epochs=1)
    config = fedsol(1.0, "fixed", "all")
    _, _, trainer = trained(Watched, model, given, samples, config)
    assert not any(e.any() for e in trainer.added()[0])


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
        assert not ours.norm.track_running_stats


def test_the_received_logits_are_of_evaluation_mode() -> None:
    model, (inputs, targets) = normed(), data()
    for _ in range(3):
        model(inputs)
    before = copy.deepcopy(bits(model))
    model.drop.eval()
    modes = [m.training for m in model.modules()]
    random = torch.get_rng_state()
    trainer = FedSOLTrainer(model, SETTINGS, fedsol(1.0, "fixed", "all"))
    trainer.begin(inputs, targets)
    assert torch.equal(torch.get_rng_state(), random)
    assert [m.training for m in model.modules()] == modes
    assert same_bits(bits(model), before)
    anchor = trainer.received_logits.for_batch(torch.arange(len(inputs)), inputs)
    with torch.no_grad():
        assert torch.equal(anchor, copy.deepcopy(model).eval()(inputs))


class Scaled(nn.Module):
    """A model whose output is not that of its head."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 7), nn.Linear(7, 4)

    def forward(self, x: Tensor) -> Tensor:
        return 5 * self.head(self.body(x).tanh())


def settings_of(part: str, variant: str = "fixed") -> dict[str, Any]:
    return {"fedsol-rho": 1.0, "fedsol-variant": variant, "fedsol-part": part}


def test_the_head_alone_must_give_the_models_output() -> None:
    """Otherwise the second loss would be another one."""
    FedSOLTrainer(Scaled(), SETTINGS, settings_of("all")).fit(*data())
    with pytest.raises(ValueError, match="output is that of its head"):
        FedSOLTrainer(Scaled(), SETTINGS, settings_of("head")).fit(*data())


def test_direct_feedback_is_refused_with_the_head_alone() -> None:
    """Its second pass has no output of the model, only a stale error."""
    given = TrainSettings(batch_size=5, epochs=1, fa_layers=("body",), feedback="dfa")
    FedSOLTrainer(Scaled(), given, settings_of("all")).fit(*data())
    with pytest.raises(ValueError, match="feedback 'dfa'"):
        FedSOLTrainer(Scaled(), given, settings_of("head")).fit(*data())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (settings_of("haed"), "fedsol-part is 'haed'"),
        (settings_of("all", "adptive"), "fedsol-variant is 'adptive'"),
        ({"fedsol-rho": 1.0}, "FedSOLTrainer needs 'fedsol-variant'"),
    ],
)
def test_settings_that_are_wrong_or_missing(
    config: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        FedSOLTrainer(mlp(), SETTINGS, config).fit(*data())


class Counting(nn.Module):
    """Keeps a buffer that it replaces, not changes, in every pass."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("passes", torch.zeros(()))
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        self.passes = self.passes + 1
        return self.linear(x)


def test_a_buffer_that_is_replaced_counts_the_first_pass_only() -> None:
    model = nn.Sequential(Counting(), nn.Tanh(), nn.Linear(6, 4))
    inputs, targets = data()
    FedSOLTrainer(model, SETTINGS, settings_of("all")).fit(inputs, targets)
    assert model[0].passes == 2 * math.ceil(len(inputs) / 5)  # steps of two epochs
