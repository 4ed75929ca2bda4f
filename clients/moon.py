"""MOON (Li et al., CVPR 2021): contrast with the global and the last local model."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional

from .head import evaluated_on_all, features_of, head_of
from .trainer import LocalTrainer

__all__ = ["MOONTrainer"]


class MOONTrainer(LocalTrainer):
    """Add ``mu log(1 + exp((cos(z, z_p) - cos(z, z_g)) / T))``, the batch's mean.

    z are the features before the head (no projection head, as in the FLFA paper's
    earlier code), z_g the received model's, z_p those of this client's model when it
    last took part. Both are of frozen models in evaluation mode and are computed once a
    round. A client without state skips the term: with z_p = z_g its gradient is zero.
    mu = 0 is FedAvg.
    """

    def begin(self, inputs: Tensor, targets: Tensor) -> None:
        """Compute the features of the two frozen models."""
        self.mu = float(self.config["moon-mu"])
        self.temperature = float(self.config["moon-temperature"])
        self.active = self.mu != 0 and bool(self.received_state)
        if self.mu != 0:
            head_of(self.model)  # raises now, not when the client comes back
        if self.active:
            previous = copy.deepcopy(self.model)
            previous.load_state_dict(self.received_state)
            self.global_features = _features(self.model, inputs)
            self.previous_features = _features(previous, inputs)

    def compute_gradients(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Fill the gradients of the loss with the contrastive term."""
        if not self.active:
            return super().compute_gradients(inputs, targets)
        with features_of(self.model) as seen:
            outputs = self.model(inputs)
        loss = self.loss(outputs, targets) + self.mu * self._contrast(
            seen[0].flatten(1)
        )
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def state(self) -> dict[str, Tensor]:
        """Return the model as it is sent."""
        return {k: v.detach().clone() for k, v in self.model.state_dict().items()}

    def _contrast(self, features: Tensor) -> Tensor:
        near = functional.cosine_similarity(features, self.global_features[self.batch])
        far = functional.cosine_similarity(features, self.previous_features[self.batch])
        return functional.softplus((far - near) / self.temperature).mean()


def _features(model: nn.Module, inputs: Tensor) -> Tensor:
    def features(batch: Tensor) -> Tensor:
        with features_of(model) as seen:
            model(batch)
        return torch.flatten(seen[0], 1)

    return evaluated_on_all(model, inputs, features)
