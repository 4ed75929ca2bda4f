"""With neutral settings a method is Flower's FedAvg, bit for bit."""

from functools import cache

import numpy as np
import pytest
from flwr.app import MessageType
from flwr.serverapp.strategy import FedAvg

from strategies import FA_LAYERS
from tests.unit.strategies.fakes import FakeGrid, bits, record, start
from tests.unit.strategies.methods.cases import (
    CHANGE_THE_SERVER,
    METHODS,
    NODES,
    ONLY_CONFIG,
    client,
    drive,
    planned,
    weights,
)

ROUNDS = 3
SOME = {"fraction_train": 0.5, "fraction_evaluate": 0.7}
STILL = {"server_momentum": 0.0, "server_learning_rate": 1.0}
NEUTRAL = {
    **dict.fromkeys(("dampened", "heavy-ball", "nesterov"), STILL),
    "FedACG": {"lookahead": 0.0},  # beta is the clients' alone
    **{name: {} for name in ONLY_CONFIG},  # the server is FedAvg's for any setting
}


def alike(message):
    """Clients with the same number of samples."""
    reply = client(message)
    reply["metrics"]["num-examples"] = 12
    return reply


def run(strategy, who=client, dtype=np.float32, rounds=ROUNDS):
    grid = FakeGrid(NODES, who)
    result, history = start(strategy, grid, weights(dtype), rounds, {"lr": 0.25})
    return result, history, grid


@cache
def fedavg(dtype=np.float32):
    return run(FedAvg(**SOME), dtype=dtype)


def received(grid):
    """Who got which arrays, in which order."""
    return [
        (
            message.metadata.dst_node_id,
            message.metadata.message_type,
            bits(message.content["arrays"]),
        )
        for message in grid.received
    ]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", NEUTRAL)
def test_is_fedavg(name, dtype):
    """Returned, sent, evaluated and measured alike, over rounds of half the nodes."""
    want, want_history, want_grid = fedavg(dtype)
    strategy = METHODS[name].build(flfa=True, **NEUTRAL[name], **SOME)
    got, got_history, got_grid = run(strategy, dtype=dtype)
    assert bits(got.arrays) == bits(want.arrays)
    assert got_history == want_history
    assert received(got_grid) == received(want_grid)
    assert got.train_metrics_clientapp == want.train_metrics_clientapp
    assert got.evaluate_metrics_clientapp == want.evaluate_metrics_clientapp
    assert len({str(entry) for entry in want_history}) == ROUNDS + 1, "nothing trained"


@pytest.mark.parametrize("name", NEUTRAL)
def test_the_sign_of_a_zero_stays(name):
    """Clients that change nothing: -0 it is, though -0 + 0 m would be +0."""
    first = record({"stem.weight": np.array([-0.0]), "fc.weight": np.array([-0.0])})
    grid = FakeGrid(2, planned({r: {"fc.weight": (-0.0, -0.0)} for r in (1, 2, 3)}))
    strategy = METHODS[name].build(flfa=True, **NEUTRAL[name])
    for server_round, arrays in drive(strategy, grid, first, 3):
        assert bits(arrays) == bits(first)
        for message in grid.train_messages(server_round):
            assert bits(message.content["arrays"]) == bits(first)


def test_scaffold_with_equal_clients_is_fedavg():
    """n/(n + ... + n) and 1/K are both the double nearest to 1/K: the same weights.

    In round 1 real clients have nothing to correct. These never look at the control
    variate, so for them it holds in all rounds.
    """
    want, want_history, _ = run(FedAvg(**SOME), alike)
    strategy = METHODS["Scaffold"].build(flfa=True, global_learning_rate=1.0, **SOME)
    got, got_history, got_grid = run(strategy, alike)
    assert got_history == want_history
    assert got.train_metrics_clientapp == want.train_metrics_clientapp
    for message in got_grid.train_messages(1):
        control = message.content["control"]
        assert all(not array.numpy().any() for array in control.values())


@pytest.mark.parametrize("name", CHANGE_THE_SERVER)
def test_the_comparison_can_fail(name):
    """Settings that are not neutral give another model, or send another one."""
    _, want, want_grid = fedavg()
    _, got, got_grid = run(METHODS[name].build(**SOME))
    assert got[0] == want[0]
    assert received(got_grid) != received(want_grid)
    assert got[2] != want[2]
    assert got[3] != want[3]


@pytest.mark.parametrize("name", METHODS)
def test_flfa_adds_nothing_but_the_layers(name):
    """The fake clients do not look at the layers: ``FLFAX`` must be ``X``."""
    case = METHODS[name]
    want, want_history, want_grid = run(case.build(**SOME))
    got, got_history, got_grid = run(case.build(flfa=True, **SOME))
    assert got_history == want_history
    assert received(got_grid) == received(want_grid)
    assert got.train_metrics_clientapp == want.train_metrics_clientapp
    assert got_grid.fa_layers(1) == []
    for server_round in range(2, ROUNDS + 1):
        assert got_grid.fa_layers(server_round) in (["stem"], ["fc"])
    for message in want_grid.received:
        assert FA_LAYERS not in message.content["config"]
    for message in got_grid.received:
        train = message.metadata.message_type == MessageType.TRAIN
        assert (FA_LAYERS in message.content["config"]) == train


@pytest.mark.parametrize("name", CHANGE_THE_SERVER)
def test_the_global_model_is_what_is_evaluated(name):
    """On the server and on the clients: a look-ahead is for training only."""
    _, history, grid = run(METHODS[name].build())
    evaluated = [
        bits(message.content["arrays"])
        for message in grid.received
        if message.metadata.message_type == MessageType.EVALUATE
    ]
    assert evaluated == [entry for entry in history[1:] for _ in range(NODES)]
