"""Properties of all methods: neutral values, alignment, small clients, augmentation."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy

from clients import LocalTrainer, TrainSettings, eligible_layers
from flfa_app.methods import ALGORITHMS
from tests.unit.clients.cases import same_bits
from tests.unit.clients.crops import Redrawn
from tests.unit.clients.federated import (
    ACTIVE,
    SOLS,
    active,
    apart,
    bits,
    by_hand,
    convnet,
    data,
    extras,
    fedrs,
    fedsol,
    mlp,
    moon,
    normed,
    of,
    picture_net,
    pictures,
    trained,
    weights,
)
from tests.unit.clients.methods.slow_fedsol import slow

SETTINGS = TrainSettings(learning_rate=0.05, batch_size=4, epochs=2, seed=3)
AUGMENTED = replace(SETTINGS, augmentation="crop-flip")
NEUTRAL: dict[str, dict[str, Any]] = {
    "fedprox": {"proximal-mu": 0.0},
    "fedacg": {"fedacg-beta": 0.0},
    "feddyn": {"feddyn-alpha": 0.0},
    "moon": moon(0.0),
    "fedrs-hard": fedrs(1.0, "hard"),
    "fedrs-soft": fedrs(1.0, "soft"),
    "fedlc": {"fedlc-tau": 0.0},
    **{f"fedsol-{v}-{p}": fedsol(0.0, v, p) for v, p in SOLS},
}
every_method = pytest.mark.parametrize("name", ACTIVE)


def test_every_method_of_the_app_is_tried() -> None:
    kinds = {kind for kind, _ in ACTIVE.values()}
    assert kinds == {method.trainer for method in ALGORITHMS.values()}


def test_the_slow_sgd_is_the_trainers() -> None:
    """The helper of the other files, with all its parts in use."""
    model, samples = mlp().double(), data(dtype=torch.float64)
    given = replace(SETTINGS, momentum=0.9, weight_decay=0.01, clip_norm=0.2)
    ours, _, _ = trained(LocalTrainer, model, given, samples)

    def objective(net: nn.Module, batch: Tensor) -> Tensor:
        return cross_entropy(net(samples[0][batch]), samples[1][batch])

    theirs = by_hand(model, len(samples[0]), given, of(objective))
    assert apart(weights(ours), weights(theirs)) < 1e-12


# --- Neutral values ----------------------------------------------------------------


@pytest.mark.parametrize("name", NEUTRAL)
def test_the_neutral_value_is_fedavg_in_every_bit(name: str) -> None:
    """Also for a client with state (MOON's model, FedDyn's dual variable)."""
    for model, given, samples in (
        (normed(), SETTINGS, data()),
        (picture_net(dropout=0.3), AUGMENTED, pictures()),
    ):
        theirs, expected, _ = trained(LocalTrainer, model, given, samples)
        kind, kept = ACTIVE[name][0], extras(name, model)
        ours, metrics, _ = trained(kind, model, given, samples, NEUTRAL[name], **kept)
        assert same_bits(bits(ours), bits(theirs))
        assert metrics == expected


@pytest.mark.parametrize("net", [normed, convnet])
@pytest.mark.parametrize("name", [name for name in ACTIVE if name != "fedavg"])
def test_another_value_is_not_fedavg(name: str, net: Any) -> None:
    model, samples = net(), data()
    theirs, _, _ = trained(LocalTrainer, model, SETTINGS, samples)
    ours, _, _ = active(name, model, replace(SETTINGS, epochs=3), samples)
    for key, weight in ours.named_parameters():
        assert not torch.equal(weight, theirs.get_parameter(key)), key


@pytest.mark.parametrize("variates", ["none", "zero", "equal"])
def test_scaffold_without_a_difference_of_the_variates_is_fedavg(variates: str) -> None:
    model, samples = normed(), data()
    theirs, expected, _ = trained(LocalTrainer, model, SETTINGS, samples)
    own = extras("scaffold", model)["state"]
    if variates == "zero":
        own = {k: torch.zeros_like(v) for k, v in own.items()}
    kept = {} if variates == "none" else {"state": own, "received": own}
    ours, metrics, _ = trained(ACTIVE["scaffold"][0], model, SETTINGS, samples, **kept)
    assert same_bits(bits(ours), bits(theirs))
    del metrics["step-length"]
    assert metrics == expected


@pytest.mark.parametrize("name", ["fedprox", "fedacg", "feddyn", "moon"])
def test_the_first_step_of_a_new_client_is_fedavgs(name: str) -> None:
    """There w = W, and the client has no dual variable and no previous model."""
    model, samples = normed(), data()
    kind, config = ACTIVE[name]
    for epochs in (1, 2):
        given = replace(SETTINGS, batch_size=22, epochs=epochs)
        theirs, _, _ = trained(LocalTrainer, model, given, samples)
        ours, _, _ = trained(kind, model, given, samples, config)
        # MOON skips the contrast in all steps.
        fedavg = epochs == 1 or name == "moon"
        assert same_bits(bits(ours), bits(theirs)) == fedavg


# --- Feedback alignment ------------------------------------------------------------


@pytest.mark.parametrize(("net", "layer"), [(normed, "head"), (convnet, "hidden")])
@every_method
def test_feedback_alignment_acts_from_the_second_step_on(
    name: str, net: Any, layer: str
) -> None:
    """In the first step B = W = w, and FedSOL perturbs nothing."""
    model, samples = net(), data()
    for one_step in (True, False):
        given = replace(SETTINGS, batch_size=22, epochs=1) if one_step else SETTINGS
        plain, metrics, _ = active(name, model, given, samples)
        aligned, theirs, _ = active(
            name, model, replace(given, fa_layers=(layer,)), samples
        )
        same_first = torch.equal(aligned.first.weight, plain.first.weight)
        assert same_first == same_bits(bits(aligned), bits(plain)) == one_step
        assert (metrics == theirs) == one_step
    assert eligible_layers(aligned) == eligible_layers(model)
    assert not [m for m in aligned.modules() if "forward" in vars(m)]


# --- Small clients, unused parameters, precision -----------------------------------


@pytest.mark.parametrize(("net", "size"), [(normed, 1), (convnet, 5)])
@every_method
def test_single_samples(name: str, net: Any, size: int) -> None:
    """Batches of 4: the last one has one sample, which BatchNorm does not count."""
    model = net()
    ours, metrics, _ = active(name, model, SETTINGS, data(size))
    assert metrics["steps"] == (2 if size == 1 else 4)
    for key, counter in ours.named_buffers():
        if key.endswith("num_batches_tracked"):
            assert counter == (0 if size == 1 else 2)
    assert all(m.training for m in ours.modules())
    assert not torch.equal(ours.first.weight, model.first.weight)
    model = picture_net()
    ours, _, _ = active(name, model, AUGMENTED, pictures(size))
    assert not torch.equal(ours.first.weight, model.first.weight)


@every_method
def test_frozen_and_unused_parameters_stay(name: str) -> None:
    """A frozen one has no gradient to edit; an unused one has none at all."""
    model = mlp()
    model.first.requires_grad_(False)
    head = model.head
    del model.head  # the head must be the last child with parameters
    model.add_module("unused", nn.Identity())
    model.unused.weight = nn.Parameter(torch.randn(3))
    model.add_module("head", head)
    ours, _, trainer = active(name, model, SETTINGS, data())
    for key in ("first.weight", "first.bias", "unused.weight"):
        assert torch.equal(ours.state_dict()[key], model.state_dict()[key])
    assert not torch.equal(ours.hidden.weight, model.hidden.weight)
    assert not torch.equal(ours.head.weight, model.head.weight)
    assert ours.first.weight.grad is None
    if name in ("feddyn", "scaffold"):
        trainable = [key for key, p in model.named_parameters() if p.requires_grad]
        assert list(trainer.state()) == trainable


@every_method
def test_double_precision_stays(name: str) -> None:
    model, samples = normed().double(), data(dtype=torch.float64)
    ours, _, trainer = active(name, model, SETTINGS, samples)
    assert {p.dtype for p in ours.parameters()} == {torch.float64}
    floats = [t for t in trainer.state().values() if t.is_floating_point()]
    assert all(t.dtype == torch.float64 for t in floats)


# --- Nothing else changes, nothing else decides ------------------------------------


@every_method
def test_only_the_model_is_changed(name: str) -> None:
    """Not the random state, the caller's tensors, modes, hooks, and flags."""
    for model, given, samples in (
        (convnet().eval(), SETTINGS, data()),
        (picture_net(), AUGMENTED, pictures()),
    ):
        kept, (kind, config) = extras(name, model), ACTIVE[name]
        before, options = copy.deepcopy((samples, kept)), dict(config)
        random = torch.get_rng_state()
        ours, _, _ = trained(kind, model, given, samples, config, **kept)
        assert torch.equal(torch.get_rng_state(), random)
        assert same_bits(samples, before[0])
        assert samples[0].stride() == before[0][0].stride()
        for role, tensors in kept.items():
            assert list(tensors) == list(before[1][role])
            assert same_bits(list(tensors.values()), list(before[1][role].values()))
        assert config == options
        for module in ours.modules():
            assert module.training
            assert not module._forward_pre_hooks
            assert not module._forward_hooks
            assert getattr(module, "track_running_stats", True)
        assert all(p.requires_grad for p in ours.parameters())


