"""Depthwise convolutions on small maps, faster to train on a CPU.

Where no window of the kernel fits into the height of a map, oneDNN has no fast code for
the gradient of a depthwise weight: it takes ten times as long as the forward pass. But
few positions make few pairs of an input's and an output's position, and each pair
belongs to one element of the kernel: the gradient is one product and two sums.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import product
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

__all__ = ["DepthwiseConv2d", "PairedConvolution", "fast_depthwise", "kept_weight"]

# The rule, as `python -m benchmarks.depthwise` shows it: where oneDNN has no fast code,
# pairs are faster if there are at most so many for each element of the kernel (3x3: on
# 2x2, and on 3x3 with stride 2), and at least so many maps (batch times channels).
MOST_PAIRS = 4
FEWEST_MAPS = 4096

Model = TypeVar("Model", bound=nn.Module)


def fast_depthwise(model: Model) -> Model:
    """Let the depthwise convolutions of a model train faster on small maps on a CPU.

    Outputs and input gradients are the same to the bit, the gradients of weights and
    biases to rounding. Names, parameters and hooks stay as they are; the layers change
    their class, from ``nn.Conv2d`` to :class:`DepthwiseConv2d`, and feedback alignment
    works with them. A second call changes nothing. The rule is measured for one thread.
    Tools that go by a layer's exact class (torch's quantisation, ``torch.fx``) want a
    model without it: call this on the one that is trained.

    Parameters
    ----------
    model : nn.Module
        Any model, changed in place. What is changed are its ``nn.Conv2d`` with as many
        groups as input and output channels, padded with a number of zeros. Subclasses
        are left alone, and so are layers that are parametrised already.

    Returns
    -------
    nn.Module
        The same model.
    """
    for layer in model.modules():
        if (
            type(layer) is nn.Conv2d
            and layer.groups == layer.in_channels == layer.out_channels > 1
            and layer.padding_mode == "zeros"
            and not isinstance(layer.padding, str)
        ):
            layer.__class__ = DepthwiseConv2d
    return model


class DepthwiseConv2d(nn.Conv2d):
    """A depthwise ``nn.Conv2d`` with a faster weight gradient on small maps on a CPU.

    Everywhere else it is the stock layer: on larger maps and other devices, without
    gradients or with a frozen weight, for one image without a batch axis, in half
    precision or autocast, in ``torch.func``, forward-mode differentiation, tracing and
    compilation.
    """

    def _conv_forward(
        self, input: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            # The stock layer's line; all else is too much for TorchScript.
            stride, padding, dilation = self.stride, self.padding, self.dilation
            return torch.conv2d(
                input, weight, bias, stride, padding, dilation, self.groups
            )
        return _convolution(self, input, weight, bias)


class PairedConvolution(torch.autograd.Function):
    """A depthwise convolution whose weight gradient is summed over pairs."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: tuple[int, ...],
        padding: tuple[int, ...],
        dilation: tuple[int, ...],
    ) -> Tensor:
        """Convolve as the stock layer does."""
        ctx.save_for_backward(inputs, weight)
        ctx.geometry = (stride, padding, dilation)
        return torch.conv2d(
            inputs, weight, bias, stride, padding, dilation, len(weight)
        )

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients, the input's from the stock primitive.

        Each step is differentiable, and so is the result.
        """
        # Read once: under activation checkpointing a second look is an error.
        inputs, weight = ctx.saved_tensors
        gradients: list[Tensor | None] = [None] * 6
        if ctx.needs_input_grad[0]:
            gradients[0] = torch.ops.aten.convolution_backward(
                grad,
                inputs,
                weight,
                None,
                *ctx.geometry,
                False,
                (0, 0),
                len(weight),
                (True, False, False),
            )[0]
        if ctx.needs_input_grad[1]:
            gradients[1] = _weight_gradient(inputs, grad, weight, ctx.geometry)
        if ctx.needs_input_grad[2]:
            gradients[2] = grad.sum((0, 2, 3))
        return tuple(gradients)


def kept_weight(node: Any) -> Any:
    """Return where the fast backward pass keeps the weight; None for other nodes.

    Like the stock one, it needs the weight for nothing but the input's gradient.
    """
    fast = getattr(node, "_forward_cls", None) is PairedConvolution
    return node._raw_saved_tensors[1] if fast else None


def _convolution(
    layer: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    outputs: Tensor
    if _pays(layer, inputs, weight):
        geometry = (layer.stride, layer.padding, layer.dilation)
        outputs = PairedConvolution.apply(inputs, weight, bias, *geometry)
    else:
        outputs = nn.Conv2d._conv_forward(layer, inputs, weight, bias)
    return outputs


def _pays(layer: Any, inputs: Tensor, weight: Tensor) -> bool:
    """Whether the pairs are possible here, and faster."""
    return (
        not torch.compiler.is_compiling()
        and type(inputs) is Tensor
        and inputs.dim() == 4
        and torch.is_grad_enabled()
        and weight.requires_grad
        and inputs.device.type == "cpu"
        and inputs.layout is torch.strided
        and inputs.dtype in (torch.float32, torch.float64)
        and _is_small(layer, *inputs.shape)
        and not torch.is_autocast_enabled("cpu")
        and not torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]
        and not torch._C._are_functorch_transforms_active()
        and forward_ad._current_level < 0
    )


def _is_small(layer: Any, batch: int, channels: int, height: int, width: int) -> bool:
    """Whether pairs are faster on maps of this size: the rule that is measured."""
    tall, wide = layer.kernel_size
    down, across = (
        d * (k - 1) + 1 for d, k in zip(layer.dilation, (tall, wide), strict=True)
    )
    (top, left), (step, side_step) = layer.padding, layer.stride
    first = -top % step  # the first window to begin in the map begins in this row
    rows = (height + 2 * top - down) // step + 1
    columns = (width + 2 * left - across) // side_step + 1
    return (
        first + down > height
        and height * width * rows * columns <= MOST_PAIRS * tall * wide
        and batch * channels >= FEWEST_MAPS
    )


def _weight_gradient(
    inputs: Tensor, grad: Tensor, weight: Tensor, geometry: tuple[Any, ...]
) -> Tensor:
    products = _pixels(inputs).unsqueeze(2) * _pixels(grad).unsqueeze(1)
    pairs = products.sum(0).flatten(0, 1)
    elements = _elements(inputs.shape[2:], grad.shape[2:], weight.shape[2:], *geometry)
    index = torch.tensor(elements, device=pairs.device)
    sums = pairs.new_zeros(weight[0].numel() + 1, len(weight))
    sums.index_add_(0, index, pairs)
    # In the layout of the weight, as it will be needed.
    return torch.empty_like(weight).copy_(sums[:-1].t().view(weight.shape))


def _pixels(maps: Tensor) -> Tensor:
    """Return images as (batch, positions, channels); with channels last they are."""
    return maps.permute(0, 2, 3, 1).flatten(1, 2).contiguous()


@cache
def _elements(
    inputs: tuple[int, ...],
    outputs: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
) -> tuple[int, ...]:
    """Return to which element of the kernel each pair of positions belongs.

    Pairs that do not belong to any get the number after the last.
    """

    def along(axis: int, position: int, output: int) -> int | None:
        offset = position + padding[axis] - output * stride[axis]
        element, rest = divmod(offset, dilation[axis])
        return element if rest == 0 and 0 <= element < kernel[axis] else None

    none = math.prod(kernel)
    elements = []
    for y, x, v, u in product(*map(range, (*inputs, *outputs))):
        row, column = along(0, y, v), along(1, x, u)
        if row is None or column is None:
            elements.append(none)
        else:
            elements.append(row * kernel[1] + column)
    return tuple(elements)
