"""What ``LayerSelection`` sends, round by round, under Flower's own loop."""

import math

import numpy as np
import pytest
from flwr.app import ConfigRecord, MessageType
from flwr.serverapp.strategy import FedAvg

from strategies import FA_LAYERS, FLFAFedAdam, FLFAFedAvg, FLFAFedAvgM, LayerSelection
from strategies.rules import RULES
from tests.unit.strategies.fakes import (
    FakeGrid,
    noisy_client,
    plan_client,
    record,
    start,
)

LAYERS = ["a", "b", "c"]
# Two clients. Exactly representable, so that scores by hand are exact.
SAME = ((1.0, 0.0), (1.0, 0.0))  # z = 1
OPPOSITE = ((1.0, 0.0), (-1.0, 0.0))  # z = 0
ORTHOGONAL = ((1.0, 0.0), (0.0, 1.0))  # z = 1/sqrt2
ZERO = ((0.0, 0.0), (0.0, 0.0))  # no score


def weights():
    arrays = {f"{layer}.weight": np.zeros(2, np.float32) for layer in LAYERS}
    return record({**arrays, "a.bias": np.zeros(1, np.float32)})


def plan(*rounds):
    """From the updates of a, b and c in each round to a client."""
    names = [f"{layer}.weight" for layer in LAYERS]
    return plan_client(
        {
            i: dict(zip(names, r, strict=True))
            for i, r in enumerate(rounds, start=1)
            if r
        }
    )


def run(rounds, client, **kwargs):
    """The layers every train message of rounds 1, 2, ... has carried."""
    strategy = FLFAFedAvg(layers=LAYERS, **kwargs)
    grid = FakeGrid(2, client)
    start(strategy, grid, weights(), rounds)
    return strategy, [grid.fa_layers(r) for r in range(1, rounds + 1)]


@pytest.mark.parametrize(
    ("kwargs", "expected"),
    [
        # Scores 1, 0, 1/sqrt2; then 0, 1/sqrt2, 1; then 1/sqrt2, 1, 0.
        ({}, [[], ["b"], ["a"], ["c"]]),
        ({"rule": "lowest"}, [[], ["b"], ["a"], ["c"]]),
        ({"rule": "highest"}, [[], ["a"], ["c"], ["b"]]),
        ({"rule": "lowest", "num_layers": 2}, [[], ["b", "c"], ["a", "b"], ["c", "a"]]),
        ({"rule": "highest", "num_layers": 3}, [[], [*"acb"], [*"cba"], [*"bac"]]),
        ({"rule": "fixed", "fixed_layers": ["c", "a"]}, [["c", "a"]] * 4),
        ({"rule": "none"}, [[]] * 4),
        # Mean 0.569, most above it (0.431, 0.138; -0.569): skewness < 0, so highest.
        ({"rule": "auto"}, [[], ["a"], ["c"], ["b"]]),
    ],
)
def test_layers_of_four_rounds_by_hand(kwargs, expected):
    rounds = [
        (SAME, OPPOSITE, ORTHOGONAL),
        (OPPOSITE, ORTHOGONAL, SAME),
        (ORTHOGONAL, SAME, OPPOSITE),
        (SAME, SAME, SAME),
    ]
    strategy, got = run(4, plan(*rounds), **kwargs)
    assert got == expected
    assert strategy.scores == {"a": 1.0, "b": 1.0, "c": 1.0}
    half = pytest.approx(1 / math.sqrt(2), rel=1e-15)
    assert strategy.first_scores == {"a": 1.0, "b": 0.0, "c": half}


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        # Scores 0, 0, 1: mean 1/3, m3 = (-1 - 1 + 8)/81 > 0, lowest; of equal ones
        # the first.
        ((OPPOSITE, OPPOSITE, SAME), [[], ["a"], ["a"], ["b"]]),
        # Scores 0, 1, 1: m3 < 0, highest.
        ((OPPOSITE, SAME, SAME), [[], ["b"], ["b"], ["a"]]),
    ],
)
def test_auto_is_decided_once(first, expected):
    """Later rounds are skewed the other way round, and it does not matter.

    Round 2 has the scores 0, 1, 1 (skewness < 0), round 3 has 1, 0, 0 (> 0).
    """
    later = [(OPPOSITE, SAME, SAME), (SAME, OPPOSITE, OPPOSITE), (SAME, SAME, SAME)]
    assert run(4, plan(first, *later), rule="auto")[1] == expected


def test_auto_is_decided_by_the_first_round_that_is_scored():
    """Round 1 fails on every node; round 2 (0, 0, 1) says lowest, and round 3 obeys."""
    rounds = [None, (OPPOSITE, OPPOSITE, SAME), (OPPOSITE, SAME, SAME), (SAME,) * 3]
    assert run(4, plan(*rounds), rule="auto")[1] == [[], [], ["a"], ["a"]]


def test_random_over_rounds():
    def sequence(seed, client):
        return run(8, client, rule="random", num_layers=2, selection_seed=seed)[1]

    first = sequence(0, noisy_client)
    assert first[0] == []
    assert all(len(set(names)) == 2 for names in first[1:])
    assert len({tuple(names) for names in first[1:]}) > 1
    assert sequence(0, noisy_client) == first
    assert sequence(0, plan(*[(SAME, ZERO, OPPOSITE)] * 8)) == first
    assert sequence(1, noisy_client) != first


