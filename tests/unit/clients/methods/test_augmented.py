"""The methods on augmented images: what they compare, and what must not move."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy

from clients import LocalTrainer, TrainSettings
from flfa_app.methods import ALGORITHMS
from tests.unit.clients.cases import same_bits
from tests.unit.clients.crops import Redrawn
from tests.unit.clients.methods.methods import (
    ACTIVE,
    SOLS,
    active,
    apart,
    bits,
    by_hand,
    extras,
    fedsol,
    moon,
    of,
    picture_net,
    pictures,
    trained,
    weights,
)
from tests.unit.clients.methods.sol import slow

SETTINGS = TrainSettings(
    learning_rate=0.1, batch_size=5, epochs=2, seed=2, augmentation="crop-flip"
)
every_method = pytest.mark.parametrize("name", ACTIVE)
every_kind = pytest.mark.parametrize("kind", ["crop", "crop-flip"])


def test_every_method_of_the_app_is_tried() -> None:
    kinds = {kind for kind, _ in ACTIVE.values()}
    assert kinds == {method.trainer for method in ALGORITHMS.values()}


@every_kind
@pytest.mark.parametrize("channels", [1, 3])
def test_a_round_of_fedavg_is_the_slow_one(kind: str, channels: int) -> None:
    model = picture_net(channels).double()
    images, targets = pictures(channels=channels, dtype=torch.float64)
    given = replace(SETTINGS, augmentation=kind)
    ours, _, _ = trained(LocalTrainer, model, given, (images, targets))
    seen = Redrawn(images, given)

    def objective(network: nn.Module, batch: Tensor) -> Tensor:
        return cross_entropy(network(seen[batch]), targets[batch])

    theirs = by_hand(model, len(images), given, of(objective))
    assert apart(weights(ours), weights(theirs)) < 1e-10
    plain = replace(SETTINGS, augmentation="none")
    other, _, _ = trained(LocalTrainer, model, plain, (images, targets))
    assert apart(weights(ours), weights(other)) > 1e-3


@every_kind
@pytest.mark.parametrize(("mu", "temperature"), [(0.7, 0.5), (5.0, 1.0)])
def test_moon_contrasts_features_of_the_augmented_images(
    kind: str, mu: float, temperature: float
) -> None:
    """All three models see the same crop of a sample."""
    model = picture_net().double()
    images, targets = pictures(dtype=torch.float64)
    given = replace(SETTINGS, augmentation=kind)
    kept = extras("moon", model)["state"]
    received, previous = copy.deepcopy(model).eval(), copy.deepcopy(model).eval()
    previous.load_state_dict(kept)
    seen = Redrawn(images, given)

    def objective(network: Any, batch: Tensor) -> Tensor:
        x = seen[batch]
        z = network[:-1](x)
        with torch.no_grad():
            near, far = received[:-1](x), previous[:-1](x)
        similarities = [cosine_similarity(z, other) for other in (near, far)]
        contrast = torch.stack(similarities, 1) / temperature
        first = torch.zeros(len(batch), dtype=torch.int64)
        loss = cross_entropy(network[-1](z), targets[batch])
        return loss + mu * cross_entropy(contrast, first)

    config = {"moon-mu": mu, "moon-temperature": temperature}
    kind_of_trainer, _ = ACTIVE["moon"]
    ours, _, _ = trained(
        kind_of_trainer, model, given, (images, targets), config, state=kept
    )
    theirs = by_hand(model, len(images), given, of(objective))
    assert apart(weights(ours), weights(theirs)) < 1e-10


@every_kind
@pytest.mark.parametrize(("variant", "part"), SOLS)
@pytest.mark.parametrize("rho", [0.1, 2.0])
def test_fedsol_perturbs_by_logits_of_the_augmented_images(
    kind: str, variant: str, part: str, rho: float
) -> None:
    model = picture_net().double()
    images, targets = pictures(dtype=torch.float64)
    given = replace(SETTINGS, augmentation=kind)
    config = fedsol(rho, variant, part)
    kind_of_trainer, _ = ACTIVE[f"fedsol-{variant}-{part}"]
    ours, _, _ = trained(kind_of_trainer, model, given, (images, targets), config)
    seen: Any = Redrawn(images, given)
    gradient = slow(model, seen, targets, rho, variant, part)
    theirs = by_hand(model, len(images), given, gradient)
    assert apart(weights(ours), weights(theirs)) < 1e-10


NEUTRAL = {
    "moon": ("moon", moon(0.0)),
    **{f"fedsol-{v}-{p}": (f"fedsol-{v}-{p}", fedsol(0.0, v, p)) for v, p in SOLS},
    "fedprox": ("fedprox", {"proximal-mu": 0.0}),
    "fedacg": ("fedacg", {"fedacg-beta": 0.0}),
    "feddyn": ("feddyn", {"feddyn-alpha": 0.0}),
    "fedlc": ("fedlc", {"fedlc-tau": 0.0}),
}


@every_kind
@pytest.mark.parametrize("name", NEUTRAL)
def test_the_neutral_value_is_fedavg_with_the_same_crops(name: str, kind: str) -> None:
    model, samples = picture_net(dropout=0.3), pictures()
    given = replace(SETTINGS, augmentation=kind)
    theirs, expected, _ = trained(LocalTrainer, model, given, samples)
    method, config = NEUTRAL[name]
    ours, metrics, _ = trained(
        ACTIVE[method][0], model, given, samples, config, **extras(method, model)
    )
    assert same_bits(bits(ours), bits(theirs))
    assert metrics == expected


def recorded(name: str, model: nn.Module, given: TrainSettings, samples: Any) -> Any:
    """Train with a method; return batches, random states and images of its steps."""
    kind, config = ACTIVE[name]
    steps: list[tuple[Tensor, Tensor, Tensor]] = []

    class Recording(kind):  # type: ignore[misc, valid-type]
        def compute_gradients(self, inputs: Tensor, targets: Tensor) -> Tensor:
            steps.append((self.batch.clone(), torch.get_rng_state(), inputs.clone()))
            return super().compute_gradients(inputs, targets)

    trained(Recording, model, given, samples, config, **extras(name, model))
    batch, random, images = zip(*steps, strict=True)
    return batch, random, images


@every_method
@every_kind
def test_neither_batch_order_nor_dropout_moves(name: str, kind: str) -> None:
    """The random state before each step is what its dropout is drawn from."""
    model, samples = picture_net(dropout=0.3), pictures()
    plain, augmented = (
        recorded(name, model, replace(SETTINGS, augmentation=x), samples)
        for x in ("none", kind)
    )
    assert len(plain[0]) == 10
    assert same_bits(augmented[0], plain[0])
    assert same_bits(augmented[1], plain[1])
    # Dropout has drawn, and the images are not the same.
    assert not torch.equal(plain[1][0], plain[1][1])
    for ours, theirs in zip(augmented[2], plain[2], strict=True):
        assert not torch.equal(ours, theirs)


@every_method
def test_every_method_sees_the_same_crops(name: str) -> None:
    """Those of the slow loop: what a method draws does not move them."""
    model, samples = picture_net(dropout=0.3), pictures()
    batches, _, images = recorded(name, model, SETTINGS, samples)
    seen = Redrawn(samples[0], SETTINGS)
    assert same_bits(images, [seen[batch] for batch in batches])


@every_method
def test_the_seed_is_all_that_decides(name: str) -> None:
    model, samples = picture_net(dropout=0.3), pictures()
    results = []
    for random in (1, 2):
        torch.manual_seed(random)
        results.append(active(name, model, SETTINGS, samples)[0])
    assert same_bits(*map(bits, results))
    other = active(name, model, replace(SETTINGS, seed=3), samples)[0]
    assert not same_bits(bits(other), bits(results[0]))


@every_method
@pytest.mark.parametrize("size", [1, 6])
def test_lone_samples(name: str, size: int) -> None:
    """Batches of 5: the last, or only, image is alone."""
    model = picture_net()
    ours, metrics, _ = active(name, model, SETTINGS, pictures(size))
    assert metrics["steps"] == (2 if size == 1 else 4)
    assert not torch.equal(ours.first.weight, model.first.weight)


@every_method
def test_the_caller_keeps_the_images_as_they_were(name: str) -> None:
    images, targets = pictures()
    before, strides = images.clone(), images.stride()
    active(name, picture_net(), SETTINGS, (images, targets))
    assert torch.equal(images, before)
    assert images.stride() == strides


def test_an_unknown_kind_is_an_error_and_nothing_is_trained() -> None:
    model = picture_net()
    before = copy.deepcopy(bits(model))
    given = replace(SETTINGS, augmentation="cutout")
    with pytest.raises(ValueError, match="'cutout' is unknown"):
        LocalTrainer(model, given).fit(*pictures())
    assert same_bits(bits(model), before)
