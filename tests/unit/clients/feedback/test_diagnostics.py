"""Angle and error of feedback alignment, measured without changing the model."""

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
from tests.unit.clients.cases import move_weights, same_bits
from tests.unit.clients.federated import (
    ACTIVE,
    active,
    bits,
    convnet,
    data,
    mlp,
    normed,
    without_dropout,
)

SETTINGS = TrainSettings(learning_rate=0.05, batch_size=4, epochs=2, seed=3)
DOUBLE = torch.float64


def norm(tensors: list[Tensor]) -> float:
    squares = [v * v for t in tensors for v in t.detach().double().flatten().tolist()]
    return math.sqrt(math.fsum(squares))


def slow_angle(one: nn.Module, other: nn.Module, name: str) -> float:
    """Return the degrees between two points on the unit sphere by their chord."""
    a, b = (
        m.get_submodule(name).weight.detach().double().flatten() for m in (one, other)
    )
    chord = norm([a / norm([a]) - b / norm([b])])
    return math.degrees(2 * math.asin(chord / 2))


def slow_error(
    received: nn.Module,
    now: nn.Module,
    name: str,
    samples: tuple[Tensor, Tensor],
    loss: Any = cross_entropy,
    **options: Any,
) -> float:
    """Compare two copies of the model, one with alignment in the layer alone."""
    gradients = []
    for names in ([name], []):
        model = copy.deepcopy(received)
        with feedback_alignment(model, names, **options):
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
    **options: Any,
) -> dict[str, float]:
    """Move the weights inside the block, and measure."""
    with feedback_alignment(model, names, **options):
        move_weights(model, by)
        return feedback_diagnostics(model, names, *samples, cross_entropy)


# --- Error -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("net", "names", "options"),
    [
        (mlp, ("hidden",), {"scaling": "tensor"}),
        (mlp, ("hidden", "head"), {"scaling": "channel", "feedback": "random"}),
        (normed, ("hidden", "head"), {"scaling": "none"}),
        (convnet, ("head",), {"scaling": "channel"}),
        (convnet, ("hidden", "head"), {"scaling": "tensor", "feedback": "random"}),
        (normed, ("hidden",), {"feedback": "dfa"}),
        (convnet, ("first", "hidden"), {"feedback": "dfa"}),
    ],
)
def test_the_error_is_the_slow_one_layer_by_layer(
    net: Any, names: tuple[str, ...], options: dict[str, str]
) -> None:
    """With two aligned layers each is measured alone. Direct feedback has no angle."""
    received, samples = without_dropout(net()).double(), data(dtype=DOUBLE)
    model = copy.deepcopy(received)
    metrics = measure(model, names, samples, **options, seed=4)
    keys = (ERROR,) if options.get("feedback") == "dfa" else (ANGLE, ERROR)
    assert list(metrics) == [f"{key}/{name}" for name in names for key in keys]
    for name in names:
        expected = slow_error(received, model, name, samples, **options, seed=4)
        assert expected > 1e-3
        assert metrics[f"{ERROR}/{name}"] == pytest.approx(expected, rel=1e-10)


def test_the_error_by_hand() -> None:
    """One sample x = 1, y = a x, z = w y, loss z: dz/dw = a, dz/da = w x, or B x.

    With W = (3), w = (-3), a = 4 the gradients are (4, -3) of norm 5 and (4, 3): 6 / 5.
    The scaling is 1. The feedback and the weight are opposite: 180 degrees.
    """
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    nn.init.constant_(model[0].weight, 4.0)
    nn.init.constant_(model[1].weight, 3.0)
    with feedback_alignment(model, ["1"]):
        nn.init.constant_(model[1].weight, -3.0)
        metrics = feedback_diagnostics(
            model, ["1"], torch.ones(1, 1), torch.ones(1), lambda z, _: z.sum()
        )
    assert metrics[f"{ERROR}/1"] == pytest.approx(6 / 5, rel=1e-6)
    assert metrics[f"{ANGLE}/1"] == 180.0


@pytest.mark.parametrize(
    ("net", "scaling"), [(mlp, "none"), (normed, "tensor"), (convnet, "channel")]
)
def test_at_the_received_weights_both_are_zero(net: Any, scaling: str) -> None:
    """To the bit, because B = w; with dropout, which must be the same in all passes."""
    names = ("hidden", "head")
    metrics = measure(net(), names, data(), by=0.0, scaling=scaling)
    assert metrics == {f"{key}/{name}": 0.0 for name in names for key in (ANGLE, ERROR)}
    if net is normed:  # other dropout would give other gradients
        model, (inputs, targets) = net(), data()
        losses = [cross_entropy(model(inputs), targets) for _ in range(2)]
        assert losses[0] != losses[1]


def test_the_first_layer_has_an_angle_and_no_error() -> None:
    """Its input requires no gradient, so alignment changes nothing there."""
    metrics = measure(mlp(), ("first",), data())
    assert metrics[f"{ANGLE}/first"] > 1
    assert metrics[f"{ERROR}/first"] == 0.0


