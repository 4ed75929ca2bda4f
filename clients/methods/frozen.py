"""Outputs of a frozen model for the local samples (MOON, FedSOL)."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..model_state import evaluation_mode, preserved_buffers

__all__ = ["FrozenOutputs"]

BATCH_SIZE = 512

Output = Callable[[nn.Module, Tensor], Tensor]


class FrozenOutputs:
    """The outputs of a model with its current weights, for any batch of local samples.

    They are computed once for all samples and looked up. With augmentation, where no
    input occurs twice, they are computed batch by batch with a copy of the model. Both
    in evaluation mode and without gradients.

    Parameters
    ----------
    model : nn.Module
        The model. It is not changed and may be trained afterwards.
    output : Callable[[nn.Module, Tensor], Tensor]
        Computes one row for each sample from the model and a batch.
    samples : Tensor
        All local samples.
    augmented : bool
        Whether augmentation changes the samples from step to step.
    """

    def __init__(
        self, model: nn.Module, output: Output, samples: Tensor, *, augmented: bool
    ) -> None:
        self._output = output
        self._model: nn.Module | None = None
        if augmented:
            self._model = copy.deepcopy(model).eval().requires_grad_(False)
            return
        with evaluation_mode(model), preserved_buffers(model), torch.no_grad():
            batches = torch.split(samples, BATCH_SIZE)
            self._outputs = torch.cat([output(model, batch) for batch in batches])

    def for_batch(self, batch: Tensor, inputs: Tensor) -> Tensor:
        """Return the outputs for a batch, given its sample indices and its inputs."""
        if self._model is None:
            return self._outputs[batch]
        # Inference mode is the cheapest, but autograd accepts only a clone of what was
        # computed in it.
        with torch.inference_mode():
            outputs = self._output(self._model, inputs)
        return outputs.clone()
