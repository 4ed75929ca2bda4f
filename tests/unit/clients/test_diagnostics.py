"""Angle and error of feedback alignment, measured without leaving a trace."""

import copy
import math
from collections import OrderedDict
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.parametrizations import spectral_norm

from clients import (
    LocalTrainer,
    TrainSettings,
    feedback_alignment,
    feedback_diagnostics,
)
from clients.feedback.diagnostics import ANGLE, ERROR
from flfa_app.methods import ALGORITHMS
from tests.unit.clients.cases import moved, same_bits
from tests.unit.clients.methods.methods import (
    ACTIVE,
    active,
    bits,
    convnet,
    data,
    mlp,
    normed,
)

every_method = pytest.mark.parametrize("name", ACTIVE)


def batchnormed() -> nn.Sequential:
    """The network with BatchNorm, without dropout."""
    model = normed()
    model.drop.p = model.drop2.p = 0.0
    return model


def conv() -> nn.Sequential:
    model = convnet()
    model.drop.p = 0.0
    return model


def radians(one: Tensor, other: Tensor) -> float:
    """Return the angle of two points on the unit sphere by the chord between them."""
    a, b = (t.detach().double().flatten() / norm([t]) for t in (one, other))
    return 2 * math.asin(norm([a - b]) / 2)


def norm(tensors: list[Tensor]) -> float:
    squares = [v * v for t in tensors for v in t.detach().double().flatten().tolist()]
    return math.sqrt(math.fsum(squares))


def slow_error(
    received: nn.Module,
    now: nn.Module,
    name: str,
    samples: tuple[Tensor, Tensor],
    loss: Any = cross_entropy,
    **how: Any,
) -> float:
    """Compare two copies of the model, one with alignment in the layer alone."""
    gradients = []
    for names in ([name], []):
        model = copy.deepcopy(received)
        with feedback_alignment(model, names, **how):
            model.load_state_dict(now.state_dict())
            loss(model(samples[0]), samples[1]).backward()
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    aligned, true = gradients
    return norm([a - b for a, b in zip(aligned, true, strict=True)]) / norm(true)


def measure(
    model: nn.Module,
    names: tuple[str, ...],
    samples: tuple[Tensor, Tensor],
    by: float = 0.2,
    **how: Any,
) -> dict[str, float]:
    """Move the weights inside the block, and measure."""
    with feedback_alignment(model, names, **how):
        moved(model, by)
        return feedback_diagnostics(model, names, *samples, cross_entropy)


@pytest.mark.parametrize("net", [mlp, batchnormed, conv])
@pytest.mark.parametrize("scaling", ["tensor", "channel", "none"])
@pytest.mark.parametrize("names", [("hidden",), ("head",), ("hidden", "head")])
@pytest.mark.parametrize("feedback", ["global", "random"])
def test_the_error_is_the_slow_one_layer_by_layer(
    net: Any, scaling: str, names: tuple[str, ...], feedback: str
) -> None:
    """With two aligned layers each is measured alone."""
    received, samples = net().double(), data(dtype=torch.float64)
    model = copy.deepcopy(received)
    how = {"feedback": feedback, "scaling": scaling, "seed": 4}
    found = measure(model, names, samples, **how)
    assert list(found) == [f"{key}/{name}" for name in names for key in (ANGLE, ERROR)]
    for name in names:
        expected = slow_error(received, model, name, samples, **how)
        assert expected > 1e-3
        assert found[f"{ERROR}/{name}"] == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("net", [mlp, batchnormed, conv])
@pytest.mark.parametrize("names", [("hidden",), ("first", "hidden")])
def test_direct_feedback_has_an_error_and_no_angle(
    net: Any, names: tuple[str, ...]
) -> None:
    received, samples = net().double(), data(dtype=torch.float64)
    model = copy.deepcopy(received)
    found = measure(model, names, samples, feedback="dfa", seed=4)
    assert list(found) == [f"{ERROR}/{name}" for name in names]
    for name in names:
        expected = slow_error(received, model, name, samples, feedback="dfa", seed=4)
        assert found[f"{ERROR}/{name}"] == pytest.approx(expected, rel=1e-10)