def test_without_a_gradient_the_error_is_zero() -> None:
    model = mlp()
    with feedback_alignment(model, ["hidden"]):
        move_weights(model)
        metrics = feedback_diagnostics(
            model, ["hidden"], *data(), lambda outputs, _: 0.0 * outputs.sum()
        )
    assert metrics[f"{ERROR}/hidden"] == 0.0
    assert metrics[f"{ANGLE}/hidden"] > 1


def test_frozen_and_unused_parameters_are_not_part_of_the_norms() -> None:
    """One has no gradient, the other's is zero."""
    received, samples = mlp().double(), data(dtype=DOUBLE)
    received.unused = nn.Identity()
    received.unused.weight = nn.Parameter(torch.ones(3, dtype=DOUBLE))
    received.head.requires_grad_(False)
    model = copy.deepcopy(received)
    error = measure(model, ("head",), samples)[f"{ERROR}/head"]
    expected = slow_error(received, model, "head", samples)
    assert error == pytest.approx(expected, rel=1e-10)
    for m in (received, model):
        m.head.requires_grad_(True)
    assert error != pytest.approx(slow_error(received, model, "head", samples), rel=0.1)


def test_a_single_sample_is_normalised_by_running_statistics() -> None:
    """As in a step of training; BatchNorm itself would raise."""
    received, samples = without_dropout(normed()).double(), data(1, dtype=DOUBLE)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        received(samples[0])
    for _ in range(3):
        received(data(dtype=DOUBLE)[0])
    model = copy.deepcopy(received)
    metrics = measure(model, ("hidden", "head"), samples)
    for name in ("hidden", "head"):
        expected = slow_error(received.eval(), model, name, samples)
        assert metrics[f"{ERROR}/{name}"] == pytest.approx(expected, rel=1e-10)


# --- Angle -------------------------------------------------------------------------


@pytest.mark.parametrize("degrees", [1e-6, 1.0, 90.0, 135.0, 179.0])
@pytest.mark.parametrize("size", [1e-4, 1e3])
def test_an_angle_that_is_known(degrees: float, size: float) -> None:
    """A rotation in a plane; the length of the weight does not matter.

    An arc cosine would return 0 for 1e-6 degrees, whose cosine is 1 - 1.5e-16.
    """
    model, turn = mlp().double(), math.radians(degrees)
    nn.init.zeros_(model.hidden.weight)
    model.hidden.weight.data[2, 3] = 0.7
    with feedback_alignment(model, ["hidden"]):
        model.hidden.weight.data[2, 3] = size * math.cos(turn)
        model.hidden.weight.data[5, 1] = size * math.sin(turn)
        metrics = feedback_diagnostics(
            model, ["hidden"], *data(dtype=DOUBLE), cross_entropy
        )
    assert metrics[f"{ANGLE}/hidden"] == pytest.approx(degrees, rel=1e-9)


@pytest.mark.parametrize("factor", [2.0, -0.5, 0.0])
def test_angles_on_a_line(factor: float) -> None:
    """Doubling and halving are exact, hence 0 and 180 too. A zero weight has 0."""
    model = mlp()
    with feedback_alignment(model, ["hidden"]):
        model.hidden.weight.data.mul_(factor)
        metrics = feedback_diagnostics(model, ["hidden"], *data(), cross_entropy)
    assert metrics[f"{ANGLE}/hidden"] == (180.0 if factor < 0 else 0.0)
    nn.init.zeros_(model.hidden.weight)  # so has a feedback of zero
    assert measure(model, ("hidden",), data())[f"{ANGLE}/hidden"] == 0.0


def test_random_feedback_is_at_a_right_angle_in_a_large_layer() -> None:
    """The cosine of n = 90000 random numbers has deviation 1 / 300, or 0.2 degrees."""
    layers = {"first": nn.Linear(6, 300), "hidden": nn.Linear(300, 300)}
    model = nn.Sequential(OrderedDict(layers))
    metrics = measure(model, ("hidden",), data(), by=0.0, feedback="random", seed=1)
    assert abs(metrics[f"{ANGLE}/hidden"] - 90) < 6 * 0.2
    assert metrics[f"{ERROR}/hidden"] > 0.1


def test_the_angle_with_scaling_by_channel_is_that_of_the_scaled_feedback() -> None:
    """Channels stretched by different factors: B follows, so B = w."""
    model = mlp().double()
    with feedback_alignment(model, ["hidden"], scaling="channel"):
        model.hidden.weight.data.mul_(2.0 ** torch.arange(7.0).double()[:, None])
        metrics = feedback_diagnostics(
            model, ["hidden"], *data(dtype=DOUBLE), cross_entropy
        )
    assert metrics[f"{ERROR}/hidden"] == pytest.approx(0, abs=1e-12)
    assert metrics[f"{ANGLE}/hidden"] == pytest.approx(0, abs=1e-6)


