"""FLFA changes nothing but the config: bit for bit Flower's own strategy."""

import numpy as np
import pytest
from flwr.app import ConfigRecord, MessageType
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM

from strategies import FA_LAYERS, FLFAFedAdam, FLFAFedAvg, FLFAFedAvgM
from tests.unit.strategies.fakes import FakeGrid, bits, noisy_client, record, start

PAIRS = {
    "FedAvg": (FedAvg, FLFAFedAvg, {}),
    "FedAvgM": (
        FedAvgM,
        FLFAFedAvgM,
        {"server_learning_rate": 0.5, "server_momentum": 0.9},
    ),
    "FedAdam": (FedAdam, FLFAFedAdam, {"eta": 0.03, "beta_1": 0.8, "tau": 1e-2}),
}
RULES = {
    "none": {"layers": [], "rule": "none"},
    "none with candidates": {"layers": ["conv", "fc"], "rule": "none"},
    "lowest": {"layers": ["conv", "fc"], "rule": "lowest"},
    "auto": {"layers": ["conv", "fc"], "rule": "auto", "observed_layers": ["half"]},
    "random": {"layers": ["conv", "fc"], "rule": "random", "num_layers": 2},
    "fixed": {"layers": ["conv", "fc"], "rule": "fixed", "fixed_layers": ["fc"]},
}
ROUNDS = 4


def weights():
    rng = np.random.default_rng(11)
    return record(
        {
            "conv.weight": rng.normal(size=(4, 3, 3, 3)).astype(np.float32),
            "conv.bias": rng.normal(size=4).astype(np.float32),
            "norm.running_mean": rng.normal(size=4),
            "half.weight": rng.normal(size=(2, 5)).astype(np.float16),
            "fc.weight": rng.normal(size=(2, 5)).astype(np.float32),
            "scale": np.float32(rng.normal()),
        }
    )


def run(strategy):
    grid = FakeGrid(6, noisy_client)
    result, history = start(strategy, grid, weights(), ROUNDS, {"lr": 0.25})
    return result, history, grid


def sent(grid):
    """Who was sent what, except for FLFA's own key."""
    return [
        (
            message.metadata.dst_node_id,
            message.metadata.message_type,
            list(message.content),
            bits(message.content["arrays"]),
            {k: v for k, v in message.content["config"].items() if k != FA_LAYERS},
        )
        for message in grid.received
    ]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("base", PAIRS)
def test_is_flowers_own_bit_for_bit(base, rule):
    """The fake clients ignore the layers, so every rule must give the same.

    Half of the nodes take part, so the sampling must be the same too.
    """
    plain, flfa, kwargs = PAIRS[base]
    kwargs = {**kwargs, "fraction_train": 0.5, "fraction_evaluate": 0.7}
    want, want_history, want_grid = run(plain(**kwargs))
    got, got_history, got_grid = run(flfa(**kwargs, **RULES[rule]))

    assert bits(got.arrays) == bits(want.arrays)
    assert got_history == want_history
    assert got.train_metrics_clientapp == want.train_metrics_clientapp
    assert got.evaluate_metrics_clientapp == want.evaluate_metrics_clientapp
    assert sent(got_grid) == sent(want_grid)

    assert len(want_history) == ROUNDS + 1
    assert len({str(entry) for entry in want_history}) == ROUNDS + 1, "nothing trained"
    assert len(want.train_metrics_clientapp) == ROUNDS
    assert len(want.evaluate_metrics_clientapp) == ROUNDS


@pytest.mark.parametrize("base", PAIRS)
def test_the_comparison_can_fail(base):
    """Clients that follow the layers do change the outcome."""
    _, flfa, kwargs = PAIRS[base]

    def aligned(message):
        reply = noisy_client(message)
        if message.metadata.message_type == MessageType.TRAIN:
            for layer in message.content["config"][FA_LAYERS]:
                reply["arrays"][f"{layer}.weight"] = message.content["arrays"][
                    f"{layer}.weight"
                ]
        return reply

    histories = []
    for rule in ("none", "lowest"):
        strategy = flfa(layers=["conv", "fc"], rule=rule, **kwargs)
        _, history = start(strategy, FakeGrid(3, aligned), weights(), 2)
        histories.append(history)
    assert histories[0][:2] == histories[1][:2], "round 1 has no layers"
    assert histories[0][2] != histories[1][2]


@pytest.mark.parametrize("base", PAIRS)
def test_the_optimisers_state_is_the_same_too(base):
    plain, flfa, kwargs = PAIRS[base]
    states = []
    for strategy in (plain(**kwargs), flfa(layers=["fc"], **kwargs)):
        run(strategy)
        own = {}
        for name in ("momentum_vector", "m_t", "v_t"):
            value = getattr(strategy, name, None)
            arrays = value.values() if isinstance(value, dict) else value or ()
            own[name] = [array.tobytes() for array in arrays]
        states.append(own)
    assert states[0] == states[1]
    counts = [len(arrays) for arrays in states[0].values()]
    assert (
        counts
        == {"FedAvg": [0, 0, 0], "FedAvgM": [6, 0, 0], "FedAdam": [0, 6, 6]}[base]
    )


@pytest.mark.parametrize("base", PAIRS)
def test_the_replies_reach_the_base_as_they_are(base):
    """An iterator of replies is as good as a list, and no reply is changed."""
    _, flfa, kwargs = PAIRS[base]
    results = []
    for wrap in (list, iter):
        strategy = flfa(layers=["fc"], **kwargs)
        grid = FakeGrid(1, noisy_client)
        strategy.min_train_nodes = strategy.min_available_nodes = 1
        messages = strategy.configure_train(1, weights(), ConfigRecord(), grid)
        replies = list(grid.send_and_receive(messages))
        before = [bits(reply.content["arrays"]) for reply in replies]
        arrays, metrics = strategy.aggregate_train(1, wrap(replies))
        assert [bits(reply.content["arrays"]) for reply in replies] == before
        results.append((bits(arrays), metrics))
    assert results[0] == results[1]
