"""Local training: a plain loop to the bit, small clients, layouts, precision, hooks."""

import copy
from collections import OrderedDict
from itertools import chain
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import cross_entropy

from clients import (
    FedSOLTrainer,
    LocalTrainer,
    MOONTrainer,
    TrainSettings,
    eligible_layers,
)
from tests.unit.clients.cases import channels_last, every_scaling, same_bits
from tests.unit.clients.federated import apart, bits, by_hand, fedsol, moon, of, weights
from tests.unit.clients.reference import reference_twin

Data = tuple[Tensor, Tensor]


def network(*, dropout: float = 0.0) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1),
        nn.GroupNorm(1, 3),
        nn.ReLU(inplace=True),
        nn.Dropout(dropout),
        nn.Flatten(),
        nn.Linear(3 * 16, 6),
        nn.ReLU(),
        nn.Linear(6, 3),
    )


def batchnormed() -> nn.Sequential:
    """End in BatchNorm on a 1x1 map, where torch refuses to train on one sample."""
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(1, 3, 4),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(3, 4),
        nn.BatchNorm1d(4),
        nn.Linear(4, 2),
    )


def data(size: int = 11, classes: int = 3, dtype: torch.dtype = torch.float32) -> Data:
    generator = torch.Generator().manual_seed(4)
    inputs = torch.randn(size, 1, 4, 4, generator=generator).to(dtype)
    return inputs, torch.randint(0, classes, (size,), generator=generator)


def state(model: nn.Module) -> list[Tensor]:
    return [t.clone() for t in bits(model)]


def torch_loop(model: nn.Module, data: Data, settings: TrainSettings) -> None:
    """Train with a loop as in torch's tutorials; single samples in evaluation mode."""
    generator = torch.Generator().manual_seed(settings.seed)
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=settings.learning_rate,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
    )
    with torch.random.fork_rng([]):
        torch.manual_seed(settings.seed)
        for _ in range(settings.epochs):
            order = torch.randperm(len(data[0]), generator=generator)
            for batch in order.split(settings.batch_size):
                for norm in model.modules():
                    if isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d):
                        norm.train(len(batch) > 1)
                optimizer.zero_grad()
                cross_entropy(model(data[0][batch]), data[1][batch]).backward()
                optimizer.step()


