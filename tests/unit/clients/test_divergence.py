"""Training that diverges: losses, weights and buffers that are not finite."""

import pytest
import torch
from torch import Tensor, nn

from clients import LocalTrainer, TrainingDivergedError, TrainSettings, eligible_layers
from tests.unit.clients.test_trainer import batchnormed, data


@pytest.mark.parametrize(
    ("where", "value"), [("data", "nan"), ("weights", "inf"), ("loss", "-inf")]
)
def test_a_loss_that_is_not_finite_is_divergence(where: str, value: str) -> None:
    class Faulty(LocalTrainer):
        def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
            loss = super().loss(outputs, targets)
            return loss * float(value) if where == "loss" else loss

    model, (inputs, targets) = batchnormed(), data(6, 2)
    if where == "data":
        inputs[3, 0, 1, 1] = float(value)
    if where == "weights":
        model[4].weight.data[1, 1] = float(value)
    random = torch.get_rng_state()
    trainer = Faulty(model, TrainSettings(batch_size=2, fa_layers=("4", "6")))
    with pytest.raises(TrainingDivergedError, match=r"the loss is -?(nan|inf) .* 0.01"):
        trainer.fit(inputs, targets)
    assert eligible_layers(model) == ["0", "4", "6"]
    assert not any("forward" in vars(m) for m in model.modules())
    assert torch.equal(torch.get_rng_state(), random)
    assert issubclass(TrainingDivergedError, RuntimeError)


def test_the_message_names_the_epoch() -> None:
    class Later(LocalTrainer):
        steps = 0

        def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
            self.steps += 1
            factor = float("nan") if self.steps > 4 else 1.0
            return super().loss(outputs, targets) * factor

    with pytest.raises(TrainingDivergedError, match="in local epoch 3"):
        Later(batchnormed(), TrainSettings(batch_size=2)).fit(*data(4, 2))


def test_weights_and_buffers_after_the_last_step_are_checked() -> None:
    """Every loss was finite."""

    class Overflowing(LocalTrainer):
        def edit_gradients(self) -> None:
            self.model[6].weight.grad.fill_(1e38)

    class Spoiling(LocalTrainer):
        def edit_gradients(self) -> None:
            self.model[1].running_var.fill_(float("inf"))

    settings = TrainSettings(learning_rate=10.0, epochs=1, fa_layers=("6",))
    with pytest.raises(TrainingDivergedError, match=r"6\.weight is not finite"):
        Overflowing(batchnormed(), settings).fit(*data(4, 2))
    with pytest.raises(TrainingDivergedError, match=r"1\.running_var is not finite"):
        Spoiling(batchnormed(), TrainSettings(epochs=1)).fit(*data(4, 2))


def test_a_mask_of_minus_infinity_is_not_divergence() -> None:
    model = batchnormed()
    model.register_buffer("mask", torch.full((2, 2), float("-inf")).triu(1))
    LocalTrainer(model, TrainSettings(epochs=1)).fit(*data(4, 2))


def test_extra_state_and_no_tensors_at_all() -> None:
    class Versioned(nn.Linear):
        def get_extra_state(self) -> dict[str, int]:
            return {"version": 1}

        def set_extra_state(self, state: dict[str, int]) -> None:
            pass

    model = nn.Sequential(nn.Flatten(), Versioned(16, 2))
    LocalTrainer(model, TrainSettings(epochs=1)).fit(*data(4, 2))

    class Constant(LocalTrainer):
        def compute_gradients(self, inputs: Tensor, targets: Tensor) -> Tensor:
            return inputs.mean()

    Constant(nn.Flatten(), TrainSettings(epochs=1)).fit(*data(4, 2))
