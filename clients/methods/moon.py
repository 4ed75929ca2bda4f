"""MOON (Li et al., CVPR 2021): contrast of the global and the last local model."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..head import capture_features, classifier_head
from ..trainer import LocalTrainer
from .frozen import FrozenOutputs

__all__ = ["MOONTrainer"]

EPSILON = 1e-12
"""Smallest norm to divide by, the same as in ``functional.normalize``."""


class MOONTrainer(LocalTrainer):
    """Add the batch mean of ``mu log(1 + exp((cos(z, z_p) - cos(z, z_g)) / T))``.

    z are the features before the head (no projection head, as in the FLFA paper's
    earlier code), z_g those of the received model, z_p those of this client's model
    when it last participated. z_g and z_p come from frozen models in evaluation mode.
    They are computed once a round, or in every step if the inputs are augmented. A
    client without state skips the term: with z_p = z_g its gradient would be zero.
    mu = 0 is FedAvg.
    """

    def begin(self, inputs: Tensor, targets: Tensor) -> None:
        """Freeze the received and the previous local model."""
        self.mu = self.number("moon-mu")
        self.temperature = self.number("moon-temperature")
        self.active = self.mu != 0 and bool(self.received_state)
        if self.mu != 0:
            classifier_head(self.model)  # raise in the first round, not in a later one
        if self.active:
            previous = copy.deepcopy(self.model)
            previous.load_state_dict(self.received_state)
            self.global_features, self.previous_features = (
                FrozenOutputs(model, _features, inputs, augmented=self.augmented)
                for model in (self.model, previous)
            )

    def compute_gradients(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Fill the gradients of the loss plus the contrastive term."""
        if not self.active:
            return super().compute_gradients(inputs, targets)
        with capture_features(self.model) as captured:
            outputs = self.model(inputs)
        loss = self.loss(outputs, targets)
        features = captured[0]
        contrast, gradient = self._contrast(inputs, features.detach().flatten(1))
        # The contrast enters at the features, with its gradient in closed form: an
        # autograd graph for it would cost more than the cosines.
        gradient = (self.mu * gradient).view_as(features)
        torch.autograd.backward((loss, features), (None, gradient))
        return loss.detach() + self.mu * contrast

    def state(self) -> dict[str, Tensor]:
        """Return the trained model; nothing if mu is 0, when no round will read it."""
        if self.mu == 0:
            return {}
        return {k: v.detach().clone() for k, v in self.model.state_dict().items()}

    def _contrast(self, inputs: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean contrast of a batch and its gradient with respect to z."""
        with torch.no_grad():
            z_g, z_p = (
                functional.normalize(frozen.for_batch(self.batch, inputs))
                for frozen in (self.global_features, self.previous_features)
            )
            difference = z_p - z_g
            length = torch.linalg.vector_norm(z, dim=1, keepdim=True).clamp_min(EPSILON)
            unit = z / length
            cosines = (unit * difference).sum(1, keepdim=True)
            logits = cosines / self.temperature
            slope = torch.sigmoid(logits) / (self.temperature * len(z) * length)
            # Features that are all zero have no direction, hence no gradient.
            slope = torch.where(length > EPSILON, slope, 0.0)
            gradient = slope * (difference - cosines * unit)
            return functional.softplus(logits).mean(), gradient


def _features(model: nn.Module, inputs: Tensor) -> Tensor:
    with capture_features(model) as captured:
        model(inputs)
    return captured[0].flatten(1)