# --- The loop ----------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 4, 11])
def test_it_is_a_plain_loop_to_the_bit(size: int) -> None:
    settings = TrainSettings(batch_size=4, epochs=3, seed=7)
    ours, theirs = network(dropout=0.5), network(dropout=0.5)
    metrics = LocalTrainer(ours, settings).fit(*data(size))
    torch_loop(theirs, data(size), settings)
    assert same_bits(bits(ours), bits(theirs))
    assert metrics["steps"] == 3 * -(-size // 4)


@every_scaling
@pytest.mark.parametrize("names", [(), ("5", "7")])
def test_it_is_the_textbooks_loop_with_and_without_alignment(
    names: tuple[str, ...], scaling: str
) -> None:
    """With alignment it is the reference twin's; the loss is that of the last epoch."""
    settings = TrainSettings(
        learning_rate=0.1, batch_size=4, epochs=3, fa_layers=names, scaling=scaling
    )
    model, (inputs, targets) = network().double(), data(dtype=torch.float64)
    twin = reference_twin(model, names, scaling)
    losses = []

    def objective(net: nn.Module, batch: Tensor) -> Tensor:
        loss = cross_entropy(net(inputs[batch]), targets[batch])
        losses.append(loss.item() * len(batch))
        return loss

    theirs = by_hand(twin, len(inputs), settings, of(objective))
    metrics = LocalTrainer(model, settings).fit(inputs, targets)
    assert apart(weights(model), weights(theirs)) < 1e-12
    assert metrics["train-loss"] == pytest.approx(sum(losses[-3:]) / 11, rel=1e-6)


@pytest.mark.parametrize("limit", [0.05, 1e6])
def test_clip_norm_limits_the_norm_of_the_whole_gradient(limit: float) -> None:
    given = TrainSettings(batch_size=4, epochs=2, clip_norm=limit)
    model, (inputs, targets) = network().double(), data(dtype=torch.float64)

    def objective(net: nn.Module, batch: Tensor) -> Tensor:
        return cross_entropy(net(inputs[batch]), targets[batch])

    results = {}
    for clip_norm in (limit, 0.0):
        settings = TrainSettings(batch_size=4, epochs=2, clip_norm=clip_norm)
        theirs = by_hand(model, len(inputs), settings, of(objective))
        results[clip_norm] = weights(theirs)
    LocalTrainer(model, given).fit(inputs, targets)
    assert apart(weights(model), results[limit]) < 1e-12
    assert (apart(weights(model), results[0.0]) > 1e-4) == (limit < 1)


def test_frozen_weights_are_not_decayed() -> None:
    model = network()
    model[0].requires_grad_(False)
    before = state(model)
    LocalTrainer(model, TrainSettings(weight_decay=0.5, fa_layers=("5",))).fit(*data())
    unchanged = [torch.equal(a, b) for a, b in zip(before, bits(model), strict=True)]
    assert unchanged == [True, True, *[False] * (len(before) - 2)]


def test_the_seed_alone_decides_whatever_the_mode_before() -> None:
    results = []
    for seed, outer, mode in ((1, 10, True), (1, 20, False), (2, 10, True)):
        model = network(dropout=0.5).train(mode)
        torch.manual_seed(outer)
        random = torch.get_rng_state()
        settings = TrainSettings(batch_size=4, seed=seed, fa_layers=("5",))
        LocalTrainer(model, settings).fit(*data())
        assert torch.equal(torch.get_rng_state(), random)
        results.append(bits(model))
    assert same_bits(results[0], results[1])
    assert not same_bits(results[0], results[2])


def test_random_numbers_of_a_method_change_neither_batches_nor_dropout() -> None:
    class Drawing(LocalTrainer):
        def begin(self, inputs: Tensor, targets: Tensor) -> None:
            torch.rand(5)

    ours, theirs = network(dropout=0.5), network(dropout=0.5)
    Drawing(ours, TrainSettings(batch_size=4)).fit(*data())
    LocalTrainer(theirs, TrainSettings(batch_size=4)).fit(*data())
    assert same_bits(bits(ours), bits(theirs))


def test_batches_are_shuffled_anew_each_epoch() -> None:
    class Watching(LocalTrainer):
        def compute_gradients(self, inputs: Tensor, targets: Tensor) -> Tensor:
            seen.append(targets.tolist())
            return super().compute_gradients(inputs, targets)

    seen: list[list[int]] = []
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 11))
    inputs, targets = data()[0], torch.arange(11)
    Watching(model, TrainSettings(batch_size=4, epochs=2)).fit(inputs, targets)
    assert [len(batch) for batch in seen] == [4, 4, 3] * 2
    first, second = (list(chain(*seen[s])) for s in (slice(3), slice(3, 6)))
    assert sorted(first) == sorted(second) == list(range(11))
    assert first != second != list(range(11))


# --- Small clients -----------------------------------------------------------------


def test_a_single_sample_at_the_end_is_normalised_by_running_statistics() -> None:
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        batchnormed()(torch.ones(1, 1, 4, 4))
    samples, settings = data(5, 2), TrainSettings(batch_size=4, epochs=2, seed=1)
    ours, theirs = batchnormed(), batchnormed()
    LocalTrainer(ours, settings).fit(*samples)
    torch_loop(theirs, samples, settings)
    assert same_bits(bits(ours), bits(theirs))
    # Only the two full batches have entered the running statistics.
    assert ours[1].num_batches_tracked == ours[5].num_batches_tracked == 2
    assert all(m.training for m in ours.modules())


