"""What holds for all methods: feedback alignment, lone samples, no traces left."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clients import LocalTrainer, TrainSettings, eligible_layers
from tests.unit.clients.cases import same_bits
from tests.unit.clients.methods.methods import (
    ACTIVE,
    active,
    bits,
    by_hand,
    convnet,
    data,
    extras,
    mlp,
    normed,
    of,
    trained,
    weights,
)

every_method = pytest.mark.parametrize("name", ACTIVE)
every_net = pytest.mark.parametrize("net", [mlp, normed, convnet])


def settings(**given: Any) -> TrainSettings:
    return TrainSettings(
        **{"learning_rate": 0.05, "batch_size": 4, "epochs": 2} | given
    )


def test_the_slow_sgd_is_the_trainers() -> None:
    """Of the helper the other files compare with: all its parts are in use here."""
    model, samples = mlp().double(), data(dtype=torch.float64)
    given = settings(momentum=0.9, weight_decay=0.01, clip_norm=0.2, seed=4)
    ours, _, _ = trained(LocalTrainer, model, given, samples)
    theirs = by_hand(
        model,
        len(samples[0]),
        given,
        of(
            lambda net, batch: nn.functional.cross_entropy(
                net(samples[0][batch]), samples[1][batch]
            )
        ),
    )
    for a, b in zip(weights(ours), weights(theirs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)


@every_net
@every_method
@pytest.mark.parametrize("layer", ["hidden", "head"])
def test_with_feedback_alignment_one_step_is_the_methods_own(
    name: str, net: Any, layer: str
) -> None:
    """In the first step B = W = w, and FedSOL perturbs nothing."""
    model, samples = net(), data()
    one = settings(batch_size=22, epochs=1)
    plain, metrics, _ = active(name, model, one, samples)
    aligned, theirs, _ = active(
        name, model, settings(batch_size=22, epochs=1, fa_layers=(layer,)), samples
    )
    assert same_bits(bits(aligned), bits(plain))
    assert metrics == theirs


@every_net
@every_method
def test_with_feedback_alignment_more_steps_are_not(name: str, net: Any) -> None:
    model, samples = net(), data()
    plain, _, _ = active(name, model, settings(), samples)
    aligned, _, _ = active(name, model, settings(fa_layers=("hidden",)), samples)
    assert not torch.equal(aligned.first.weight, plain.first.weight)
    assert eligible_layers(aligned) == eligible_layers(model)
    assert not [m for m in aligned.modules() if "forward" in vars(m)]


@every_net
@every_method
@pytest.mark.parametrize("size", [1, 5])
def test_lone_samples(name: str, net: Any, size: int) -> None:
    """Batches of 4: the last batch has one sample, of which BatchNorm takes none."""
    model = net()
    trained_model, metrics, _ = active(name, model, settings(), data(size))
    assert metrics["steps"] == (2 if size == 1 else 4)
    for key, counter in trained_model.named_buffers():
        if key.endswith("num_batches_tracked"):
            assert counter == (0 if size == 1 else 2)
    assert all(m.training for m in trained_model.modules())
    assert not torch.equal(trained_model.first.weight, model.first.weight)


@pytest.mark.parametrize("net", [normed, convnet])
@every_method
def test_no_trace_is_left(name: str, net: Any) -> None:
    """The random state, the caller's tensors, modes, hooks, and flags."""
    model, samples = net(), data()
    model.eval()
    kept = extras(name, model)
    kind, config = ACTIVE[name]
    before = copy.deepcopy((samples, kept))
    given = dict(config)
    random = torch.get_rng_state()
    ours, _, _ = trained(kind, model, settings(), samples, config, **kept)
    assert torch.equal(torch.get_rng_state(), random)
    assert same_bits(samples, before[0])
    assert {k: list(v) for k, v in kept.items()} == {
        k: list(v) for k, v in before[1].items()
    }
    for role, tensors in kept.items():
        assert same_bits(list(tensors.values()), list(before[1][role].values()))
    assert config == given
    plain, _, _ = trained(LocalTrainer, model, settings(), samples)
    assert [m.training for m in ours.modules()] == [m.training for m in plain.modules()]
    for module in ours.modules():
        assert not module._forward_pre_hooks
        assert not module._forward_hooks
        assert not module._backward_hooks
        assert getattr(module, "track_running_stats", True)
    assert [p.requires_grad for p in ours.parameters()] == [
        p.requires_grad for p in model.parameters()
    ]


@pytest.mark.parametrize("net", [normed, convnet])
@every_method
def test_the_random_state_of_the_caller_is_of_no_concern(name: str, net: Any) -> None:
    model, samples = net(), data()
    results = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        results.append(active(name, model, settings(), samples))
    assert same_bits(bits(results[0][0]), bits(results[1][0]))
    assert results[0][1] == results[1][1]


@every_method
def test_frozen_and_unused_parameters_stay(name: str) -> None:
    """A frozen one has no gradient to edit; an unused one has none at all."""
    model = mlp()
    model.first.requires_grad_(False)
    model.add_module("unused", nn.Identity())
    model.unused.weight = nn.Parameter(torch.randn(3))
    head, unused = model.head, model.unused
    del model.head, model.unused  # the head is the last child with parameters
    model.add_module("unused", unused)
    model.add_module("head", head)
    ours, _, trainer = active(name, model, settings(), data())
    for key in ("first.weight", "first.bias", "unused.weight"):
        assert torch.equal(ours.state_dict()[key], model.state_dict()[key])
    assert not torch.equal(ours.hidden.weight, model.hidden.weight)
    assert not torch.equal(ours.head.weight, model.head.weight)
    assert ours.first.weight.grad is None
    kept: dict[str, Tensor] = trainer.state()
    if name in ("feddyn", "scaffold"):
        assert list(kept) == [
            key for key, p in model.named_parameters() if p.requires_grad
        ]


@every_method
def test_double_precision_stays(name: str) -> None:
    model, samples = normed().double(), data(dtype=torch.float64)
    ours, _, trainer = active(name, model, settings(), samples)
    assert {p.dtype for p in ours.parameters()} == {torch.float64}
    floats = [t for t in trainer.state().values() if t.is_floating_point()]
    assert all(t.dtype == torch.float64 for t in floats)
