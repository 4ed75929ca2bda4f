"""FedProx, FedACG and FedDyn: gradient edits relative to the received weights."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from clients import TrainSettings
from clients.methods.anchor import Anchor
from clients.methods.fedacg import FedACGTrainer
from clients.methods.feddyn import FedDynTrainer
from clients.methods.fedprox import FedProxTrainer
from tests.unit.clients.cases import move_weights, same_bits
from tests.unit.clients.federated import (
    apart,
    bits,
    by_hand,
    data,
    extras,
    mlp,
    normed,
    of,
    trained,
    weights,
)

SETTINGS = TrainSettings(learning_rate=0.05, batch_size=5, epochs=3, weight_decay=0.01)


def edited(model: nn.Module, trainer: FedProxTrainer) -> list[Tensor]:
    """Return the gradients after the edit; there were zeros before."""
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    with torch.no_grad():
        trainer.edit_gradients()
    return [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("mu", [1e-3, 1.0, -0.5])
def test_the_edit_is_the_gradient_of_the_proximal_term(mu: float) -> None:
    """BatchNorm's weight and bias included, its running statistics not."""
    model, (inputs, targets) = normed(), data()
    received = weights(model)
    trainer = FedProxTrainer(model, SETTINGS, {"proximal-mu": mu})
    trainer.begin(inputs, targets)
    move_weights(model)
    buffers = [b.clone() for b in model.buffers()]
    terms = [
        ((p - w) ** 2).sum() for p, w in zip(model.parameters(), received, strict=True)
    ]
    expected = torch.autograd.grad(mu / 2 * sum(terms), list(model.parameters()))
    assert apart(edited(model, trainer), expected) < 1e-6
    assert "norm.weight" in trainer.anchor.names
    assert same_bits(list(model.buffers()), buffers)


@pytest.mark.parametrize("clip_norm", [0.0, 0.3])
@pytest.mark.parametrize(
    ("kind", "key"), [(FedProxTrainer, "proximal-mu"), (FedACGTrainer, "fedacg-beta")]
)
def test_a_round_minimises_the_whole_objective(
    kind: type[FedProxTrainer], key: str, clip_norm: float
) -> None:
    """The pull goes through clipping and momentum, as the loss's gradient does."""
    model, (inputs, targets) = mlp().double(), data(dtype=torch.float64)
    received, mu = weights(model), 0.8

    def objective(net: nn.Module, batch: Tensor) -> Tensor:
        pairs = zip(net.parameters(), received, strict=True)
        square = torch.stack([((p - w) ** 2).sum() for p, w in pairs]).sum()
        return cross_entropy(net(inputs[batch]), targets[batch]) + mu / 2 * square

    given = TrainSettings(
        learning_rate=0.1, batch_size=5, epochs=3, clip_norm=clip_norm
    )
    ours, _, _ = trained(kind, model, given, (inputs, targets), {key: mu})
    theirs = by_hand(model, len(inputs), given, of(objective))
    assert apart(weights(ours), weights(theirs)) < 1e-12


def test_the_anchor_is_a_copy_from_which_the_update_is_computed() -> None:
    model = mlp()
    received = weights(model)
    anchor = Anchor(model)
    move_weights(model)
    assert same_bits(anchor.values, received)
    update = anchor.update()
    expected = [b - a for a, b in zip(received, weights(model), strict=True)]
    assert list(update) == [name for name, _ in model.named_parameters()]
    assert same_bits(list(update.values()), expected)
    assert not any(difference.requires_grad for difference in update.values())


def test_fedacg_is_fedprox_around_what_was_received() -> None:
    model, samples = normed(), data()
    prox, _, _ = trained(FedProxTrainer, model, SETTINGS, samples, {"proximal-mu": 0.3})
    acg, _, _ = trained(FedACGTrainer, model, SETTINGS, samples, {"fedacg-beta": 0.3})
    assert same_bits(bits(acg), bits(prox))


@pytest.mark.parametrize("state", ["none", "zero"])
def test_feddyns_first_round_is_fedprox(state: str) -> None:
    """A dual variable of zero adds nothing: no rounding either."""
    model, samples = normed(), data()
    zero = {k: torch.zeros_like(p) for k, p in model.named_parameters()}
    kept = {} if state == "none" else {"state": zero}
    prox, _, _ = trained(FedProxTrainer, model, SETTINGS, samples, {"proximal-mu": 0.3})
    dyn, _, trainer = trained(
        FedDynTrainer, model, SETTINGS, samples, {"feddyn-alpha": 0.3}, **kept
    )
    assert same_bits(bits(dyn), bits(prox))
    updates = [w - v for w, v in zip(dyn.parameters(), model.parameters(), strict=True)]
    assert same_bits(list(trainer.state().values()), [u.detach() for u in updates])


@pytest.mark.parametrize("alpha", [0.0, 0.3])
def test_feddyns_dual_variable_sums_the_updates(alpha: float) -> None:
    model, samples = normed(), data()
    state = extras("feddyn", model)["state"]
    ours, _, trainer = trained(
        FedDynTrainer, model, SETTINGS, samples, {"feddyn-alpha": alpha}, state=state
    )
    new = trainer.state()
    assert list(new) == [name for name, _ in model.named_parameters()]
    for name, q in new.items():
        update = ours.get_parameter(name).detach() - model.get_parameter(name).detach()
        assert torch.equal(q, state[name] + update)
        assert not q.requires_grad
    ours.head.weight.data.zero_()
    assert torch.equal(trainer.state()["first.bias"], new["first.bias"])
    assert new["head.weight"].any()


def test_three_rounds_of_feddyn_minimise_the_papers_objective() -> None:
    """L(w) - <G, w> + alpha/2 |w - W|^2, and G -= alpha (w - W) after the round.

    Between the rounds the server sends other weights than the client ended with.
    """
    alpha, settings = 0.4, TrainSettings(learning_rate=0.1, batch_size=5, epochs=2)
    inputs, targets = data(dtype=torch.float64)
    sent = mlp().double()
    gradient = [torch.zeros_like(p) for p in sent.parameters()]
    state: dict[str, Tensor] = {}
    for _ in range(3):
        received = weights(sent)

        def objective(
            net: nn.Module,
            batch: Tensor,
            received: list[Tensor] = received,
            gradient: list[Tensor] = gradient,
        ) -> Tensor:
            loss = cross_entropy(net(inputs[batch]), targets[batch])
            for p, w, g in zip(net.parameters(), received, gradient, strict=True):
                loss = loss - (g * p).sum() + alpha / 2 * ((p - w) ** 2).sum()
            return loss

        theirs = by_hand(sent, len(inputs), settings, of(objective))
        ours, _, trainer = trained(
            FedDynTrainer,
            sent,
            settings,
            (inputs, targets),
            {"feddyn-alpha": alpha},
            state=state,
        )
        assert apart(weights(ours), weights(theirs)) < 1e-12
        state = trainer.state()
        gradient = [
            g - alpha * (p - w)
            for g, p, w in zip(gradient, weights(theirs), received, strict=True)
        ]
        assert apart([-alpha * q for q in state.values()], gradient) < 1e-11
        sent = copy.deepcopy(ours)
        move_weights(sent, 0.1)
