"""``LayerSelection``: which layers it chooses, and what it scores them by."""

import math

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.exception import InconsistentMessageReplies
from flwr.serverapp.strategy import FedAvg

from strategies import FLFAFedAdam, FLFAFedAvg, FLFAFedAvgM, LayerSelection
from tests.unit.strategies.fakes import (
    FakeGrid,
    answer,
    bits,
    ndarrays,
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
HALF = pytest.approx(1 / math.sqrt(2), rel=1e-15)


def weights(layers="abc"):
    arrays = {f"{layer}.weight": np.zeros(2, np.float32) for layer in layers}
    return record({**arrays, "a.bias": np.zeros(1, np.float32)})


def plan(*rounds):
    """Return a client with the given updates of a, b and c in each round."""
    names = [f"{layer}.weight" for layer in LAYERS]
    named = [dict(zip(names, updates or (), strict=False)) for updates in rounds]
    return plan_client(dict(enumerate(named, start=1)))


def run(rounds, client, **arguments):
    """Return the strategy, and the layers of every round's train messages."""
    strategy = FLFAFedAvg(layers=LAYERS, **arguments)
    grid = FakeGrid(2, client)
    start(strategy, grid, weights(), rounds)
    return strategy, [grid.fa_layers(r) for r in range(1, rounds + 1)]


def one_round(strategy, arrays, client, nodes=2, server_round=1):
    grid = FakeGrid(nodes, client)
    messages = strategy.configure_train(server_round, arrays, ConfigRecord(), grid)
    replies = list(grid.send_and_receive(messages))
    return strategy.aggregate_train(server_round, iter(replies)), grid


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        # Scores 1, 0, 1/sqrt2; then 0, 1/sqrt2, 1; then 1/sqrt2, 1, 0.
        ({}, [[], ["b"], ["a"], ["c"]]),
        ({"rule": "highest"}, [[], ["a"], ["c"], ["b"]]),
        ({"rule": "lowest", "num_layers": 2}, [[], ["b", "c"], ["a", "b"], ["c", "a"]]),
        ({"rule": "highest", "num_layers": 3}, [[], [*"acb"], [*"cba"], [*"bac"]]),
        ({"rule": "fixed", "fixed_layers": ["c", "a"]}, [["c", "a"]] * 4),
        ({"rule": "none"}, [[]] * 4),
        # Mean 0.569, most above it (0.431, 0.138; -0.569): skewness < 0, so highest.
        ({"rule": "auto"}, [[], ["a"], ["c"], ["b"]]),
    ],
)
def test_layers_of_four_rounds_by_hand(arguments, expected):
    rounds = [
        (SAME, OPPOSITE, ORTHOGONAL),
        (OPPOSITE, ORTHOGONAL, SAME),
        (ORTHOGONAL, SAME, OPPOSITE),
        (SAME, SAME, SAME),
    ]
    strategy, layers = run(4, plan(*rounds), **arguments)
    assert layers == expected
    assert strategy.scores == {"a": 1.0, "b": 1.0, "c": 1.0}
    assert strategy.first_scores == {"a": 1.0, "b": 0.0, "c": HALF}


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


@pytest.mark.parametrize("first", [None, (ZERO, ZERO, ZERO)])
def test_auto_is_decided_by_the_first_round_that_is_scored(first):
    """Round 1 fails on every node, or changes nothing; round 2 (0, 0, 1): lowest."""
    rounds = [first, (OPPOSITE, OPPOSITE, SAME), (OPPOSITE, SAME, SAME), (SAME,) * 3]
    strategy, layers = run(4, plan(*rounds), rule="auto")
    assert layers == [[], [], ["a"], ["a"]]
    assert strategy.first_scores == {"a": 0.0, "b": 0.0, "c": 1.0}


def test_a_layer_without_a_score_is_not_chosen():
    rounds = [(ZERO, SAME, OPPOSITE), (ZERO, ZERO, ZERO), (SAME, SAME, SAME)]
    strategy, layers = run(3, plan(*rounds), num_layers=3)
    assert layers == [[], ["c", "b"], []]
    assert strategy.selected == ["a", "b", "c"]