def test_the_error_by_hand() -> None:
    """One sample x = 1, y = a x, z = w y, loss z: dz/dw = a, dz/da = w x, or B x.

    With W = (3), w = (-3), a = 4 the gradients are (4, -3) of norm 5 and (4, 3): 6 / 5.
    The scaling is 1. The feedback and the weight are opposite: 180 degrees.
    """
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    with torch.no_grad():
        model[0].weight.fill_(4.0)
        model[1].weight.fill_(3.0)
    with feedback_alignment(model, ["1"]):
        with torch.no_grad():
            model[1].weight.fill_(-3.0)
        found = feedback_diagnostics(
            model, ["1"], torch.ones(1, 1), torch.ones(1), lambda z, _: z.sum()
        )
    assert found[f"{ERROR}/1"] == pytest.approx(6 / 5, rel=1e-6)
    assert found[f"{ANGLE}/1"] == 180.0


@pytest.mark.parametrize("net", [mlp, normed, convnet])
@pytest.mark.parametrize("scaling", ["tensor", "channel", "none"])
def test_at_the_received_weights_both_are_zero(net: Any, scaling: str) -> None:
    """To the bit, because B = w; with dropout, which must be the same in all passes."""
    names = ("hidden", "head")
    found = measure(net(), names, data(), by=0.0, scaling=scaling)
    assert found == {f"{key}/{name}": 0.0 for name in names for key in (ANGLE, ERROR)}


def test_dropout_matters_to_the_test_above() -> None:
    """Two passes with other dropout have other gradients."""
    model, (inputs, targets) = normed(), data()
    gradients = []
    for _ in range(2):
        loss = cross_entropy(model(inputs), targets)
        gradients.append(torch.autograd.grad(loss, list(model.parameters())))
    assert not same_bits(*gradients)


def test_the_first_layer_has_an_angle_and_no_error() -> None:
    """Its input needs no gradient, so alignment changes nothing there."""
    found = measure(mlp(), ("first",), data())
    assert found[f"{ANGLE}/first"] > 1
    assert found[f"{ERROR}/first"] == 0.0


def test_without_a_gradient_there_is_no_error() -> None:
    def flat(outputs: Tensor, targets: Tensor) -> Tensor:
        return 0.0 * outputs.sum()

    model = mlp()
    with feedback_alignment(model, ["hidden"]):
        moved(model)
        found = feedback_diagnostics(model, ["hidden"], *data(), flat)
    assert found[f"{ERROR}/hidden"] == 0.0
    assert found[f"{ANGLE}/hidden"] > 1


