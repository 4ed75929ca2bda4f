"""Images may be laid out pixel by pixel: the same training, to rounding."""

from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from clients import LocalTrainer, TrainSettings
from tests.unit.clients.cases import channels_last
from tests.unit.clients.methods.methods import apart, by_hand, of, weights
from tests.unit.clients.reference import reference_twin

every_channels = pytest.mark.parametrize("channels", [1, 3])


def network(channels: int) -> nn.Sequential:
    """All kinds of layers that look at a layout: strides, groups, norms, pools."""
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
    return nn.Sequential(OrderedDict(layers))


def images(channels: int, size: int = 14) -> tuple[Tensor, Tensor]:
    return torch.randn(size, channels, 8, 6, dtype=torch.float64), torch.arange(
        size
    ) % 3


class Watching(LocalTrainer):
    """Write down the strides of what the methods and the layers get."""

    def begin(self, inputs: Tensor, targets: Tensor) -> None:
        self.strides: set[tuple[int, ...]] = set()

    def compute_gradients(self, inputs: Tensor, targets: Tensor) -> Tensor:
        self.strides.add(inputs.stride())
        return super().compute_gradients(inputs, targets)


@every_channels
@pytest.mark.parametrize("aligned", [(), ("hidden",), ("deep", "hidden", "head")])
@pytest.mark.parametrize("laid_out", [False, True])
def test_training_is_the_one_by_hand(
    channels: int, aligned: tuple[str, ...], laid_out: bool
) -> None:
    """By hand on contiguous images, whatever layout the trainer is given them in."""
    settings = TrainSettings(
        learning_rate=0.1, batch_size=4, epochs=3, seed=5, fa_layers=aligned
    )
    model, (inputs, targets) = network(channels).double(), images(channels)

    def objective(net: nn.Module, batch: Tensor) -> Tensor:
        assert inputs[batch].stride() == (48 * channels, 48, 6, 1)
        return cross_entropy(net(inputs[batch]), targets[batch])

    twin = reference_twin(model, aligned)
    theirs = by_hand(twin, len(inputs), settings, of(objective))
    given = channels_last(inputs) if laid_out else inputs
    LocalTrainer(model, settings).fit(given, targets)
    assert apart(weights(model), weights(theirs)) < 1e-10
    for ours, expected in ((model.norm, theirs.norm),):
        assert apart([ours.running_mean], [expected.running_mean]) < 1e-10
        assert apart([ours.running_var], [expected.running_var]) < 1e-10


@every_channels
@pytest.mark.parametrize("augmentation", ["none", "crop"])
@pytest.mark.parametrize("laid_out", [False, True])
def test_layers_get_the_layout_of_the_caller_in_every_step(
    channels: int, augmentation: str, laid_out: bool
) -> None:
    """Also the last batch, of one image: 13 are three batches of 4 and one of 1."""
    settings = TrainSettings(batch_size=4, epochs=2, augmentation=augmentation)
    inputs, targets = images(channels, 13)
    trainer = Watching(network(channels).double(), settings)
    trainer.fit(channels_last(inputs) if laid_out else inputs, targets)
    rows = (48 * channels, 48, 6, 1)
    pixels = (48 * channels, 1, 6 * channels, channels)
    assert trainer.strides == {pixels if laid_out else rows}


class Viewing(nn.Module):
    """Flattens with ``view``, as tutorials do, which needs rows."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.head = nn.Linear(4 * 6 * 4, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.conv(images).relu().view(len(images), -1))


def test_a_model_that_flattens_with_view_trains() -> None:
    inputs, targets = images(3)
    LocalTrainer(Viewing().double(), TrainSettings(epochs=1)).fit(inputs, targets)


@every_channels
def test_weights_and_buffers_keep_their_strides(channels: int) -> None:
    """A gradient comes in the layout of the image; the weight does not follow it."""
    model, (inputs, targets) = network(channels).double(), images(channels)
    before = {name: t.stride() for name, t in model.state_dict().items()}
    given = channels_last(inputs)
    LocalTrainer(model, TrainSettings(batch_size=4, epochs=2)).fit(given, targets)
    assert {name: t.stride() for name, t in model.state_dict().items()} == before
    assert all(t.is_contiguous() for t in model.state_dict().values())
    assert model.first.weight.stride() == (9 * channels, 9, 3, 1)
