"""Depthwise convolutions on small maps, faster to train on a CPU.

Where no window of the kernel fits into the height of a map, oneDNN has no fast code for
the gradient of a depthwise weight: it takes ten times as long as the forward pass. But
a small map has few pairs of an input position and an output position, and each pair
belongs to one element of the kernel. So the gradient is one product and two sums.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import product
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ._torch_compat import (
    OverridableConv2d,
    forward_mode_active,
    function_transforms_active,
    saved_by_function,
)

__all__ = [
    "DepthwiseConv2d",
    "PairedConvolution",
    "fast_depthwise",
    "is_small_map",
    "pairs_apply",
    "saved_depthwise_weight",
]

# The rule, measured by `python -m benchmarks.depthwise`: where oneDNN has no fast code,
# pairs are faster if there are at most MOST_PAIRS for each element of the kernel (3x3:
# on 2x2 maps, and on 3x3 maps with stride 2), and at least FEWEST_MAPS maps (batch size
# times channels).
MOST_PAIRS = 4
FEWEST_MAPS = 4096

Model = TypeVar("Model", bound=nn.Module)


def fast_depthwise(model: Model) -> Model:
    """Let the depthwise convolutions of a model train faster on small maps on a CPU.

    Outputs and input gradients are the same to the bit, the gradients of weights and
    biases to rounding. Names, parameters and hooks stay as they are; the layers change
    their class, from ``nn.Conv2d`` to :class:`DepthwiseConv2d`, and feedback alignment
    works with them. A second call changes nothing. The rule was measured with one
    thread. Tools that depend on a layer's exact class (torch's quantisation,
    ``torch.fx``) need the unchanged model: call this on the model that is trained.

    Parameters
    ----------
    model : nn.Module
        Any model, changed in place: all its ``nn.Conv2d`` with as many groups as input
        and output channels, padded with a number of zeros. Subclasses of ``nn.Conv2d``
        and layers with a parametrisation are not changed.

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


class DepthwiseConv2d(OverridableConv2d):
    """A depthwise ``nn.Conv2d`` with a faster weight gradient on small maps on a CPU.

    Everywhere else it is the stock layer: on larger maps and other devices, without
    gradients or with a frozen weight, for one image without a batch axis, in half
    precision or autocast, in ``torch.func``, forward-mode differentiation, tracing and
    compilation.
    """

    def convolve(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Convolve as the stock layer does; only the weight gradient is faster."""
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            # TorchScript cannot compile the rest, so it gets the stock layer's line.
            stride, padding, dilation = self.stride, self.padding, self.dilation
            return torch.conv2d(
                input, weight, bias, stride, padding, dilation, self.groups
            )
        if not pairs_apply(self, input, weight):
            return super().convolve(input, weight, bias)
        geometry = (self.stride, self.padding, self.dilation)
        outputs: Tensor = PairedConvolution.apply(input, weight, bias, *geometry)
        return outputs


class PairedConvolution(torch.autograd.Function):
    """A depthwise convolution whose weight gradient is a sum over position pairs."""

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

        Each operation is differentiable, so second derivatives work.
        """
        # Read once: under activation checkpointing a second read is an error.
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


def saved_depthwise_weight(node: Any) -> Any:
    """Return where :class:`PairedConvolution` has saved the weight, or None.

    Like the stock backward pass, it uses the weight only for the input's gradient.
    """
    return saved_by_function(node, PairedConvolution, 1)


def pairs_apply(layer: Any, inputs: Tensor, weight: Tensor) -> bool:
    """Whether the sum over pairs is possible for this call, and faster."""
    return (
        not torch.compiler.is_compiling()
        and type(inputs) is Tensor
        and inputs.dim() == 4
        and torch.is_grad_enabled()
        and weight.requires_grad
        and inputs.device.type == "cpu"
        and inputs.layout is torch.strided
        and inputs.dtype in (torch.float32, torch.float64)
        and is_small_map(layer, *inputs.shape)
        and not torch.is_autocast_enabled("cpu")
        and not torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]
        and not function_transforms_active()
        and not forward_mode_active()
    )


def is_small_map(
    layer: Any, batch: int, channels: int, height: int, width: int
) -> bool:
    """Whether pairs are faster on maps of this size, by the measured rule."""
    kernel_height, kernel_width = layer.kernel_size
    window_height, window_width = (
        d * (k - 1) + 1 for d, k in zip(layer.dilation, layer.kernel_size, strict=True)
    )
    (top, left), (row_stride, column_stride) = layer.padding, layer.stride
    # The first row of the map in which a window begins.
    first_row = -top % row_stride
    output_height = (height + 2 * top - window_height) // row_stride + 1
    output_width = (width + 2 * left - window_width) // column_stride + 1
    pairs = height * width * output_height * output_width
    return (
        first_row + window_height > height
        and pairs <= MOST_PAIRS * kernel_height * kernel_width
        and batch * channels >= FEWEST_MAPS
    )


def _weight_gradient(
    inputs: Tensor, grad: Tensor, weight: Tensor, geometry: tuple[Any, ...]
) -> Tensor:
    products = _pixels(inputs).unsqueeze(2) * _pixels(grad).unsqueeze(1)
    pairs = products.sum(0).flatten(0, 1)
    elements = _kernel_elements(
        inputs.shape[2:], grad.shape[2:], weight.shape[2:], *geometry
    )
    index = torch.tensor(elements, device=pairs.device)
    sums = pairs.new_zeros(weight[0].numel() + 1, len(weight))
    sums.index_add_(0, index, pairs)
    # In the weight's memory layout, which the optimiser expects.
    return torch.empty_like(weight).copy_(sums[:-1].t().view(weight.shape))


def _pixels(maps: Tensor) -> Tensor:
    """Return maps as (batch, positions, channels); no copy if channels-last."""
    return maps.permute(0, 2, 3, 1).flatten(1, 2).contiguous()


@cache
def _kernel_elements(
    inputs: tuple[int, ...],
    outputs: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
) -> tuple[int, ...]:
    """Return the kernel element of each pair of an input and an output position.

    Pairs that belong to no element get the number after the last element.
    """

    def along(axis: int, position: int, output: int) -> int | None:
        offset = position + padding[axis] - output * stride[axis]
        element, rest = divmod(offset, dilation[axis])
        return element if rest == 0 and 0 <= element < kernel[axis] else None

    no_element = math.prod(kernel)
    elements = []
    for y, x, v, u in product(*map(range, (*inputs, *outputs))):
        row, column = along(0, y, v), along(1, x, u)
        if row is None or column is None:
            elements.append(no_element)
        else:
            elements.append(row * kernel[1] + column)
    return tuple(elements)