def test_observed_layers_are_scored_but_never_chosen():
    strategy = FLFAFedAvg(layers=["a", "c"], num_layers=2, observed_layers=["b", "a"])
    one_round(strategy, weights(), plan((SAME, OPPOSITE, ORTHOGONAL)))
    assert strategy.scores == {"a": 1.0, "c": HALF}
    assert strategy.observed_scores == {"b": 0.0}
    assert strategy.last_aggregate.scores == {"a": 1.0, "c": HALF, "b": 0.0}
    assert strategy.first_scores == strategy.scores
    assert strategy.selected == ["c", "a"]


def formula(grid, sent, name):
    """Return z of the paper over the replies of a grid, with all updates in memory."""
    replies = [ndarrays(reply.content["arrays"])[name] for reply in grid.replied]
    updates = [(values - ndarrays(sent)[name]).ravel() for values in replies]
    mean = np.mean(updates, axis=0)
    cosines = [g @ mean / np.linalg.norm(g) / np.linalg.norm(mean) for g in updates]
    return float(np.mean(cosines))


def test_scores_are_the_formula_in_every_round():
    """With a server optimiser, whose new model is not the mean of the replies."""
    strategy = FLFAFedAdam(layers=["a", "b"], eta=0.05)
    rng = np.random.default_rng(0)
    arrays = record(
        {"a.weight": rng.normal(size=(4, 3)), "b.weight": rng.normal(size=5)}
    )
    for server_round in (1, 2, 3):
        (new, _), grid = one_round(strategy, arrays, noisy_client, 5, server_round)
        assert bits(grid.received[0].content["arrays"]) == bits(arrays)
        for layer in "ab":
            want = formula(grid, arrays, f"{layer}.weight")
            assert strategy.scores[layer] == pytest.approx(want, rel=0, abs=1e-9)
        assert strategy.selected == [min(strategy.scores, key=strategy.scores.get)]
        arrays = new


class LookAhead(FedAvg):
    """A base that sends other arrays than the ones it is given."""

    def configure_train(self, server_round, arrays, config, grid):
        ahead = ndarrays(arrays)
        ahead["b.weight"] += 100
        return super().configure_train(server_round, record(ahead), config, grid)


def test_scores_are_relative_to_the_arrays_that_were_sent():
    """The updates of ``b`` cancel out, those of ``a`` are orthogonal: b is lowest.

    Relative to the arrays given to ``configure_train`` every update of ``b`` would be
    about (100, 100), with the score 1, and ``a`` the lowest.
    """
    strategy = type("Mine", (LayerSelection, LookAhead), {})(layers=["a", "b"])
    (arrays, _), grid = one_round(
        strategy, weights(), plan((ORTHOGONAL, OPPOSITE, ZERO))
    )
    sent = ndarrays(grid.received[0].content["arrays"])
    assert sent["b.weight"].tolist() == [100, 100]
    assert strategy.scores == {"a": HALF, "b": 0.0}
    assert strategy.selected == ["b"]
    assert ndarrays(arrays)["b.weight"].tolist() == [100, 100]


def test_scores_are_not_weighted_by_the_number_of_examples():
    """Mean (1/2, 1/2) whatever the numbers: 1/sqrt2. Weighted 99:1 it were 0.505.

    Node 3 fails, and counts for nothing.
    """
    updates = {1: (1.0, 0.0), 2: (0.0, 1.0)}

    def client(message):
        node = message.metadata.dst_node_id
        if node == 3:
            return Error(code=1, reason="planned")
        arrays = {"a.weight": np.array(updates[node])}
        return answer(arrays, 99 if node == 1 else 1, loss=float(node))

    strategy = FLFAFedAvg(layers=["a"])
    (arrays, metrics), _ = one_round(strategy, weights("a"), client, nodes=3)
    assert ndarrays(arrays)["a.weight"] == pytest.approx([0.99, 0.01])
    assert metrics == MetricRecord({"loss": 0.99 * 1 + 0.01 * 2})
    assert strategy.scores["a"] == pytest.approx(1 / math.sqrt(2), rel=0, abs=1e-15)