@pytest.mark.parametrize("size", [1, 2])
def test_a_client_with_less_than_a_batch_trains(size: int) -> None:
    model = batchnormed()
    before = copy.deepcopy(model.state_dict())
    settings = TrainSettings(fa_layers=("4", "6"))
    metrics = LocalTrainer(model, settings).fit(*data(size, 2))
    assert metrics["steps"] == 5
    assert metrics["train-loss"] > 0
    now = model.state_dict()
    changed = {name for name in now if not torch.equal(now[name], before[name])}
    assert {"0.weight", "4.weight", "6.weight", "6.bias"} <= changed
    # One sample does not enter the running statistics, two do.
    statistics = {"1.running_mean", "5.num_batches_tracked"}
    assert statistics & changed == (statistics if size > 1 else set())


def test_a_norm_layer_in_evaluation_mode_stays_so() -> None:
    class Frozen(LocalTrainer):
        def begin(self, inputs: Tensor, targets: Tensor) -> None:
            self.model[1].eval()

    model = batchnormed()
    before = state(model[1])[2:]
    Frozen(model, TrainSettings(batch_size=2)).fit(*data(3, 2))
    assert not model[1].training
    assert same_bits(bits(model[1])[2:], before)
    assert model[5].training


def test_after_an_error_on_a_single_sample_the_norms_train_again() -> None:
    class Broken(LocalTrainer):
        def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
            raise KeyError("control")

    model = batchnormed()
    with pytest.raises(KeyError):
        Broken(model, TrainSettings()).fit(*data(1, 2))
    assert all(m.training for m in model.modules())


def test_one_model_for_many_clients_in_turn() -> None:
    """Nothing stays in the model but its weights: each round is as on a new one."""
    shared, received = batchnormed(), batchnormed().state_dict()
    for client in range(3):
        settings = TrainSettings(batch_size=4, seed=client, fa_layers=("4", "6"))
        shared.load_state_dict(received)
        fresh = batchnormed()
        for model in (shared, fresh):
            LocalTrainer(model, settings).fit(*data(4 + client, 2))
        assert same_bits(bits(shared), bits(fresh))


@pytest.mark.parametrize(
    ("samples", "layers", "message"),
    [
        (data(0), (), "0 samples"),
        ((torch.ones(4, 1, 4, 4), torch.zeros(5).long()), (), "4 samples and 5 target"),
        (data(4, 2), ("6", "gone"), "'gone'"),
    ],
)
def test_what_cannot_be_trained_is_an_error_before_anything_happens(
    samples: Data, layers: tuple[str, ...], message: str
) -> None:
    model = batchnormed()
    before = state(model)
    with pytest.raises(ValueError, match=message):
        LocalTrainer(model, TrainSettings(fa_layers=layers)).fit(*samples)
    assert same_bits(bits(model), before)
    assert eligible_layers(model) == ["0", "4", "6"]


# --- Layout of the images ----------------------------------------------------------


def layout_network(channels: int) -> nn.Sequential:
    """All kinds of layers that depend on a layout: strides, groups, norms, pools."""
    layers = {
        "first": nn.Conv2d(channels, 4, 3, padding=1),
        "norm": nn.BatchNorm2d(4),
        "act": nn.ReLU(inplace=True),
        "deep": nn.Conv2d(4, 4, 3, padding=1, groups=4),
        "groups": nn.GroupNorm(2, 4),
        "pool": nn.MaxPool2d(2),
        "hidden": nn.Conv2d(4, 6, 1, stride=2),
        "act2": nn.Tanh(),
        "mean": nn.AdaptiveAvgPool2d((1, 2)),
        "flat": nn.Flatten(),
        "head": nn.Linear(12, 3),
    }
    return nn.Sequential(OrderedDict(layers)).double()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("aligned", [(), ("deep", "hidden", "head")])
