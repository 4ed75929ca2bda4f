"""SCAFFOLD: the server's c is the mean of the clients' control variates."""

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord

from clients import TrainSettings
from clients.methods.scaffold import ScaffoldTrainer
from strategies.methods.scaffold import CONTROL, STEP_LENGTH, FLFAScaffold, Scaffold
from tests.unit.strategies.fakes import FakeGrid, ndarrays, record
from tests.unit.strategies.methods.cases import (
    LAYERS,
    NODES,
    PARAMETERS,
    assert_close,
    client,
    drive,
    frozen,
    planned,
    replies_in,
    sent_in,
    weights,
)
from tests.unit.strategies.methods.torch_client import TorchClient

ROUNDS = 5


def test_every_train_message_carries_c():
    """Of the parameters only, in their type; zero in round 1; nobody else gets it.

    c is updated in place on the server; what was sent stays what it was.
    """
    grid = FakeGrid(NODES, client)
    strategy = FLFAScaffold(layers=LAYERS, num_clients=NODES, parameters=PARAMETERS)
    shapes = {name: weights()[name].shape for name in PARAMETERS}
    expected = {k: np.zeros(shape, np.float32) for k, shape in shapes.items()}
    arrays = weights()
    for server_round in range(1, ROUNDS + 1):
        config = ConfigRecord()
        messages = strategy.configure_train(server_round, arrays, config, grid)
        messages = list(messages)
        arrays, _ = strategy.aggregate_train(
            server_round, grid.send_and_receive(messages)
        )
        for message in messages:
            assert set(message.content) == {"arrays", "config", CONTROL}
            assert frozen(ndarrays(message.content[CONTROL])) == frozen(expected)
        expected = dict(strategy.control)
        assert all(values.any() for values in expected.values())
    (message, *_) = strategy.configure_evaluate(1, arrays, ConfigRecord(), grid)
    assert set(message.content) == {"arrays", "config"}


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_the_model_moves_by_the_uniform_mean(rate):
    """W += s mean(w_i - W), though the nodes have 11 to 14 samples."""
    grid = FakeGrid(NODES, client)
    strategy = Scaffold(
        num_clients=NODES,
        parameters=PARAMETERS,
        global_learning_rate=rate,
        fraction_train=0.5,
    )
    for server_round, arrays in drive(strategy, grid, weights(np.float64), 3):
        sent, replies = sent_in(grid, server_round), replies_in(grid, NODES // 2)
        want = {
            k: sent[k] + rate * np.mean([r[k] - sent[k] for r in replies], 0)
            for k in PARAMETERS
        }
        assert_close({k: arrays[k].numpy() for k in PARAMETERS}, want, 1e-14)


def test_two_rounds_by_hand():
    """N = 4, two nodes with step length 1, W = 0, c = 0.

    Updates -4 and -8: changes 4 and 8, c = 12/4 = 3, W = -6. Updates -2 and 2:
    changes 2 - 3 and -2 - 3, c = 3 - 6/4 = 3/2, W stays.
    """
    plan = {1: {"fc.weight": (-4.0, -8.0)}, 2: {"fc.weight": (-2.0, 2.0)}}
    strategy = Scaffold(num_clients=4)
    first = record({"fc.weight": np.zeros(1)})
    seen = [
        (arrays["fc.weight"].numpy().item(), strategy.control["fc.weight"].item())
        for _, arrays in drive(strategy, FakeGrid(2, planned(plan)), first, 2)
    ]
    assert seen == [(-6.0, 3.0), (-6.0, 1.5)]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_agrees_with_the_real_clients(momentum):
    """The trainers' own c_i and step lengths, rounds of half the nodes, BatchNorm."""
    nodes = TorchClient(
        ScaffoldTrainer,
        TrainSettings(learning_rate=0.05, batch_size=4, momentum=momentum),
    )
    strategy = Scaffold(
        num_clients=NODES, parameters=nodes.parameters, fraction_train=0.5
    )
    grid = FakeGrid(NODES, nodes)
    for server_round, arrays in drive(strategy, grid, nodes.initial, 4):
        mean = {
            name: sum(
                (own[name] for own in nodes.states.values()), start=torch.zeros(())
            ).numpy()
            / NODES
            for name in nodes.parameters
        }
        assert_close(strategy.control, mean, 1e-12)
        assert list(arrays) == list(nodes.initial)
        assert set(sent_in(grid, server_round)) == set(nodes.initial)
    lengths = {r.content["metrics"][STEP_LENGTH] for r in grid.replied}
    assert len(lengths) > 1
