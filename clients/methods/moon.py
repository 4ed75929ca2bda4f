"""MOON (Li et al., CVPR 2021): contrast with the global and the last local model."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..head import features_of, head_of
from ..trainer import LocalTrainer
from .frozen import FrozenOutputs

__all__ = ["MOONTrainer"]

EPSILON = 1e-12
"""The smallest length that is divided by, torch's own."""


class MOONTrainer(LocalTrainer):
    """Add ``mu log(1 + exp((cos(z, z_p) - cos(z, z_g)) / T))``, the batch's mean.

    z are the features before the head (no projection head, as in the FLFA paper's
    earlier code), z_g the received model's, z_p those of this client's model when it
    last took part. Both are of frozen models in evaluation mode and are computed once a
    round, or in every step where the inputs are augmented. A client without state skips
    the term: with z_p = z_g its gradient is zero. mu = 0 is FedAvg.
    """

    def begin(self, inputs: Tensor, targets: Tensor) -> None:
        """Freeze the two models to contrast with."""
        self.mu = self.number("moon-mu")
        self.temperature = self.number("moon-temperature")
        self.active = self.mu != 0 and bool(self.received_state)
        if self.mu != 0:
            head_of(self.model)  # raises now, not when the client comes back
        if self.active:
            previous = copy.deepcopy(self.model)
            previous.load_state_dict(self.received_state)
            self.global_features, self.previous_features = (
                FrozenOutputs(model, _features, inputs, augmented=self.augmented)
                for model in (self.model, previous)
            )

    def compute_gradients(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Fill the gradients of the loss with the contrastive term."""
        if not self.active:
            return super().compute_gradients(inputs, targets)
        with features_of(self.model) as seen:
            outputs = self.model(inputs)
        loss = self.loss(outputs, targets)
        features = seen[0]
        value, pull = self._contrast(inputs, features.detach().flatten(1))
        # The contrast enters at the features, with its gradient in closed form: an
        # autograd graph for it would cost more than the cosines.
        pulls = (self.mu * pull).view_as(features)
        torch.autograd.backward((loss, features), (None, pulls))
        return loss.detach() + self.mu * value

    def state(self) -> dict[str, Tensor]:
        """Return the model as it is sent; nothing will look at it if mu is 0."""
        if self.mu == 0:
            return {}
        return {k: v.detach().clone() for k, v in self.model.state_dict().items()}

    def _contrast(self, inputs: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean contrast of a batch and its gradient with respect to z."""
        with torch.no_grad():
            near, far = (
                functional.normalize(frozen.of(self.batch, inputs))
                for frozen in (self.global_features, self.previous_features)
            )
            apart = far - near
            length = torch.linalg.vector_norm(z, dim=1, keepdim=True).clamp_min(EPSILON)
            unit = z / length
            cosines = (unit * apart).sum(1, keepdim=True)
            logits = cosines / self.temperature
            slope = torch.sigmoid(logits) / (self.temperature * len(z) * length)
            # Features that are all zero have no direction to turn.
            slope = torch.where(length > EPSILON, slope, 0.0)
            pull = slope * (apart - cosines * unit)
            return functional.softplus(logits).mean(), pull


def _features(model: nn.Module, inputs: Tensor) -> Tensor:
    with features_of(model) as seen:
        model(inputs)
    return seen[0].flatten(1)