def test_the_layout_of_the_images_does_not_change_training(
    channels: int, aligned: tuple[str, ...]
) -> None:
    """By hand on contiguous images; the weights and buffers keep their strides."""
    settings = TrainSettings(
        learning_rate=0.1, batch_size=4, epochs=3, seed=5, fa_layers=aligned
    )
    inputs, targets = torch.randn(14, channels, 8, 6).double(), torch.arange(14) % 3
    received = layout_network(channels)
    strides = [t.stride() for t in bits(received)]

    def objective(net: nn.Module, batch: Tensor) -> Tensor:
        return cross_entropy(net(inputs[batch]), targets[batch])

    twin = reference_twin(received, aligned)
    theirs = by_hand(twin, len(inputs), settings, of(objective))
    for given in (inputs, channels_last(inputs)):
        model = copy.deepcopy(received)
        LocalTrainer(model, settings).fit(given, targets)
        assert apart(weights(model), weights(theirs)) < 1e-10
        assert apart([model.norm.running_var], [theirs.norm.running_var]) < 1e-10
        assert [t.stride() for t in bits(model)] == strides


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("augmentation", ["none", "crop"])
def test_every_step_has_the_layout_of_the_samples(
    channels: int, augmentation: str
) -> None:
    """Also the last batch, of one image: 13 are three batches of 4 and one of 1."""

    class Watching(LocalTrainer):
        def compute_gradients(self, inputs: Tensor, targets: Tensor) -> Tensor:
            seen.add(inputs.stride())
            return super().compute_gradients(inputs, targets)

    settings = TrainSettings(batch_size=4, epochs=1, augmentation=augmentation)
    inputs, targets = torch.randn(13, channels, 8, 6).double(), torch.arange(13) % 3
    for given, strides in (
        (inputs, (48 * channels, 48, 6, 1)),
        (channels_last(inputs), (48 * channels, 1, 6 * channels, channels)),
    ):
        seen: set[tuple[int, ...]] = set()
        Watching(layout_network(channels), settings).fit(given, targets)
        assert seen == {strides}


# --- Precision ---------------------------------------------------------------------


def half_network() -> nn.Sequential:
    torch.manual_seed(0)
    body = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 4, 2),
        nn.Flatten(),
    )
    return nn.Sequential(body, nn.Linear(4, 3))


@pytest.mark.parametrize("layers", [(), ("0.3",), ("1",)])
def test_bf16_computes_layers_in_bfloat16_and_keeps_the_weights(
    layers: tuple[str, ...],
) -> None:
    """One step is near full precision: bfloat16 has 8 bits."""
    updates, dtypes = [], set()
    for precision in ("float32", "bf16"):
        net = half_network()
        start = torch.cat([p.detach().flatten() for p in net.parameters()])
        for layer in net.modules():
            if precision == "bf16" and isinstance(layer, nn.Conv2d | nn.Linear):
                layer.register_forward_hook(lambda *args: dtypes.add(args[-1].dtype))
        settings = TrainSettings(
            batch_size=24, epochs=1, precision=precision, fa_layers=layers
        )
        LocalTrainer(net, settings).fit(*data(24))
        assert {p.dtype for p in net.parameters()} == {torch.float32}
        updates.append(
            torch.cat([p.detach().flatten() for p in net.parameters()]) - start
        )
    full, half = updates
    assert dtypes == {torch.bfloat16}
    assert not torch.equal(full, half)
    assert torch.linalg.vector_norm(half - full) < 0.1 * torch.linalg.vector_norm(full)


