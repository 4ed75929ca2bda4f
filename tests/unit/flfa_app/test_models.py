"""The model registry: shapes, seeding, normalisation layers and known sizes."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from flfa_app.models import MODELS, NORMS, build_model

CLASSES = 10
# Only the small network is meant for images as small as 8x8.
SHAPE_CASES = [
    ("cnn", 8),
    *((name, size) for name in sorted(MODELS) for size in (28, 32)),
]

every_model = pytest.mark.parametrize("name", sorted(MODELS))
every_norm = pytest.mark.parametrize("norm", NORMS)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Run on one thread, as the tests of several modules may run side by side."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def build(
    name: str,
    *,
    norm: str = "batch",
    channels: int = 3,
    size: int = 32,
    classes: int = CLASSES,
    seed: int = 0,
) -> nn.Module:
    """Build a model, for 32x32 colour images unless told otherwise."""
    return build_model(
        name, channels=channels, size=size, classes=classes, norm=norm, seed=seed
    )


def parameter_count(model: nn.Module) -> int:
    """Return how many numbers the model learns."""
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(("name", "size"), SHAPE_CASES)
@pytest.mark.parametrize("channels", [1, 3])
@every_norm
def test_one_row_of_logits_per_image(
    name: str, size: int, channels: int, norm: str
) -> None:
    """The output is (batch, classes) for grey and colour images of each size."""
    model = build(name, norm=norm, channels=channels, size=size, classes=7).eval()
    with torch.no_grad():
        logits = model(torch.zeros(2, channels, size, size))
    assert logits.shape == (2, 7)
    assert torch.isfinite(logits).all()


@every_model
@every_norm
def test_every_parameter_gets_a_gradient(name: str, norm: str) -> None:
    """A backward pass in training mode works and reaches every parameter."""
    # At 28x28 the ImageNet strides leave a 1x1 map, of which batch norm needs two.
    model = build(name, norm=norm, channels=1, size=28)
    model(torch.randn(2, 1, 28, 28)).sum().backward()
    assert [key for key, p in model.named_parameters() if p.grad is None] == []


@every_model
@every_norm
def test_state_dict_names_each_tensor_once(name: str, norm: str) -> None:
    """Keys and tensors of the state dict are one to one."""
    state = build(name, norm=norm).state_dict()
    assert len(set(state)) == len(state)
    assert len({tensor.data_ptr() for tensor in state.values()}) == len(state)


@every_model
@every_norm
def test_seed_decides_the_weights(name: str, norm: str) -> None:
    """The same seed gives the same bits, another seed other weights."""
    # Grey images, so that the weights of a replaced first convolution are among them.
    first = build(name, norm=norm, channels=1, seed=1).state_dict()
    torch.rand(3)  # the caller's random state must not matter
    again = build(name, norm=norm, channels=1, seed=1).state_dict()
    other = build(name, norm=norm, channels=1, seed=2).state_dict()
    assert first.keys() == again.keys() == other.keys()
    assert all(torch.equal(first[key], again[key]) for key in first)
    # Norm layers start the same whatever the seed; weights of rank 2 and 4 are drawn.
    drawn = [key for key in first if first[key].ndim > 1]
    assert drawn
    assert not any(torch.equal(first[key], other[key]) for key in drawn)


@every_model
def test_random_state_of_the_caller_is_untouched(name: str) -> None:
    """Building draws nothing from the caller's generator."""
    before = torch.get_rng_state()
    build(name, channels=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_default_device_does_not_matter() -> None:
    """The weights are drawn on the CPU even where the default device is another."""
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
    """Every normalisation layer is of the chosen kind; a group norm has 2 groups."""
    modules = list(build(name, norm=norm).modules())
    assert any(isinstance(module, wanted) for module in modules)
    assert not any(isinstance(module, unwanted) for module in modules)
    assert {m.num_groups for m in modules if isinstance(m, nn.GroupNorm)} <= {2}


@pytest.mark.parametrize(
    ("name", "map_size"), [("mobilenet_v2", 4), ("mobilenet_v2_imagenet", 1)]
)
@pytest.mark.parametrize("channels", [1, 3])
def test_mobilenet_stride(name: str, map_size: int, channels: int) -> None:
    """The strides multiply to 8 in the CIFAR variant and to 32 in the original."""
    model = build(name, channels=channels).eval()
    features = model.get_submodule("features")
    with torch.no_grad():
        maps = features(torch.zeros(1, channels, 32, 32))
    assert maps.shape == (1, 1280, map_size, map_size)


@pytest.mark.parametrize(
    ("size", "map_size"), [(3, 3), (4, 2), (7, 3), (8, 2), (28, 7), (32, 8)]
)
def test_cnn_pools_only_maps_of_at_least_four(size: int, map_size: int) -> None:
    """Two halvings, of which a map narrower than 4 is spared."""
    model = build("cnn", size=size).eval()
    maps: list[torch.Tensor] = []
    model.get_submodule("conv3").register_forward_hook(
        lambda _module, _inputs, output: maps.append(output)
    )
    with torch.no_grad():
        model(torch.zeros(1, 3, size, size))
    assert maps[0].shape == (1, 64, map_size, map_size)


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_resnet_stem_keeps_the_image_size(name: str) -> None:
    """The first stage sees maps as large as the image."""
    model = build(name).eval()
    maps: list[torch.Tensor] = []
    model.get_submodule("layer1").register_forward_pre_hook(
        lambda _module, inputs: maps.append(inputs[0])
    )
    with torch.no_grad():
        model(torch.zeros(1, 3, 32, 32))
    assert maps[0].shape == (1, 64, 32, 32)


def test_resnet18_parameter_count() -> None:
    """The CIFAR ResNet-18 has 11,173,962 parameters.

    Convolutions (no biases), then norms (a scale and a shift per channel):

    - stem: 9*3*64 + 2*64 = 1,856
    - stage 1: 4 * 9*64*64 + 4 * 2*64 = 147,968
    - stage 2: 9*64*128 + 3 * 9*128*128 + 64*128 + 5 * 2*128 = 525,568
    - stage 3: 9*128*256 + 3 * 9*256*256 + 128*256 + 5 * 2*256 = 2,099,712
    - stage 4: 9*256*512 + 3 * 9*512*512 + 256*512 + 5 * 2*512 = 8,393,728
    - head: 512*10 + 10 = 5,130
    """
    assert parameter_count(build("resnet18")) == 11_173_962


@every_model
def test_norms_have_the_same_parameters(name: str) -> None:
    """Choosing a norm changes no parameter's name or shape."""
    batch, group = (
        {key: p.shape for key, p in build(name, norm=norm).named_parameters()}
        for norm in NORMS
    )
    assert batch == group


def test_unknown_model_is_refused() -> None:
    """The message names the value and what would have been allowed."""
    with pytest.raises(ValueError, match="'resnet19'") as error:
        build("resnet19")
    assert all(name in str(error.value) for name in MODELS)


@every_model
def test_unknown_norm_is_refused(name: str) -> None:
    """The message names the value and what would have been allowed."""
    with pytest.raises(ValueError, match="'layer'") as error:
        build(name, norm="layer")
    assert all(norm in str(error.value) for norm in NORMS)
