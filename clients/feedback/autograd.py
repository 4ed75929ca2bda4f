"""Autograd functions that propagate the error through a feedback weight.

The forward pass is unchanged. In the backward pass the input's gradient goes through
the feedback weight ``B`` in place of the layer's own weight; weight and bias get their
true gradients. No gradient is computed twice or thrown away.

``B = scale * feedback`` (paper, adaptive scaling). The product is computed in the
backward pass, where it is cheap, since a weight is smaller than the activations, and
need not be stored.

This file needs only torch and can be copied on its own.
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
    """Return ``B`` in the precision of the incoming gradient, which autocast sets."""
    if scale is not None:
        feedback = feedback * scale
    return feedback.to(dtype)


class LinearFeedback(torch.autograd.Function):
    """Join input and output of ``y = x @ w.T + b``; the input's gradient is ``g @ B``.

    ``outputs`` must come from the stock layer with a *detached* input, so that autograd
    derives only the gradients of weight and bias from them.
    """

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        outputs: Tensor,
        feedback: Tensor,
        scale: Tensor | None,
    ) -> Tensor:
        """Return ``outputs``; save ``feedback``, of shape (out, in), and ``scale``."""
        ctx.save_for_backward(feedback, scale)
        # A detached alias, not a view: an in-place activation may follow.
        return outputs.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        """Return the feedback gradient for the input, the true one for the output."""
        grad_inputs = None
        if ctx.needs_input_grad[0]:
            feedback, scale = ctx.saved_tensors
            weight = scaled(feedback, scale, grad.dtype)
            # One matrix product: a batched one would copy B for every sample.
            rows = grad.reshape(-1, weight.shape[0]) @ weight
            grad_inputs = rows.reshape(*grad.shape[:-1], weight.shape[1])
        return grad_inputs, grad, None, None


class ConvFeedback(torch.autograd.Function):
    """A convolution of 1 to 3 dimensions; the input's gradient goes through ``B``."""

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
        """Convolve with ``weight``; save ``feedback`` and its ``scale``."""
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
        """Return the input's feedback gradient, the others' true ones."""
        # Read once: under activation checkpointing a second read is an error.
        inputs, feedback, scale = ctx.saved_tensors
        # The primitive that autograd itself uses, with B in the weight's place. The
        # kernels are those of backpropagation, so the bits agree when B is the weight.
        # The gradients of weight and bias do not depend on the weight.
        gradients = torch.ops.aten.convolution_backward(
            grad,
            inputs,
            scaled(feedback, scale, grad.dtype),
            ctx.bias_sizes,
            *ctx.geometry,
            ctx.needs_input_grad[:3],
        )
        return (*gradients, *[None] * 6)
