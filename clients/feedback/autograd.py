"""Autograd functions that send the error backwards through a feedback weight.

Forwards they change nothing; backwards they give the input the gradient through the
feedback weight ``B`` in place of the layer's own weight, while weight and bias get
their true gradients. No gradient is computed twice or thrown away.

``B = scale * feedback`` (paper, adaptive scaling). The scale is applied to the weight
in the backward pass: the weight is smaller than the activations, and nothing is stored.

The file needs only torch and can be copied on its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["ConvFeedback", "LinearFeedback", "scaled"]

_CONVOLUTIONS: dict[int, Any] = {1: torch.conv1d, 2: torch.conv2d, 3: torch.conv3d}


def scaled(feedback: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return ``B`` in the precision of the incoming gradient (autocast)."""
    if scale is not None:
        feedback = feedback * scale
    return feedback.to(dtype)


class LinearFeedback(torch.autograd.Function):
    """Join input and output of ``y = x @ w.T + b``; the error returns as ``g @ B``.

    ``outputs`` come from the stock layer and a *detached* input: autograd derives the
    gradients of weight and bias from them and nothing else.
    """

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        outputs: Tensor,
        feedback: Tensor,
        scale: Tensor | None,
    ) -> Tensor:
        """Hand on ``outputs``; remember ``feedback`` (out, in) and its ``scale``."""
        ctx.save_for_backward(feedback, scale)
        # A detached alias and not a view: an in-place activation may follow.
        return outputs.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        """Return the feedback gradient for the input, the true one for the output."""
        grad_inputs = None
        if ctx.needs_input_grad[0]:
            feedback, scale = ctx.saved_tensors
            weight = scaled(feedback, scale, grad.dtype)
            # As one matrix: a batched product would repeat B for every sample.
            rows = grad.reshape(-1, weight.shape[0]) @ weight
            grad_inputs = rows.reshape(*grad.shape[:-1], weight.shape[1])
        return grad_inputs, grad, None, None


class ConvFeedback(torch.autograd.Function):
    """A convolution of any dimension, stride and groups; the error returns via B."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        feedback: Tensor,
        scale: Tensor | None,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int,
    ) -> Tensor:
        """Convolve with ``weight``; remember ``feedback`` and its ``scale``."""
        ctx.save_for_backward(inputs, feedback, scale)
        ctx.bias_sizes = None if bias is None else bias.shape
        ctx.geometry = (stride, padding, dilation, False, [0] * len(stride), groups)
        convolve = _CONVOLUTIONS[len(stride)]
        args = (stride, padding, dilation, groups)
        outputs: Tensor = convolve(inputs, weight, bias, *args)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the feedback gradient for the input, the true ones for the others."""
        # Read once: under activation checkpointing a second look is an error.
        inputs, feedback, scale = ctx.saved_tensors
        # The primitive that autograd itself uses, with B in the weight's place: the
        # same kernels as backpropagation, hence the same bits when B is the weight. The
        # gradients of weight and bias do not depend on the weight.
        gradients = torch.ops.aten.convolution_backward(
            grad,
            inputs,
            scaled(feedback, scale, grad.dtype),
            ctx.bias_sizes,
            *ctx.geometry,
            ctx.needs_input_grad[:3],
        )
        return (*gradients, *[None] * 6)
