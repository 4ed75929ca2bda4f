"""Layers that cover the settings of a convolution, and helpers to compare gradients."""

import copy
import io
import pickle
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clients import feedback_alignment

CONVS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
CHANNELS = 4
SIZES = {1: (9,), 2: (7, 5), 3: (5, 4, 3)}
SCALINGS = ("tensor", "channel", "none")

# A warning of torch's about its own "same" padding with an even kernel.
quiet = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
every_scaling = pytest.mark.parametrize("scaling", SCALINGS)

# In any number of dimensions: those of the axes differ.
GENERAL: dict[str, dict[str, Any]] = {
    "uneven": {"kernel_size": (1, 3, 2), "padding": (1, 0, 1), "stride": (2, 1, 3)},
    "same-mixed": {
        "kernel_size": (2, 3, 4),
        "padding": "same",
        "dilation": (3, 2, 1),
        "groups": 2,
    },
    "circular-uneven": {
        "kernel_size": 3,
        "padding": (2, 1, 0),
        "stride": 2,
        "padding_mode": "circular",
    },
}
FLAT: dict[str, dict[str, Any]] = {
    "plain": {"kernel_size": 2},
    "stride2": {"kernel_size": 1, "stride": 2},
    "dilated": {"kernel_size": 2, "dilation": 2, "padding": 1},
    "groups": {"kernel_size": 3, "padding": 1, "groups": 2},
    "depthwise": {"kernel_size": 3, "padding": 1, "groups": CHANNELS},
    "valid": {"kernel_size": 2, "padding": "valid"},
    "same-odd": {"kernel_size": 3, "padding": "same"},
    "reflect": {"kernel_size": 3, "padding": 1, "padding_mode": "reflect"},
    "replicate-same-even": {
        "kernel_size": 4,
        "padding": "same",
        "padding_mode": "replicate",
    },
    "reflect-valid": {"kernel_size": 2, "padding": "valid", "padding_mode": "reflect"},
}
CONV_CASES: dict[str, tuple[int, dict[str, Any]]] = {
    **{f"conv2d-{name}": (2, settings) for name, settings in FLAT.items()},
    **{
        f"conv{dims}d-{name}": (
            dims,
            {k: v[:dims] if type(v) is tuple else v for k, v in settings.items()},
        )
        for dims in CONVS
        for name, settings in GENERAL.items()
    },
}
every_conv = pytest.mark.parametrize("case", CONV_CASES)
# Every case with one scaling, and with a bias or without.
every_conv_and_scaling = pytest.mark.parametrize(
    ("case", "scaling", "bias"),
    list(zip(CONV_CASES, cycle(SCALINGS), cycle([True, False]), strict=False)),
)


def conv(case: str, *, bias: bool = True) -> nn.Module:
    """Build the convolution of a case, from 4 channels to 8."""
    dims, settings = CONV_CASES[case]
    return CONVS[dims](CHANNELS, 8, bias=bias, **settings)


def conv_input(case: str, batch: int | None = 2) -> Tensor:
    """Draw an input for a case; ``None`` is an input without a batch axis."""
    dims, _ = CONV_CASES[case]
    return torch.randn(*([] if batch is None else [batch]), CHANNELS, *SIZES[dims])


def channels_last(images: Tensor) -> Tensor:
    """Store the same values pixel by pixel.

    ``contiguous(memory_format=...)`` would not change images of one channel.
    """
    count, channels, height, width = images.shape
    pixels = torch.empty(count, height, width, channels, dtype=images.dtype)
    return pixels.copy_(images.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def move_weights(model: nn.Module, by: float = 0.5, seed: int | None = None) -> None:
    """Move every weight away from where it is, as local training does."""
    if seed is not None:
        torch.manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(by * torch.randn_like(p))


def gradients(
    model: nn.Module,
    x: Tensor,
    names: Sequence[str] = (),
    *,
    scaling: str = "tensor",
    change: Callable[[nn.Module], None] = lambda model: None,
    grad: Tensor | None = None,
) -> list[Tensor]:
    """Return output, input gradient and weight gradients of a copy of the model.

    ``change`` is applied between entering the block and the forward pass.
    """
    model = copy.deepcopy(model)
    x = x.clone().requires_grad_()
    with feedback_alignment(model, names, scaling=scaling):
        change(model)
        y = model(x)
        y.backward(torch.cos(y.detach()) if grad is None else grad)
    weights = [p.grad for p in model.parameters() if p.grad is not None]
    assert x.grad is not None
    return [y.detach(), x.grad, *weights]


def same_bits(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> bool:
    """Whether two lists of tensors agree in every bit, dtype and shape."""
    return len(ours) == len(theirs) and all(
        a.dtype == b.dtype and torch.equal(a, b)
        for a, b in zip(ours, theirs, strict=True)
    )


def through_pickle(model: nn.Module) -> nn.Module:
    return pickle.loads(pickle.dumps(model))


def through_torch_save(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


every_copy = pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, through_pickle, through_torch_save]
)