def test_every_pass_has_the_current_weights() -> None:
    """Autocast may cache casts, which would be outdated after the first step."""
    net, current = half_network(), []
    head = net[1]

    def look(layer: nn.Module, inputs: tuple[Tensor], outputs: Tensor) -> None:
        # The same product in bfloat16, outside of autocast.
        with torch.autocast("cpu", enabled=False):
            weight, bias = head.weight.bfloat16(), head.bias.bfloat16()
            now = functional.linear(inputs[0].bfloat16(), weight, bias)
        current.append(torch.equal(now, outputs))

    head.register_forward_hook(look)
    settings = TrainSettings(batch_size=8, epochs=2, precision="bf16")
    LocalTrainer(net, settings).fit(*data(24))
    assert current == [True] * 6  # two epochs of three batches


@pytest.mark.parametrize(
    ("trainer", "config"),
    [
        (LocalTrainer, {}),
        (MOONTrainer, moon(1.0)),
        (FedSOLTrainer, fedsol(1.0, "adaptive", "all")),
        (FedSOLTrainer, fedsol(1.0, "fixed", "head")),
    ],
)
def test_epochs_in_bf16_are_near_full_precision(
    trainer: type[LocalTrainer], config: dict[str, Any]
) -> None:
    """Also of methods with a second pass."""
    losses = {}
    for precision in ("float32", "bf16"):
        net = half_network()
        previous = {name: tensor + 0.01 for name, tensor in net.state_dict().items()}
        settings = TrainSettings(
            learning_rate=0.05, batch_size=8, epochs=10, precision=precision
        )
        fitted = trainer(net, settings, config, state=previous)
        losses[precision] = fitted.fit(*data(24))["train-loss"]
        assert {p.dtype for p in net.parameters()} == {torch.float32}
    assert losses["bf16"] == pytest.approx(losses["float32"], abs=0.1)


# --- Hooks -------------------------------------------------------------------------


class Recorder(LocalTrainer):
    """Record each call, and the model at that moment."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.calls: list[str] = []
        self.plain_layers: dict[str, list[str]] = {}
        self.weights: dict[str, list[Tensor]] = {}

    def record(self, name: str) -> None:
        self.calls.append(name)
        self.plain_layers[name] = eligible_layers(self.model)
        self.weights.setdefault(name, weights(self.model))

    def begin(self, inputs: Tensor, targets: Tensor) -> None:
        self.record("begin")
        self.samples = (inputs, targets)
        assert self.model.training

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.record("loss")
        return super().loss(outputs, targets)

    def compute_gradients(self, inputs: Tensor, targets: Tensor) -> Tensor:
        self.record("compute_gradients")
        assert all(p.grad is None for p in self.model.parameters())
        loss = super().compute_gradients(inputs, targets)
        assert not loss.requires_grad
        return loss

    def edit_gradients(self) -> None:
        self.record("edit_gradients")
        assert all(p.grad is not None for p in self.model.parameters())


def test_the_order_of_the_calls() -> None:
    model, (inputs, targets) = network(), data(5)
    received, plain = weights(model), copy.deepcopy(model)
    settings = TrainSettings(batch_size=3, epochs=2, fa_layers=("7",))
    trainer = Recorder(model, settings)
    trainer.fit(inputs, targets)
    step = ["compute_gradients", "loss", "edit_gradients"]
    assert trainer.calls == ["begin", *step * 4]
    # The round begins with the received weights, all samples, and no alignment yet.
    assert same_bits(trainer.weights["begin"], received)
    assert trainer.samples[0] is inputs
    assert trainer.samples[1] is targets
    layers = trainer.plain_layers
    assert layers["begin"] == eligible_layers(model) == ["0", "5", "7"]
    # Feedback alignment acts on the gradients; the edit comes before the step.
    assert layers["compute_gradients"] == layers["loss"] == ["0", "5"]
    assert same_bits(trainer.weights["edit_gradients"], received)
    # Hooks that call their base class change nothing.
    LocalTrainer(plain, settings).fit(inputs, targets)
    assert same_bits(bits(model), bits(plain))


def test_config_and_state_are_copied_and_may_be_missing() -> None:
    config, stored = {"proximal-mu": 0.1}, {"control": torch.ones(2)}
    trainer = LocalTrainer(network(), TrainSettings(), config, stored)
    assert (trainer.config, trainer.received_state) == (config, stored)
    trainer.config["more"] = trainer.received_state["more"] = 1
    assert (list(config), list(stored)) == (["proximal-mu"], ["control"])
    bare = LocalTrainer(network(), TrainSettings())
    assert (bare.config, bare.received_state, bare.state()) == ({}, {}, {})


class Proximal(LocalTrainer):
    """A loss without a gradient, and a pull towards the anchor at 2."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return 0.0 * outputs.sum()

    def edit_gradients(self) -> None:
        for p in self.model.parameters():
            assert p.grad is not None
            p.grad.add_(0.5 * (p.detach() - 2.0))