@every_method
def test_the_seed_alone_decides(name: str) -> None:
    for model, given, samples in (
        (normed(), SETTINGS, data()),
        (picture_net(dropout=0.3), AUGMENTED, pictures()),
    ):
        results = []
        for random, seed in ((1, 3), (2, 3), (1, 4)):
            torch.manual_seed(random)
            result = active(name, model, replace(given, seed=seed), samples)
            results.append(bits(result[0]))
        assert same_bits(results[0], results[1])
        assert not same_bits(results[0], results[2])


# --- Augmentation ------------------------------------------------------------------


def recorded(name: str, model: nn.Module, given: TrainSettings, samples: Any) -> Any:
    """Train with a method; return batches, random states and images of its steps."""
    kind, config = ACTIVE[name]
    steps: list[tuple[Tensor, Tensor, Tensor]] = []

    class Recording(kind):  # type: ignore[misc, valid-type]
        def compute_gradients(self, inputs: Tensor, targets: Tensor) -> Tensor:
            steps.append((self.batch.clone(), torch.get_rng_state(), inputs.clone()))
            return super().compute_gradients(inputs, targets)

    trained(Recording, model, given, samples, config, **extras(name, model))
    return zip(*steps, strict=True)


@every_method
def test_augmentation_changes_neither_batch_order_nor_dropout(name: str) -> None:
    """The random state before each step is what its dropout is drawn from.

    The crops are those of the slow loop, whatever a method draws.
    """
    model, samples = picture_net(dropout=0.3), pictures()
    order, random, plain = recorded(name, model, SETTINGS, samples)
    batches, states, images = recorded(name, model, AUGMENTED, samples)
    assert len(order) == 12
    assert same_bits(batches, order)
    assert same_bits(states, random)
    assert not torch.equal(states[0], states[1])  # dropout has drawn
    redrawn = Redrawn(samples[0], AUGMENTED)
    assert same_bits(images, [redrawn[batch] for batch in batches])
    assert not any(torch.equal(a, b) for a, b in zip(images, plain, strict=True))


