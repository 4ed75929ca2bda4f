"""What the scores are taken from: this round's valid replies and what was sent."""

import math
import tracemalloc

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

SAME = ((1.0, 0.0), (1.0, 0.0))  # z = 1
OPPOSITE = ((1.0, 0.0), (-1.0, 0.0))  # z = 0
ORTHOGONAL = ((1.0, 0.0), (0.0, 1.0))  # z = 1/sqrt2


def weights(*layers):
    return record({f"{x}.weight": np.zeros(2, np.float32) for x in layers or "ab"})


def one_round(strategy, arrays, client, nodes, server_round=1):
    grid = FakeGrid(nodes, client)
    messages = strategy.configure_train(server_round, arrays, ConfigRecord(), grid)
    replies = list(grid.send_and_receive(messages))
    return strategy.aggregate_train(server_round, iter(replies)), grid


def formula(grid, sent, name):
    """z of the paper over the replies a grid has seen, the long way round."""
    start_ = ndarrays(sent)[name].astype(np.float64).ravel()
    replies = [r for r in grid.replied if not r.has_error()]
    updates = [
        ndarrays(r.content["arrays"])[name].astype(np.float64).ravel() - start_
        for r in replies
    ]
    mean = np.mean(updates, axis=0)
    cosines = [g @ mean / np.linalg.norm(g) / np.linalg.norm(mean) for g in updates]
    return float(np.mean(cosines))


class LookAhead(FedAvg):
    """A base that sends other arrays than the ones it is given."""

    def configure_train(self, server_round, arrays, config, grid):
        ahead = ndarrays(arrays)
        ahead["b.weight"] += 100
        return super().configure_train(server_round, record(ahead), config, grid)


class FLFALookAhead(LayerSelection, LookAhead):
    pass


def test_scores_are_relative_to_what_was_sent():
    """The updates of ``b`` cancel out, those of ``a`` are orthogonal: b is lowest.

    Relative to the arrays given to ``configure_train`` every update of ``b`` would be
    about (100, 100), with the score 1, and ``a`` the lowest.
    """

    strategy = FLFALookAhead(layers=["a", "b"])
    client = plan_client({1: {"a.weight": ORTHOGONAL, "b.weight": OPPOSITE}})
    (arrays, _), grid = one_round(strategy, weights(), client, 2)
    assert ndarrays(grid.received[0].content["arrays"])["b.weight"].tolist() == [
        100,
        100,
    ]
    assert strategy.scores == {"a": pytest.approx(1 / math.sqrt(2)), "b": 0.0}
    assert strategy.selected == ["b"]
    assert ndarrays(arrays)["b.weight"].tolist() == [100, 100]


@pytest.mark.parametrize(
    "strategy",
    [
        FLFAFedAvg(layers=["a", "b"]),
        FLFAFedAvgM(layers=["a", "b"], server_momentum=0.9, server_learning_rate=0.3),
        FLFAFedAdam(layers=["a", "b"], eta=0.05),
    ],
    ids=lambda s: type(s).__name__,
)
def test_scores_are_the_formula_in_every_round(strategy):
    """With a server optimiser too, whose own arrays differ from the aggregated ones."""
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


def test_error_replies_are_ignored():
    """Node 3 fails: K = 2, z(a) = 1/sqrt2 and z(b) = 0."""
    client = plan_client(
        {1: {"a.weight": (*ORTHOGONAL, None), "b.weight": (*OPPOSITE, None)}}
    )
    strategy = FLFAFedAvg(layers=["a", "b"])
    (arrays, _), grid = one_round(strategy, weights(), client, 3)
    assert sum(r.has_error() for r in grid.replied) == 1
    assert strategy.scores == {"a": pytest.approx(1 / math.sqrt(2)), "b": 0.0}
    assert ndarrays(arrays)["a.weight"].tolist() == [0.5, 0.5]


def test_clients_are_not_weighted_by_their_number_of_samples():
    """Mean (1/2, 1/2) whatever the numbers: 1/sqrt2. Weighted 99:1 it were 0.505."""
    updates = {1: (1.0, 0.0), 2: (0.0, 1.0)}

    def client(message):
        node = message.metadata.dst_node_id
        return answer({"a.weight": np.array(updates[node])}, 99 if node == 1 else 1)

    strategy = FLFAFedAvg(layers=["a"])
    (arrays, _), _ = one_round(strategy, weights("a"), client, 2)
    assert ndarrays(arrays)["a.weight"] == pytest.approx([0.99, 0.01])
    assert strategy.scores["a"] == pytest.approx(1 / math.sqrt(2), rel=0, abs=1e-15)


