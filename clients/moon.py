"""MOON (Li et al., CVPR 2021): contrast with the global and the last local model."""

from __future__ import annotations

import copy

from torch import Tensor, nn
from torch.nn import functional

from .frozen import FrozenOutputs
from .head import features_of, head_of
from .trainer import LocalTrainer

__all__ = ["MOONTrainer"]


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
        contrast = self._contrast(inputs, seen[0].flatten(1))
        loss = self.loss(outputs, targets) + self.mu * contrast
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def state(self) -> dict[str, Tensor]:
        """Return the model as it is sent."""
        return {k: v.detach().clone() for k, v in self.model.state_dict().items()}

    def _contrast(self, inputs: Tensor, features: Tensor) -> Tensor:
        near, far = (
            functional.normalize(frozen.of(self.batch, inputs))
            for frozen in (self.global_features, self.previous_features)
        )
        # Both cosines in one product: z is normalised, and differentiated, once.
        apart = (functional.normalize(features) * (far - near)).sum(1)
        return functional.softplus(apart / self.temperature).mean()


def _features(model: nn.Module, inputs: Tensor) -> Tensor:
    with features_of(model) as seen:
        model(inputs)
    return seen[0].flatten(1)