# --- The model is not changed ------------------------------------------------------


class Instance(nn.Sequential):
    """InstanceNorm with running statistics, which is not a BatchNorm."""

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
    """A weight whose power iteration advances whenever it is read."""
    model = mlp()
    spectral_norm(model.hidden)
    return model


@pytest.mark.parametrize(
    ("net", "names", "feedback", "size", "fails"),
    [
        (normed, ("first", "hidden"), "dfa", 1, False),
        (convnet, ("first", "hidden"), "random", 22, False),
        (Instance, ("head",), "global", 22, False),
        (spectral, ("head",), "global", 22, False),
        (spectral, ("hidden",), "global", 22, False),
        (normed, ("first", "hidden"), "global", 22, True),
    ],
)
def test_nothing_is_changed(
    net: Any, names: tuple[str, ...], feedback: str, size: int, fails: bool
) -> None:
    """Weights, statistics, gradients, modes, forwards and randomness; nor by errors."""
    model, samples = net(), data()
    calls = []

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        calls.append(1)
        if fails and len(calls) == 2:  # the first is without alignment
            raise ArithmeticError("in the loss")
        return cross_entropy(outputs, targets)

    with feedback_alignment(model, names, feedback=feedback):
        cross_entropy(model(samples[0]), samples[1]).backward()
        move_weights(model)
        model[2].eval()

        def look() -> tuple[list[Any], list[Tensor]]:
            modules = list(model.modules())
            grads = [p.grad for p in model.parameters()]
            return (
                [(m.training, vars(m).get("forward")) for m in modules],
                copy.deepcopy([*bits(model), *grads, torch.get_rng_state()]),
            )

        before = look()
        try:
            few = samples[0][:size], samples[1][:size]
            feedback_diagnostics(model, names, *few, loss)
        except ArithmeticError:
            assert fails
        after = look()
        assert after[0] == before[0]
        assert same_bits(after[1], before[1])


# --- In the trainer ----------------------------------------------------------------


@pytest.mark.parametrize("name", ACTIVE)
@pytest.mark.parametrize(
    ("net", "layers", "size"),
    [(normed, ("hidden", "head"), 9), (convnet, ("hidden",), 1), (mlp, (), 9)],
)
def test_diagnostics_do_not_change_training(
    name: str, net: Any, layers: tuple[str, ...], size: int
) -> None:
    """The same bits, metrics and state as without; the keys of the aligned layers."""
    model, samples = net(), data(size)
    given = replace(SETTINGS, fa_layers=layers)
    plain, expected, before = active(name, model, given, samples)
    ours, metrics, after = active(
        name, model, replace(given, diagnostics=True), samples
    )
    assert same_bits(bits(ours), bits(plain))
    assert same_bits(list(after.state().values()), list(before.state().values()))
    keys = [f"{key}/{layer}" for layer in layers for key in (ANGLE, ERROR)]
    measured = {key: metrics.pop(key) for key in keys}
    assert metrics == expected
    assert all(value >= 0 for value in measured.values())
    assert all(0 < measured[f"{ANGLE}/{layer}"] < 180 for layer in layers)


def other_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets) + outputs.square().mean()


class OtherLoss(LocalTrainer):
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return other_loss(outputs, targets)


@pytest.mark.parametrize(
    ("net", "size", "trainer", "loss"),
    [
        (mlp, 3, LocalTrainer, cross_entropy),
        (convnet, 22, LocalTrainer, cross_entropy),
        (mlp, 22, OtherLoss, other_loss),
    ],
)
def test_what_the_trainer_measures(
    net: Any, size: int, trainer: type[LocalTrainer], loss: Any
) -> None:
    """The trainer's loss on the first batch_size samples, with the trained weights."""
    received, samples = without_dropout(net()).double(), data(size, dtype=DOUBLE)
    names = ("hidden", "head")
    given = replace(SETTINGS, fa_layers=names, diagnostics=True)
    model = copy.deepcopy(received)
    metrics = trainer(model, given).fit(*samples)
    first = samples[0][:4], samples[1][:4]
    for name in names:
        # In training mode: statistics are those of the batch.
        expected = slow_error(received, model, name, first, loss)
        assert metrics[f"{ERROR}/{name}"] == pytest.approx(expected, rel=1e-9)
        degrees = slow_angle(received, model, name)
        assert metrics[f"{ANGLE}/{name}"] == pytest.approx(degrees, rel=1e-9)


def test_a_layer_named_twice_is_measured_once() -> None:
    given = replace(SETTINGS, fa_layers=("hidden", "hidden"), diagnostics=True)
    metrics = LocalTrainer(mlp(), given).fit(*data())
    assert len(metrics) == 4


def test_a_layer_that_is_not_aligned_is_an_error() -> None:
    with pytest.raises(ValueError, match="'hidden' is not aligned"):
        feedback_diagnostics(mlp(), ["hidden"], *data(), cross_entropy)