def test_a_layer_without_a_score_is_not_chosen():
    rounds = [(ZERO, SAME, OPPOSITE), (ZERO, ZERO, ZERO), (SAME, SAME, SAME)]
    strategy, got = run(3, plan(*rounds), num_layers=3)
    assert got == [[], ["c", "b"], []]
    assert strategy.selected == ["a", "b", "c"]


@pytest.mark.parametrize("rule", list(RULES))
def test_every_train_message_carries_the_key_and_no_other_message(rule):
    fixed = ["b"] if rule == "fixed" else []
    strategy = FLFAFedAvg(layers=LAYERS, rule=rule, fixed_layers=fixed)
    grid = FakeGrid(5, noisy_client)
    start(strategy, grid, weights(), 3, {"lr": 0.5})
    train = [m for m in grid.received if m.metadata.message_type == MessageType.TRAIN]
    other = [m for m in grid.received if m.metadata.message_type != MessageType.TRAIN]
    assert (len(train), len(other)) == (15, 15)
    for message in train:
        assert list(message.content) == ["arrays", "config"]
        assert set(message.content["config"]) == {"lr", "server-round", FA_LAYERS}
    assert not any(FA_LAYERS in message.content["config"] for message in other)
    assert [grid.fa_layers(1)] == [fixed]


@pytest.mark.parametrize("cls", [LayerSelection, FLFAFedAvg, FLFAFedAvgM, FLFAFedAdam])
def test_the_callers_config_is_left_as_flower_leaves_it(cls):
    """Flower writes the round into it; the names of the layers stay out."""
    strategy = cls(layers=LAYERS, rule="fixed", fixed_layers=["a", "b"])
    grid = FakeGrid(2, noisy_client)
    values = {"lr": 0.5, "name": "x", "sizes": [1, 2], "flag": True, "raw": b"\0"}
    config = ConfigRecord(dict(values))
    for server_round in (1, 2):
        messages = list(strategy.configure_train(server_round, weights(), config, grid))
        left = {**values, "server-round": server_round}
        assert dict(config) == left
        for message in messages:
            sent = message.content["config"]
            assert sent is not config
            assert dict(sent) == {**left, FA_LAYERS: ["a", "b"]}
        # Nor does what a message becomes reach the caller or the strategy.
        sent["lr"] = 7.0
        sent[FA_LAYERS].append("x")
        assert dict(config) == left
        assert strategy.selected == ["a", "b"]


def test_the_caller_may_not_smuggle_layers_in():
    strategy = FLFAFedAvg(layers=LAYERS, rule="none")
    config = ConfigRecord({FA_LAYERS: ["a"]})
    for message in strategy.configure_train(
        1, weights(), config, FakeGrid(2, noisy_client)
    ):
        assert message.content["config"][FA_LAYERS] == []
    assert dict(config) == {FA_LAYERS: ["a"], "server-round": 1}


def test_sent_messages_do_not_change_when_the_selection_does():
    """A message is configured before, and may be sent after, the next choice."""
    strategy = FLFAFedAvg(layers=LAYERS)
    grid = FakeGrid(2, plan((SAME, OPPOSITE, SAME)))
    config = ConfigRecord()
    first = list(strategy.configure_train(1, weights(), config, grid))
    strategy.aggregate_train(1, grid.send_and_receive(first))
    second = list(strategy.configure_train(2, weights(), config, grid))
    assert [m.content["config"][FA_LAYERS] for m in first] == [[], []]
    assert [m.content["config"][FA_LAYERS] for m in second] == [["b"], ["b"]]
    assert {m.content["config"]["server-round"] for m in first} == {1}


def test_records_under_other_keys():
    strategy = FLFAFedAvg(layers=LAYERS, arrayrecord_key="w", configrecord_key="c")
    grid = FakeGrid(2, noisy_client)
    message = next(iter(strategy.configure_train(1, weights(), ConfigRecord(), grid)))
    assert list(message.content) == ["w", "c"]
    assert dict(message.content["c"]) == {"server-round": 1, FA_LAYERS: []}


def test_no_training():
    strategy = FLFAFedAvg(layers=LAYERS, fraction_train=0.0)
    grid = FakeGrid(2, noisy_client)
    assert list(strategy.configure_train(1, weights(), ConfigRecord(), grid)) == []
    assert strategy.aggregate_train(1, []) == (None, None)
    result, _ = start(strategy, grid, weights(), 2)
    assert len(result.evaluate_metrics_clientapp) == 2


def test_is_a_fedavg_and_can_log_its_summary(caplog):
    strategy = FLFAFedAvgM(layers=["conv1", "fc9"], rule="highest", server_momentum=0.5)
    assert isinstance(strategy, FedAvg)
    with caplog.at_level("INFO", logger="flwr"):
        strategy.summary()
    text = "".join(caplog.messages)
    assert all(word in text for word in ("highest", "conv1", "fc9", "FedAvgM", "0.5"))
