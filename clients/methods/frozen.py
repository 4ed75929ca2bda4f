"""What a model that is not trained says about the local samples."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ..buffers import kept_buffers

__all__ = ["FrozenOutputs"]

BATCH = 512

Output = Callable[[nn.Module, Tensor], Tensor]


class FrozenOutputs:
    """The outputs of a model as it is now, for any batch of the local samples.

    Computed for all samples at once and looked up, or, where the samples are augmented
    and never the same again, batch by batch. In evaluation mode and without gradients.

    Parameters
    ----------
    model : nn.Module
        The model; left as it is, and free to be trained afterwards.
    output : Callable[[nn.Module, Tensor], Tensor]
        What is computed from the model and a batch: one row a sample.
    samples : Tensor
        All local samples.
    augmented : bool
        Whether the samples change from step to step.
    """

    def __init__(
        self, model: nn.Module, output: Output, samples: Tensor, *, augmented: bool
    ) -> None:
        self._output = output
        self._model: nn.Module | None = None
        if augmented:
            self._model = copy.deepcopy(model).eval().requires_grad_(False)
            return
        with _evaluating(model), kept_buffers(model), torch.no_grad():
            batches = torch.split(samples, BATCH)
            self._known = torch.cat([output(model, batch) for batch in batches])

    def of(self, batch: Tensor, inputs: Tensor) -> Tensor:
        """Return the outputs for a batch, given its samples' places and its inputs."""
        if self._model is None:
            return self._known[batch]
        with torch.inference_mode():  # the cheapest there is ...
            outputs = self._output(self._model, inputs)
        return outputs.clone()  # ... but autograd takes nothing that was made in it


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode; restore the mode of each of its modules."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