@pytest.mark.parametrize(
    ("steps", "momentum", "expected"),
    [(1, 0.0, 0.75), (10, 0.0, 0.75**10), (2, 0.5, 7 / 16)],
)
def test_momentum_comes_after_the_edit(
    steps: int, momentum: float, expected: float
) -> None:
    """By hand, with d = w - W: v = m v + d / 2, then d = d - v / 2.

    Without momentum d loses the factor 3/4 in a step; 3**k / 4**k beside 2 has fewer
    than 53 bits for k up to 10: no rounding. With m = 1/2 d is 1, 3/4 and 7/16.
    """
    model = nn.Linear(1, 1).double()
    for p in model.parameters():
        nn.init.constant_(p, 3.0)
    settings = TrainSettings(
        learning_rate=0.5, momentum=momentum, weight_decay=0.0, epochs=steps
    )
    Proximal(model, settings).fit(torch.ones(3, 1).double(), torch.zeros(3).double())
    assert [p.item() - 2.0 for p in model.parameters()] == [expected] * 2


def test_the_edit_comes_before_clipping() -> None:
    class Exploding(LocalTrainer):
        def edit_gradients(self) -> None:
            for p in self.model.parameters():
                p.grad = torch.full_like(p, 1e6)

    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3, bias=False))
    before = model[1].weight.detach().clone()
    settings = TrainSettings(learning_rate=1.0, weight_decay=0.0, epochs=1, clip_norm=2)
    Exploding(model, settings).fit(*data())
    # 48 equal entries of norm 2: each 2 / sqrt(48).
    step = torch.full((3, 16), 2 / 48**0.5)
    torch.testing.assert_close(before - model[1].weight, step, rtol=1e-5, atol=1e-7)


def test_the_reported_loss_is_the_methods_mean_over_samples_of_the_last_epoch() -> None:
    class Counting(LocalTrainer):
        steps = 0

        def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
            self.steps += 1
            last = self.steps > 3
            return outputs.sum() * 0 + (targets.double().mean() if last else 99.0)

    settings = TrainSettings(batch_size=2, epochs=2)
    targets = torch.tensor([1, 2, 3, 4, 10])
    metrics = Counting(network(), settings).fit(data(5)[0], targets)
    # The last batch has one sample: the mean over batches would be another.
    assert metrics == {"train-loss": 4.0, "steps": 6}


def test_a_second_pass_in_compute_gradients() -> None:
    """Gradients of both passes are in the step; feedback alignment is in both."""

    class Twice(LocalTrainer):
        def compute_gradients(self, inputs: Tensor, targets: Tensor) -> Tensor:
            super().compute_gradients(inputs, targets)
            return super().compute_gradients(inputs, targets)

    options = {"weight_decay": 0.0, "momentum": 0.0, "epochs": 3, "fa_layers": ("7",)}
    ours, theirs = network(), network()
    Twice(ours, TrainSettings(learning_rate=0.25, **options)).fit(*data())
    LocalTrainer(theirs, TrainSettings(learning_rate=0.5, **options)).fit(*data())
    # Doubling is exact, so twice the gradient is twice the learning rate to the bit.
    assert same_bits(bits(ours), bits(theirs))
