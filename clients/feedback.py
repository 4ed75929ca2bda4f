"""Autograd functions that send the error backwards through a feedback weight.

A layer with feedback alignment computes its output as always, but from a *detached*
input, so autograd derives the gradients of weight and bias and nothing else. One of the
functions below then joins input and output again: forwards it hands the output on,
backwards it gives the input the gradient through the feedback weight ``B`` in place of
the layer's own weight. No input gradient is computed twice or thrown away.

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

__all__ = ["ConvFeedback", "LinearFeedback"]


def _scaled(feedback: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return ``B`` in the precision of the incoming gradient (autocast)."""
    if scale is not None:
        feedback = feedback * scale
    return feedback.to(dtype)


class LinearFeedback(torch.autograd.Function):
    """Join input and output of ``y = x @ w.T + b``; the error returns as ``g @ B``."""

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
            weight = _scaled(feedback, scale, grad.dtype)
            # As one matrix: a batched product would repeat B for every sample.
            rows = grad.reshape(-1, weight.shape[0]) @ weight
            grad_inputs = rows.reshape(*grad.shape[:-1], weight.shape[1])
        return grad_inputs, grad, None, None


class ConvFeedback(torch.autograd.Function):
    """Join input and output of a convolution of any dimension, stride and groups."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        outputs: Tensor,
        feedback: Tensor,
        scale: Tensor | None,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int,
    ) -> Tensor:
        """Hand on ``outputs``; remember ``feedback`` and the convolution's geometry."""
        # The input decides size and memory layout of the kernels in the backward pass.
        # The convolution has saved the same storage already, so this costs nothing.
        ctx.save_for_backward(inputs, feedback, scale)
        ctx.geometry = (stride, padding, dilation, groups)
        return outputs.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the feedback gradient for the input, the true one for the output."""
        grad_inputs = None
        if ctx.needs_input_grad[0]:
            stride, padding, dilation, groups = ctx.geometry
            # Read once: under activation checkpointing a second look is an error.
            inputs, feedback, scale = ctx.saved_tensors
            # The primitive that autograd itself uses, with B in the weight's place: the
            # same kernels as backpropagation, hence the same bits when B is the weight.
            grad_inputs = torch.ops.aten.convolution_backward(
                grad,
                inputs,
                _scaled(feedback, scale, grad.dtype),
                None,
                stride,
                padding,
                dilation,
                False,
                [0] * len(stride),
                groups,
                [True, False, False],
            )[0]
        return grad_inputs, grad, None, None, None, None, None, None