def rounds(
    name: str, kind: str, config: dict[str, Any], channels: int = 3
) -> tuple[Any, ...]:
    """Train on augmented images; return what is needed to do so by hand."""
    model = picture_net(channels).double()
    images, targets = pictures(channels=channels, dtype=torch.float64)
    given = replace(SETTINGS, learning_rate=0.1, augmentation=kind)
    kept = extras(name, model)
    ours, _, _ = trained(
        ACTIVE[name][0], model, given, (images, targets), config, **kept
    )
    return model, ours, Redrawn(images, given), targets, given, kept


@pytest.mark.parametrize(("kind", "channels"), [("crop", 1), ("crop-flip", 3)])
def test_an_augmented_round_of_fedavg_is_the_slow_one(kind: str, channels: int) -> None:
    model, ours, seen, targets, given, _ = rounds("fedavg", kind, {}, channels)

    def objective(network: nn.Module, batch: Tensor) -> Tensor:
        return cross_entropy(network(seen[batch]), targets[batch])

    theirs = by_hand(model, len(targets), given, of(objective))
    assert apart(weights(ours), weights(theirs)) < 1e-10


def test_moon_contrasts_features_of_the_augmented_images() -> None:
    """All three models get the same crop of a sample."""
    config = {"moon-mu": 0.7, "moon-temperature": 0.5}
    model, ours, seen, targets, given, kept = rounds("moon", "crop-flip", config)
    received, previous = copy.deepcopy(model).eval(), copy.deepcopy(model).eval()
    previous.load_state_dict(kept["state"])

    def objective(network: Any, batch: Tensor) -> Tensor:
        x = seen[batch]
        z = network[:-1](x)
        with torch.no_grad():
            near, far = received[:-1](x), previous[:-1](x)
        similarities = [cosine_similarity(z, other) for other in (near, far)]
        contrast = torch.stack(similarities, 1) / 0.5
        first = torch.zeros(len(batch), dtype=torch.int64)
        loss = cross_entropy(network[-1](z), targets[batch])
        return loss + 0.7 * cross_entropy(contrast, first)

    theirs = by_hand(model, len(targets), given, of(objective))
    assert apart(weights(ours), weights(theirs)) < 1e-10


@pytest.mark.parametrize(("variant", "part"), SOLS)
def test_fedsol_perturbs_by_logits_of_the_augmented_images(
    variant: str, part: str
) -> None:
    name, config = f"fedsol-{variant}-{part}", fedsol(2.0, variant, part)
    model, ours, seen, targets, given, _ = rounds(name, "crop", config)
    gradient = slow(model, seen, targets, 2.0, variant, part)
    theirs = by_hand(model, len(targets), given, gradient)
    assert apart(weights(ours), weights(theirs)) < 1e-10


def test_an_unknown_augmentation_is_an_error_and_nothing_is_trained() -> None:
    model = picture_net()
    before = copy.deepcopy(bits(model))
    given = replace(SETTINGS, augmentation="cutout")
    with pytest.raises(ValueError, match="'cutout' is unknown"):
        LocalTrainer(model, given).fit(*pictures())
    assert same_bits(bits(model), before)