@pytest.mark.parametrize("cls", [FLFAFedAvg, FLFAFedAvgM, FLFAFedAdam])
def test_a_round_in_which_everything_fails_changes_nothing(cls):
    updates = {"a.weight": SAME, "b.weight": OPPOSITE}
    strategy = cls(layers=["a", "b"])
    (arrays, _), _ = one_round(strategy, weights(), plan_client({1: updates}), 2)
    before = (strategy.selected[:], dict(strategy.scores), dict(strategy.first_scores))
    assert before[0] == ["b"]
    for client in (plan_client({}), lambda _: None):  # only errors; not even those
        got, grid = one_round(strategy, arrays, client, 2, 2)
        assert got == (None, None)
        assert grid.fa_layers(2) == ["b"]
        assert (strategy.selected, strategy.scores, strategy.first_scores) == before
    grid = FakeGrid(2, plan_client({}))
    start(strategy, grid, arrays, 2)
    assert [grid.fa_layers(1), grid.fa_layers(2)] == [["b"], ["b"]]


def test_inconsistent_replies_raise_as_in_the_base():
    def client(message):
        node = message.metadata.dst_node_id
        names = ["a.weight"] if node == 1 else ["a.weight", "more"]
        return answer(dict.fromkeys(names, np.ones(2)))

    with pytest.raises(InconsistentMessageReplies):
        one_round(FLFAFedAvg(layers=["a"]), weights("a"), client, 2)


def test_a_reply_without_the_layer_names_it():
    def client(message):
        return answer({"b.weight": np.ones(2)})

    with pytest.raises(ValueError, match=r"'a' has no array 'a\.weight'"):
        one_round(FLFAFedAvg(layers=["a"]), weights(), client, 2)


def test_a_reply_of_another_shape_names_the_layer():
    def client(message):
        return answer({"a.weight": np.ones(3)})

    with pytest.raises(ValueError, match=r"'a'.*\(3,\).*\(2,\)"):
        one_round(FLFAFedAvg(layers=["a"]), weights("a"), client, 2)


def test_aggregation_before_configuration():
    grid = FakeGrid(1, noisy_client)
    config = ConfigRecord({"server-round": 1})
    content = RecordDict({"arrays": weights("a"), "config": config})
    replies = list(grid.send_and_receive([Message(content, 1, "train")]))
    with pytest.raises(RuntimeError, match="configure_train"):
        FLFAFedAvg(layers=["a"]).aggregate_train(1, replies)
    errors = [Message(Error(code=1), reply_to=grid.received[0])]
    assert FLFAFedAvg(layers=["a"]).aggregate_train(1, errors) == (None, None)


def test_observed_layers_are_scored_but_never_chosen():
    updates = {"a.weight": SAME, "b.weight": OPPOSITE, "c.weight": ORTHOGONAL}
    strategy = FLFAFedAvg(layers=["a", "c"], num_layers=2, observed_layers=["b", "a"])
    one_round(strategy, weights(*"abc"), plan_client({1: updates}), 2)
    assert strategy.scores == {"a": 1.0, "c": pytest.approx(1 / math.sqrt(2))}
    assert strategy.observed_scores == {"b": 0.0}
    assert strategy.first_scores == strategy.scores
    assert strategy.selected == ["c", "a"]


def test_scoring_decodes_one_reply_at_a_time():
    """The peak above the replies themselves does not depend on their number."""

    def peak(number):
        size = 40_000
        strategy = FLFAFedAvg(layers=["a"])
        content = answer({"a.weight": np.ones(size, np.float32)})
        grid = FakeGrid(number, lambda _: content)
        arrays = record({"a.weight": np.zeros(size, np.float32)})
        messages = strategy.configure_train(1, arrays, ConfigRecord(), grid)
        replies = list(grid.send_and_receive(messages))
        tracemalloc.start()
        try:
            strategy.aggregate_train(1, replies)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(2)
    assert peak(40) <= 1.1 * peak(8)


def test_metrics_are_the_bases():
    def client(message):
        node = message.metadata.dst_node_id
        return answer({"a.weight": np.ones(2)}, node, loss=float(node))

    (_, metrics), _ = one_round(FLFAFedAvg(layers=["a"]), weights("a"), client, 2)
    assert metrics == MetricRecord({"loss": 1 / 3 * 1 + 2 / 3 * 2})


def test_auto_decides_in_the_first_round_that_has_a_score():
    """Round 1: no update. Round 2: z = 0, 0, 1, skewed to the low end: lowest."""
    strategy = FLFAFedAvg(layers=["a", "b", "c"], rule="auto")
    zero = ((0.0, 0.0), (0.0, 0.0))
    updates = {
        1: dict.fromkeys(("a.weight", "b.weight", "c.weight"), zero),
        2: {"a.weight": OPPOSITE, "b.weight": OPPOSITE, "c.weight": SAME},
    }
    one_round(strategy, weights(*"abc"), plan_client(updates), 2)
    assert (strategy.selected, strategy.first_scores) == ([], {})
    one_round(strategy, weights(*"abc"), plan_client(updates), 2, server_round=2)
    assert strategy.first_scores == {"a": 0.0, "b": 0.0, "c": 1.0}
    assert strategy.selected == ["a"]