def test_a_round_in_which_everything_fails_changes_nothing():
    strategy = FLFAFedAvgM(layers=["a", "b"])
    (arrays, _), _ = one_round(strategy, weights(), plan((SAME, OPPOSITE, ZERO)))
    before = (strategy.selected[:], dict(strategy.scores), dict(strategy.first_scores))
    assert before[0] == ["b"]
    for client in (plan_client({}), lambda _: None):  # errors only; no reply at all
        result, grid = one_round(strategy, arrays, client, server_round=2)
        assert result == (None, None)
        assert grid.fa_layers(2) == ["b"]
        assert (strategy.selected, strategy.scores, strategy.first_scores) == before
        assert strategy.last_aggregate is None


class Constant(FedAvg):
    """A base that accepts any reply."""

    def aggregate_train(self, server_round, replies):
        return weights(), MetricRecord()


def with_records(*names):
    """Return a client whose records with these names are alike, but for the last."""

    def client(message):
        sign = 1.0 if message.metadata.dst_node_id == 1 else -1.0
        arrays = dict.fromkeys(("a.weight", "b.weight"), np.array([1.0, 0.0]))
        reply = {name: record(arrays) for name in names}
        reply[names[-1]] = record({**arrays, "b.weight": np.array([sign, 0.0])})
        return RecordDict({**reply, "metrics": MetricRecord({"num-examples": 1})})

    return client


@pytest.mark.parametrize("cls", [FLFAFedAvg, LayerSelection])
def test_the_only_array_record_is_scored_under_any_name(cls):
    """Flower averages it under any name as well."""
    strategy = cls(layers=["a", "b"])
    (arrays, _), _ = one_round(strategy, weights("ab"), with_records("other"))
    assert strategy.scores == {"a": 1.0, "b": 0.0}
    assert ndarrays(arrays)["a.weight"].tolist() == [1.0, 0.0]


def test_of_several_array_records_the_strategys_own_is_scored():
    strategy = type("Mine", (LayerSelection, Constant), {})(layers=["a", "b"])
    one_round(strategy, weights(), with_records("aside", "arrays"))
    assert strategy.scores == {"a": 1.0, "b": 0.0}
    with pytest.raises(ValueError, match=r"'a' has no array 'a\.weight'"):
        one_round(strategy, weights(), with_records("aside", "more"))


@pytest.mark.parametrize("cls", [FLFAFedAvg, LayerSelection])
def test_replies_that_cannot_be_scored(cls):
    def run(arrays):
        strategy = cls(layers=["a"])
        one_round(strategy, weights("a"), lambda message: answer(arrays(message)))

    with pytest.raises(InconsistentMessageReplies):
        run(lambda message: {str(message.metadata.dst_node_id): np.ones(2)})
    with pytest.raises(ValueError, match=r"'a' has no array 'a\.weight'"):
        run(lambda message: {"b.weight": np.ones(2)})
    with pytest.raises(ValueError, match=r"'a'.*\(3,\).*\(2,\)"):
        run(lambda message: {"a.weight": np.ones(3)})


def test_aggregation_before_configuration():
    grid = FakeGrid(1, noisy_client)
    config = ConfigRecord({"server-round": 1})
    content = RecordDict({"arrays": weights("a"), "config": config})
    replies = list(grid.send_and_receive([Message(content, 1, "train")]))
    with pytest.raises(RuntimeError, match="configure_train"):
        FLFAFedAvg(layers=["a"]).aggregate_train(1, replies)
    errors = [Message(Error(code=1), reply_to=grid.received[0])]
    assert FLFAFedAvg(layers=["a"]).aggregate_train(1, errors) == (None, None)
