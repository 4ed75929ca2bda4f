"""Small clients, lone samples, and training that diverges."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from clients import (
    LocalTrainer,
    TrainingDivergedError,
    TrainSettings,
    eligible_layers,
)
from tests.unit.clients.cases import same_bits


def network() -> nn.Sequential:
    """End in BatchNorm on a 1x1 map, where torch refuses to train on one sample."""
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(1, 3, 4),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(3, 4),
        nn.BatchNorm1d(4),
        nn.Linear(4, 2),
    )


def data(size: int) -> tuple[Tensor, Tensor]:
    return torch.randn(size, 1, 4, 4), torch.arange(size) % 2


def values(model: nn.Module) -> list[Tensor]:
    return [t.clone() for t in model.state_dict().values()]


def test_torch_itself_refuses_a_lone_sample() -> None:
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        network()(torch.ones(1, 1, 4, 4))


def test_a_lone_sample_at_the_end_is_normalised_by_running_statistics() -> None:
    inputs, targets = data(5)
    ours, theirs = network(), network()
    settings = TrainSettings(batch_size=4, epochs=2, seed=1)
    LocalTrainer(ours, settings).fit(inputs, targets)

    order = torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(
        theirs.parameters(), lr=0.01, momentum=0.9, weight_decay=0.001
    )
    for _ in range(2):
        permutation = torch.randperm(5, generator=order)
        for batch in (permutation[:4], permutation[4:]):
            theirs.train(len(batch) > 1)  # its BatchNorm is all that has a mode
            optimizer.zero_grad()
            outputs = theirs(inputs[batch])
            functional.cross_entropy(outputs, targets[batch]).backward()
            optimizer.step()
    assert same_bits(values(ours), values(theirs))
    # Only the two full batches have entered the running statistics.
    assert ours[1].num_batches_tracked == ours[5].num_batches_tracked == 2
    assert all(m.training for m in ours.modules())


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_client_with_less_than_a_batch_trains(size: int) -> None:
    model = network()
    before = values(model)
    metrics = LocalTrainer(model, TrainSettings(fa_layers=("4", "6"))).fit(*data(size))
    assert metrics["steps"] == 5
    assert metrics["train-loss"] > 0
    changed = {
        name
        for (name, now), then in zip(model.state_dict().items(), before, strict=True)
        if not torch.equal(now, then)
    }
    assert {"0.weight", "4.weight", "6.weight", "6.bias"} <= changed
    # One sample leaves the running statistics alone, two do not.
    assert ("1.running_mean" in changed) == ("5.num_batches_tracked" in changed)
    assert ("1.running_mean" in changed) == (size > 1)


def test_a_norm_layer_that_was_frozen_stays_frozen() -> None:
    class Frozen(LocalTrainer):
        def begin(self, inputs: Tensor, targets: Tensor) -> None:
            self.model[1].eval()

    model = network()
    before = values(model[1])[2:]
    Frozen(model, TrainSettings(batch_size=2)).fit(*data(3))
    assert not model[1].training
    assert same_bits(values(model[1])[2:], before)
    assert model[5].training


def test_no_samples_is_an_error_before_anything_happens() -> None:
    model = network().eval()
    before = values(model)
    with pytest.raises(ValueError, match="0 samples"):
        LocalTrainer(model, TrainSettings()).fit(*data(0))
    assert same_bits(values(model), before)
    assert not model.training


def test_a_wrong_layer_is_an_error_and_nothing_is_trained() -> None:
    model = network()
    before = values(model)
    settings = TrainSettings(fa_layers=("6", "gone"))
    with pytest.raises(ValueError, match="'gone'"):
        LocalTrainer(model, settings).fit(*data(4))
    assert same_bits(values(model), before)
    assert eligible_layers(model) == ["0", "4", "6"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("where", ["data", "weights", "loss"])
def test_what_is_not_finite_is_divergence(value: float, where: str) -> None:
    class Faulty(LocalTrainer):
        def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
            loss = super().loss(outputs, targets)
            return loss * value if where == "loss" else loss

    model, (inputs, targets) = network(), data(6)
    if where == "data":
        inputs[3, 0, 1, 1] = value
    if where == "weights":
        model[4].weight.data[1, 1] = value
    state = torch.get_rng_state()
    trainer = Faulty(model, TrainSettings(batch_size=2, fa_layers=("4", "6")))
    with pytest.raises(TrainingDivergedError, match=r"the loss is -?(nan|inf) .* 0.01"):
        trainer.fit(inputs, targets)
    assert eligible_layers(model) == ["0", "4", "6"]
    assert not any("forward" in vars(m) for m in model.modules())
    assert torch.equal(torch.get_rng_state(), state)


def test_the_message_names_the_epoch() -> None:
    class Later(LocalTrainer):
        steps = 0

        def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
            self.steps += 1
            return super().loss(outputs, targets) * (
                float("nan") if self.steps > 4 else 1.0
            )

    with pytest.raises(TrainingDivergedError, match="in local epoch 3"):
        Later(network(), TrainSettings(batch_size=2)).fit(*data(4))


def test_the_last_step_is_looked_at_too() -> None:
    """Every loss was finite; the last step is one too far."""

    class Overflowing(LocalTrainer):
        def edit_gradients(self) -> None:
            self.model[6].weight.grad.fill_(1e38)

    settings = TrainSettings(learning_rate=10.0, epochs=1, fa_layers=("6",))
    model = network()
    with pytest.raises(TrainingDivergedError, match=r"6\.weight is not finite"):
        Overflowing(model, settings).fit(*data(4))
    assert eligible_layers(model) == ["0", "4", "6"]


def test_a_method_that_spoils_a_buffer_is_noticed() -> None:
    class Spoiling(LocalTrainer):
        def edit_gradients(self) -> None:
            self.model[1].running_var.fill_(float("inf"))

    with pytest.raises(TrainingDivergedError, match=r"1\.running_var is not finite"):
        Spoiling(network(), TrainSettings(epochs=1)).fit(*data(4))


def test_divergence_is_a_runtime_error() -> None:
    assert issubclass(TrainingDivergedError, RuntimeError)


def test_an_error_in_a_hook_is_passed_on_and_the_block_is_left() -> None:
    class Broken(LocalTrainer):
        def edit_gradients(self) -> None:
            raise KeyError("control")

    model, samples = network(), data(4)
    state = torch.get_rng_state()
    with pytest.raises(KeyError, match="control"):
        Broken(model, TrainSettings(fa_layers=("4",))).fit(*samples)
    assert eligible_layers(model) == ["0", "4", "6"]
    assert torch.equal(torch.get_rng_state(), state)


def test_one_model_for_many_clients_in_turn() -> None:
    """Nothing is left in the model but its weights: each round is as on a new one."""
    shared, received = network(), network().state_dict()
    for client in range(3):
        torch.manual_seed(client)
        inputs, targets = data(4 + client)
        settings = TrainSettings(batch_size=4, seed=client, fa_layers=("4", "6"))
        shared.load_state_dict(received)
        fresh = network()
        for model in (shared, fresh):
            LocalTrainer(model, settings).fit(inputs, targets)
        assert same_bits(values(shared), values(fresh))


def test_a_mask_of_minus_infinity_is_not_divergence() -> None:
    model = network()
    model.register_buffer("mask", torch.full((2, 2), float("-inf")).triu(1))
    LocalTrainer(model, TrainSettings(epochs=1)).fit(*data(4))


def test_extra_state_in_the_state_dict() -> None:
    class Versioned(nn.Linear):
        def get_extra_state(self) -> dict[str, int]:
            return {"version": 1}

        def set_extra_state(self, state: dict[str, int]) -> None:
            pass

    model = nn.Sequential(nn.Flatten(), Versioned(16, 2))
    LocalTrainer(model, TrainSettings(epochs=1)).fit(*data(4))


def test_after_an_error_on_a_lone_sample_the_norms_train_again() -> None:
    class Broken(LocalTrainer):
        def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
            raise KeyError("control")

    model = network()
    with pytest.raises(KeyError):
        Broken(model, TrainSettings()).fit(*data(1))
    assert all(m.training for m in model.modules())


def test_targets_that_do_not_match_are_an_error() -> None:
    trainer = LocalTrainer(network(), TrainSettings())
    with pytest.raises(ValueError, match="4 samples and 5 targets"):
        trainer.fit(torch.ones(4, 2), torch.zeros(5, dtype=torch.int64))


@pytest.mark.parametrize("name", ["batch_size", "epochs"])
def test_settings_that_train_on_nothing_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be 1 or more, not 0"):
        TrainSettings(**{name: 0})