@pytest.mark.parametrize("net", [mlp, conv])
@pytest.mark.parametrize("by", [1e-3, 0.3, 5.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_angle_is_the_slow_one(net: Any, by: float, dtype: torch.dtype) -> None:
    model = net().to(dtype)
    entry = copy.deepcopy(model)
    found = measure(model, ("hidden", "head"), data(dtype=dtype), by)
    for name in ("hidden", "head"):
        one, other = (m.get_submodule(name).weight for m in (entry, model))
        expected = math.degrees(radians(one, other))
        assert found[f"{ANGLE}/{name}"] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("degrees", [1e-6, 1e-3, 1.0, 45.0, 90.0, 135.0, 179.0])
@pytest.mark.parametrize("size", [1e-4, 1.0, 1e3])
def test_an_angle_that_is_known(degrees: float, size: float) -> None:
    """A turn in a plane; the length of the weight is of no concern.

    An arc cosine would make 0 of 1e-6 degrees, whose cosine is 1 - 1.5e-16.
    """
    model = mlp().double()
    turn = math.radians(degrees)
    with torch.no_grad():
        model.hidden.weight.zero_()
        model.hidden.weight[2, 3] = 0.7
    with feedback_alignment(model, ["hidden"]):
        with torch.no_grad():
            model.hidden.weight[2, 3] = size * math.cos(turn)
            model.hidden.weight[5, 1] = size * math.sin(turn)
        found = feedback_diagnostics(
            model, ["hidden"], *data(dtype=torch.float64), cross_entropy
        )
    assert found[f"{ANGLE}/hidden"] == pytest.approx(degrees, rel=1e-9)


@pytest.mark.parametrize("factor", [2.0, -1.0, -0.5, 0.0])
def test_angles_on_a_line(factor: float) -> None:
    """Doubling and halving are exact: 0 and 180 are too. A zero weight has 0."""
    model = mlp()
    with feedback_alignment(model, ["hidden"]):
        with torch.no_grad():
            model.hidden.weight.mul_(factor)
        found = feedback_diagnostics(model, ["hidden"], *data(), cross_entropy)
    assert found[f"{ANGLE}/hidden"] == (180.0 if factor < 0 else 0.0)


def test_a_feedback_of_zero_has_the_angle_zero() -> None:
    model = mlp()
    nn.init.zeros_(model.hidden.weight)
    found = measure(model, ("hidden",), data())
    assert found[f"{ANGLE}/hidden"] == 0.0


def test_random_feedback_is_at_a_right_angle_in_a_large_layer() -> None:
    """The cosine of n = 90000 random numbers has deviation 1 / 300, or 0.2 degrees."""
    layers = {"first": nn.Linear(6, 300), "hidden": nn.Linear(300, 300)}
    model = nn.Sequential(OrderedDict(layers))
    found = measure(model, ("hidden",), data(), by=0.0, feedback="random", seed=1)
    assert abs(found[f"{ANGLE}/hidden"] - 90) < 6 * 0.2
    assert found[f"{ERROR}/hidden"] > 0.1


def test_the_angle_with_scaling_by_channel_is_that_of_the_scaled_feedback() -> None:
    """Channels stretched by different factors: B follows, and B = w to the end."""
    model = mlp().double()
    with feedback_alignment(model, ["hidden"], scaling="channel"):
        with torch.no_grad():
            model.hidden.weight.mul_(2.0 ** torch.arange(7.0).double()[:, None])
        found = feedback_diagnostics(
            model, ["hidden"], *data(dtype=torch.float64), cross_entropy
        )
    assert found[f"{ERROR}/hidden"] == pytest.approx(0, abs=1e-12)
    assert found[f"{ANGLE}/hidden"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("net", [mlp, normed, convnet])
@pytest.mark.parametrize("feedback", ["global", "random", "dfa"])
@pytest.mark.parametrize("size", [1, 22])
def test_nothing_is_changed(net: Any, feedback: str, size: int) -> None:
    """Weights, statistics, counters, gradients, modes, flags, forwards, randomness."""
    model, samples = net(), data()
    names = ("first", "hidden")
    with feedback_alignment(model, names, feedback=feedback):
        cross_entropy(model(samples[0]), samples[1]).backward()
        moved(model)
        model[2].eval()
        model[1].eval()
        before = copy.deepcopy(bits(model))
        grads = [p.grad.clone() for p in model.parameters()]
        modes = [m.training for m in model.modules()]
        forwards = [vars(m).get("forward") for m in model.modules()]
        random = torch.get_rng_state()
        few = samples[0][:size], samples[1][:size]
        feedback_diagnostics(model, names, *few, cross_entropy)
        assert torch.equal(torch.get_rng_state(), random)
        assert [m.training for m in model.modules()] == modes
        assert [vars(m).get("forward") for m in model.modules()] == forwards
        assert same_bits(bits(model), before)
        assert same_bits([p.grad for p in model.parameters()], grads)
        for module in model.modules():
            assert getattr(module, "track_running_stats", True)


def test_after_an_error_the_model_is_as_it_was() -> None:
    calls = []

    def failing(outputs: Tensor, targets: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) == 2:  # the first is without alignment, the second with one layer
            raise ArithmeticError("in the loss")
        return cross_entropy(outputs, targets)

    model, samples = normed(), data()
    with feedback_alignment(model, ["hidden", "head"]):
        forwards = [vars(m).get("forward") for m in model.modules()]
        before, random = copy.deepcopy(bits(model)), torch.get_rng_state()
        with pytest.raises(ArithmeticError):
            feedback_diagnostics(model, ["hidden", "head"], *samples, failing)
        assert [vars(m).get("forward") for m in model.modules()] == forwards
        assert same_bits(bits(model), before)
        assert torch.equal(torch.get_rng_state(), random)
    assert all(m.training for m in model.modules())
    assert model.norm.track_running_stats


def test_one_sample_where_batchnorm_has_one_value_a_channel() -> None:
    """It is normalised with the running statistics, as in a step of training."""
    received, samples = batchnormed().double(), data(1, dtype=torch.float64)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        received(samples[0])
    for _ in range(3):
        received(data(dtype=torch.float64)[0])
    model = copy.deepcopy(received)
    found = measure(model, ("hidden", "head"), samples)
    frozen = copy.deepcopy(received)
    frozen.eval()  # BatchNorm is all that has a mode: dropout is off
    for name in ("hidden", "head"):
        expected = slow_error(frozen, model, name, samples)
        assert found[f"{ERROR}/{name}"] == pytest.approx(expected, rel=1e-10)


def test_one_map_of_one_pixel() -> None:
    layers = {
        "first": nn.Conv2d(1, 3, 4),
        "norm": nn.BatchNorm2d(3),
        "hidden": nn.Conv2d(3, 3, 1),
        "flat": nn.Flatten(),
        "head": nn.Linear(3, 2),
    }
    model = nn.Sequential(OrderedDict(layers))
    samples = torch.randn(1, 1, 4, 4), torch.tensor([1])
    found = measure(model, ("hidden", "head"), samples)
    assert all(0 < value < 180 for value in found.values())
    assert model.norm.num_batches_tracked == 0


def test_frozen_and_unused_parameters_are_left_out() -> None:
    """Neither is part of the norms: one has no gradient, the other's is zero."""
    received, samples = mlp().double(), data(dtype=torch.float64)
    received.unused = nn.Identity()
    received.unused.weight = nn.Parameter(torch.ones(3, dtype=torch.float64))
    received.head.requires_grad_(False)
    model = copy.deepcopy(received)
    error = measure(model, ("head",), samples)[f"{ERROR}/head"]
    expected = slow_error(received, model, "head", samples)
    assert error == pytest.approx(expected, rel=1e-10)
    for m in (received, model):
        m.head.requires_grad_(True)
    assert error != pytest.approx(slow_error(received, model, "head", samples), rel=0.1)


SETTINGS = TrainSettings(learning_rate=0.05, batch_size=4, epochs=2, seed=3)


def test_every_method_of_the_app_is_tried() -> None:
    kinds = {kind for kind, _ in ACTIVE.values()}
    assert kinds == {method.trainer for method in ALGORITHMS.values()}


@every_method
@pytest.mark.parametrize("net", [mlp, normed, convnet])
@pytest.mark.parametrize("layers", [(), ("hidden",), ("hidden", "head")])
@pytest.mark.parametrize("size", [1, 9])
def test_the_trainer_measures_and_trains_as_ever(
    name: str, net: Any, layers: tuple[str, ...], size: int
) -> None:
    """The same bits, metrics and state as without; the keys of its layers."""
    model, samples = net(), data(size)
    given = replace(SETTINGS, fa_layers=layers)
    plain, expected, before = active(name, model, given, samples)
    random = torch.get_rng_state()
    ours, metrics, after = active(
        name, model, replace(given, diagnostics=True), samples
    )
    assert torch.equal(torch.get_rng_state(), random)
    assert same_bits(bits(ours), bits(plain))
    assert same_bits(list(after.state().values()), list(before.state().values()))
    keys = [f"{key}/{layer}" for layer in layers for key in (ANGLE, ERROR)]
    measured = {key: metrics.pop(key) for key in keys}
    assert metrics == expected
    assert all(value >= 0 for value in measured.values())
    for layer in layers:
        assert 0 < measured[f"{ANGLE}/{layer}"] < 180


@pytest.mark.parametrize("net", [mlp, conv])
@pytest.mark.parametrize("size", [3, 22])
def test_what_the_trainer_measures(net: Any, size: int) -> None:
    """On the first batch_size samples, as they are, with the weights at the end."""
    received, samples = net().double(), data(size, dtype=torch.float64)
    names = ("hidden", "head")
    given = replace(SETTINGS, fa_layers=names, diagnostics=True)
    model = copy.deepcopy(received)
    metrics = LocalTrainer(model, given).fit(*samples)
    first = samples[0][:4], samples[1][:4]
    for name in names:
        # In training mode without dropout; statistics are of the batch.
        expected = slow_error(received, model, name, first)
        assert metrics[f"{ERROR}/{name}"] == pytest.approx(expected, rel=1e-9)
        one, other = (m.get_submodule(name).weight for m in (received, model))
        degrees = math.degrees(radians(one, other))
        assert metrics[f"{ANGLE}/{name}"] == pytest.approx(degrees, rel=1e-9)


def test_the_loss_is_the_methods() -> None:
    def other(outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets) + outputs.square().mean()

    class Other(LocalTrainer):
        def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return other(outputs, targets)

    received, samples = mlp().double(), data(dtype=torch.float64)
    given = replace(SETTINGS, fa_layers=("hidden",), diagnostics=True)
    model = copy.deepcopy(received)
    error = Other(model, given).fit(*samples)[f"{ERROR}/hidden"]
    first = samples[0][:4], samples[1][:4]
    theirs = slow_error(received, model, "hidden", first, other)
    assert error == pytest.approx(theirs, rel=1e-9)
    plain = slow_error(received, model, "hidden", first)
    assert error != pytest.approx(plain, rel=1e-3)


def test_one_step_a_round_at_rate_zero_has_neither() -> None:
    """w = W after it."""
    given = replace(
        SETTINGS, learning_rate=0.0, fa_layers=("hidden", "head"), diagnostics=True
    )
    metrics = LocalTrainer(normed(), given).fit(*data())
    assert [v for k, v in metrics.items() if "/" in k] == [0.0] * 4


def test_a_layer_named_twice_is_one_layer() -> None:
    """As it is in feedback alignment itself."""
    given = replace(SETTINGS, fa_layers=("hidden", "hidden"))
    LocalTrainer(mlp(), given).fit(*data())
    LocalTrainer(mlp(), replace(given, diagnostics=True)).fit(*data())


class Instance(nn.Sequential):
    """InstanceNorm with running statistics: not a BatchNorm to torch."""

    def __init__(self) -> None:
        layers = {
            "first": nn.Linear(6, 8),
            "pairs": nn.Unflatten(1, (2, 4)),
            "norm": nn.InstanceNorm1d(2, track_running_stats=True),
            "flat": nn.Flatten(),
            "head": nn.Linear(8, 4),
        }
        super().__init__(OrderedDict(layers))


def spectral() -> nn.Sequential:
    """A weight that takes a step of a power iteration when it is read."""
    model = mlp()
    spectral_norm(model.hidden)
    return model


@pytest.mark.parametrize(
    ("net", "layer"), [(Instance, "head"), (spectral, "head"), (spectral, "hidden")]
)
def test_other_buffers_are_not_changed(net: Any, layer: str) -> None:
    model, samples = net(), data()
    results = []
    for diagnostics in (False, True):
        twin = copy.deepcopy(model)
        given = replace(SETTINGS, fa_layers=(layer,), diagnostics=diagnostics)
        LocalTrainer(twin, given).fit(*samples)
        results.append(bits(twin))
    assert same_bits(*results)


def test_a_layer_that_is_not_aligned() -> None:
    model, (inputs, targets) = mlp(), data()
    with pytest.raises(ValueError, match="'hidden' is not aligned"):
        feedback_diagnostics(model, ["hidden"], inputs, targets, cross_entropy)
