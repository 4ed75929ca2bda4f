"""The layers every property is checked on, and small helpers."""

import copy
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from clients import feedback_alignment

CONVS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
CHANNELS = 4
SIZES = {1: (9,), 2: (7, 5), 3: (5, 4, 3)}
SCALINGS = ("tensor", "channel", "none")

# torch says so of its own "same" padding with an even kernel; not what is tested here.
quiet = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
every_scaling = pytest.mark.parametrize("scaling", SCALINGS)
both_bias = pytest.mark.parametrize("bias", [True, False], ids=["bias", "nobias"])
both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def _settings(dims: int) -> dict[str, dict]:
    modes = ("reflect", "replicate", "circular")
    return {
        "plain": {"kernel_size": 2},
        "1x1": {"kernel_size": 1},
        "padded": {"kernel_size": 3, "padding": 1},
        "stride2": {"kernel_size": 3, "stride": 2, "padding": 1},
        "stride2-even": {"kernel_size": 2, "stride": 2},
        "1x1-stride2": {"kernel_size": 1, "stride": 2},
        "uneven": {
            "kernel_size": (1, 3, 2)[:dims],
            "padding": (1, 0, 1)[:dims],
            "stride": (2, 1, 3)[:dims],
        },
        "dilated": {"kernel_size": 2, "dilation": 2, "padding": 1},
        "groups": {"kernel_size": 3, "padding": 1, "groups": 2},
        "depthwise": {"kernel_size": 3, "padding": 1, "groups": CHANNELS},
        "depthwise-stride2": {
            "kernel_size": 3,
            "stride": 2,
            "padding": 1,
            "groups": CHANNELS,
        },
        "valid": {"kernel_size": 2, "padding": "valid"},
        "same-odd": {"kernel_size": 3, "padding": "same"},
        "same-even": {"kernel_size": 4, "padding": "same"},
        "same-mixed": {
            "kernel_size": (2, 3, 4)[:dims],
            "padding": "same",
            "dilation": (3, 2, 1)[:dims],
        },
        "same-even-groups": {"kernel_size": 2, "padding": "same", "groups": 2},
        **{m: {"kernel_size": 3, "padding": 1, "padding_mode": m} for m in modes},
        **{
            f"{m}-same-even": {"kernel_size": 4, "padding": "same", "padding_mode": m}
            for m in modes
        },
        "circular-uneven": {
            "kernel_size": 3,
            "padding": (2, 1, 0)[:dims],
            "stride": 2,
            "padding_mode": "circular",
        },
        "reflect-valid": {
            "kernel_size": 2,
            "padding": "valid",
            "padding_mode": "reflect",
        },
    }


CONV_CASES = {
    f"conv{dims}d-{name}": (dims, settings)
    for dims in CONVS
    for name, settings in _settings(dims).items()
}
every_conv = pytest.mark.parametrize("case", CONV_CASES)


def conv(case: str, *, bias: bool = True, out: int = 8) -> nn.Module:
    """Build the convolution of a case, from 4 channels to ``out``."""
    dims, settings = CONV_CASES[case]
    return CONVS[dims](CHANNELS, out, bias=bias, **settings)


def conv_input(case: str, batch: int | None = 2) -> Tensor:
    """Draw an input for a case; ``None`` is an input without a batch axis."""
    dims, _ = CONV_CASES[case]
    return torch.randn(*([] if batch is None else [batch]), CHANNELS, *SIZES[dims])


def channels_last(images: Tensor) -> Tensor:
    """Lay images out pixel by pixel, as the trainer does; the values are the same.

    ``contiguous(memory_format=...)`` would leave images of one channel as they are.
    """
    count, channels, height, width = images.shape
    pixels = torch.empty(count, height, width, channels, dtype=images.dtype)
    return pixels.copy_(images.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def moved(model: nn.Module, by: float = 0.5) -> None:
    """Move every weight away from where it is, as local training does."""
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
    """Return output, input gradient and weight gradients, leaving the model alone.

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
