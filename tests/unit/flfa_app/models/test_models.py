"""Properties of every model: shapes, seeding, norms and blocks."""

from __future__ import annotations

import subprocess
import sys
from functools import cache

import pytest
import torch
from torch import nn

from clients import eligible_layers
from flfa_app.models import MODELS, NORMS, block_of, build_model
from tests.federation import ROOT

every_model = pytest.mark.parametrize("name", MODELS)
every_norm = pytest.mark.parametrize("norm", NORMS)


def build(
    name: str, *, norm: str = "group", channels: int = 3, size: int = 32, seed: int = 0
) -> nn.Module:
    return build_model(
        name, channels=channels, size=size, classes=10, norm=norm, seed=seed
    )


built = cache(build)  # for tests that change nothing


@every_model
@pytest.mark.parametrize(
    ("norm", "channels", "size"), [("batch", 1, 28), ("group", 3, 32)]
)
def test_logits_and_gradients(name: str, norm: str, channels: int, size: int) -> None:
    """The logits are (batch, classes), and every parameter gets a gradient."""
    # At 28x28 the ImageNet strides leave a 1x1 map, of which batch norm needs two.
    model = build(name, norm=norm, channels=channels, size=size)
    logits = model(torch.randn(2, channels, size, size))
    assert logits.shape == (2, 10)
    assert torch.isfinite(logits).all()
    logits.sum().backward()
    assert [key for key, p in model.named_parameters() if p.grad is None] == []


@every_model
def test_state_dict_names_each_tensor_once(name: str) -> None:
    state = built(name).state_dict()
    assert len({tensor.data_ptr() for tensor in state.values()}) == len(state)


@every_model
def test_seed_determines_the_weights(name: str) -> None:
    # Grey images, so that the weights of a replaced first convolution are included.
    first = build(name, channels=1, seed=1).state_dict()
    torch.rand(3)  # the caller's random state must not matter
    again = build(name, channels=1, seed=1).state_dict()
    other = build(name, channels=1, seed=2).state_dict()
    assert first.keys() == again.keys() == other.keys()
    assert all(torch.equal(first[key], again[key]) for key in first)
    # Norm layers do not depend on the seed; weights of rank 2 and 4 are drawn.
    drawn = [key for key in first if first[key].ndim > 1]
    assert drawn
    assert not any(torch.equal(first[key], other[key]) for key in drawn)


def test_random_state_of_the_caller_is_unchanged() -> None:
    before = torch.get_rng_state()
    build("mobilenet_v2", channels=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_default_device_does_not_matter() -> None:
    """The weights are drawn on the CPU even if another device is the default."""
    expected = build("cnn").state_dict()
    with torch.device("meta"):
        actual = build("cnn").state_dict()
    assert all(torch.equal(actual[key], expected[key]) for key in expected)


@every_model
@pytest.mark.parametrize(
    ("norm", "wanted", "unwanted"),
    [
        ("batch", nn.BatchNorm2d, nn.GroupNorm),
        ("group", nn.GroupNorm, nn.modules.batchnorm._BatchNorm),
    ],
)
def test_only_the_chosen_norm_is_used(
    name: str, norm: str, wanted: type[nn.Module], unwanted: type[nn.Module]
) -> None:
    """A group norm has 2 groups."""
    modules = list(built(name, norm=norm).modules())
    assert any(isinstance(module, wanted) for module in modules)
    assert not any(isinstance(module, unwanted) for module in modules)
    assert {m.num_groups for m in modules if isinstance(m, nn.GroupNorm)} <= {2}


@every_model
def test_norms_have_the_same_parameters(name: str) -> None:
    """The norm changes neither names nor shapes of parameters."""
    batch, group = (
        {key: p.shape for key, p in built(name, norm=norm).named_parameters()}
        for norm in NORMS
    )
    assert batch == group


def test_unknown_model_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown model 'resnet19'") as error:
        build("resnet19")
    assert all(name in str(error.value) for name in MODELS)
    with pytest.raises(ValueError, match="unknown model 'vgg'"):
        block_of("vgg", "features.0")


@every_model
def test_unknown_norm_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="'layer'") as error:
        build(name, norm="layer")
    assert all(norm in str(error.value) for norm in NORMS)


@every_model
def test_every_layer_has_a_block(name: str) -> None:
    assert all(block_of(name, layer) for layer in eligible_layers(built(name)))


def test_names_and_blocks_are_known_without_torchvision() -> None:
    """Importing it takes seconds; commands that only report runs do without."""
    code = (
        "import sys; from flfa_app.models import MODELS, NORMS, block_of\n"
        "print(block_of('mobilenet_v2', 'features.0.0'), block_of('resnet18', 'fc'))\n"
        "assert not {'torch', 'torchvision'} & set(sys.modules)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("stem classifier\n", "")
