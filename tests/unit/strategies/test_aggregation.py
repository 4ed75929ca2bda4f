"""``aggregate`` and ``OnePassFedAvg``: Flower's mean, bit for bit, scores and drift."""

from __future__ import annotations

import gc
import math
import tracemalloc
import weakref

import numpy as np
import pytest
from flwr.app import Array, ConfigRecord, Message, MetricRecord
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import FedAvg

from flfa_app.methods import ALGORITHMS
from strategies import (
    CheckedReplies,
    FLFAFedAdam,
    FLFAFedAvg,
    FLFAFedAvgM,
    LayerSelection,
    OnePassFedAvg,
    aggregation,
    layer_cosines,
    local_drift,
)
from strategies.aggregation import aggregate
from tests.federation import default_keys
from tests.unit.strategies.fakes import (
    NAMES,
    FakeGrid,
    answer,
    bits,
    changing,
    ndarrays,
    noisy_client,
    record,
    trained_replies,
    values_of,
    weights,
)

LAYERS = ["a", "b"]


@pytest.fixture
def read_again(monkeypatch):
    """The layers, and whether the drift, that took a second reading of the replies."""
    calls = []

    def measure(sent, replies, layers, parameters):
        if layers or parameters:
            calls.append((list(layers), bool(parameters)))
        return measure_replies(sent, replies, layers, parameters)

    measure_replies = aggregation.measure
    for module in ("aggregation", "selection"):
        monkeypatch.setattr(f"strategies.{module}.measure", measure)
    return calls


def replies_with(*arrays, weights=range(3, 99)):
    """Replies with these values under the name ``x``."""
    grid = FakeGrid(1, noisy_client)
    strategy = FedAvg(min_train_nodes=1, min_available_nodes=1)
    (message,) = strategy.configure_train(1, record({}), ConfigRecord(), grid)
    return [
        Message(answer({"x": values}, number, loss=0.3), reply_to=message)
        for values, number in zip(arrays, weights, strict=False)
    ]


def outcome(strategy, replies):
    """Arrays and metrics, or the type of the error."""
    try:
        arrays, metrics = strategy.aggregate_train(1, replies)
    except (ArithmeticError, TypeError, ValueError) as error:
        return type(error)
    return bits(arrays), [a.data for a in arrays.values()], metrics


ones, twos = np.ones((2, 3)), np.full((2, 3), 2.0)
ARRAYS = {
    "one reply": (ones,),
    "0-dimensional": (np.array(1.5, np.float32), np.array(2.5, np.float32)),
    "whole": (np.arange(4), np.arange(4) + 7),
    "bool": (np.array([True, False]), np.array([True, True])),
    "complex": (ones + 1j, twos - 2j),
    "half": (ones.astype(np.float16) / 3, twos.astype(np.float16) / 7),
    "Fortran": (np.asfortranarray(ones / 3), np.asfortranarray(twos / 7)),
    "Fortran and C": (np.asfortranarray(ones / 3), twos / 7),
    "big-endian": ((ones / 3).astype(">f4"), (twos / 7).astype(">f4")),
    "float32 and float64": (ones.astype(np.float32) / 3, twos / 7),
    "float32 and int64": (ones.astype(np.float32) / 3, twos.astype(np.int64)),
    "a shape that broadcasts": (ones, np.full(3, 2.0)),
}
NO_MEAN = {
    "float and complex": (ones, twos + 1j),
    "another shape": (np.ones(2), np.ones(3)),
    "words": (np.array(["a"]), np.array(["b"])),
}


@pytest.mark.parametrize("case", [*ARRAYS, *NO_MEAN])
def test_the_mean_is_flowers_bit_for_bit(case):
    """The encoded bytes and the order of the arrays too, or the same error."""
    arrays = {**ARRAYS, **NO_MEAN}[case]
    want = outcome(FedAvg(), replies_with(*arrays))
    assert outcome(OnePassFedAvg(), replies_with(*arrays)) == want
    assert isinstance(want, type) == (case in NO_MEAN)
    fractions = [0.3, 1e-9]
    want = outcome(FedAvg(), replies_with(*arrays, weights=fractions))
    assert outcome(OnePassFedAvg(), replies_with(*arrays, weights=fractions)) == want


@pytest.mark.parametrize(
    "case", [case for case in ARRAYS if case not in ("complex", "bool")]
)
def test_scores_and_drift_of_any_arrays(case):
    """Of arrays that differ too, and the mean stays Flower's."""
    replies = [record({"x.weight": values}) for values in ARRAYS[case]]
    decoded = [ndarrays(reply) for reply in replies]
    sent = {"x.weight": np.full_like(decoded[0]["x.weight"], 0.25)}
    numbers = range(3, 3 + len(replies))
    if case == "a shape that broadcasts":
        for layers, parameters in ((["x"], ()), ((), ["x.weight"])):
            with pytest.raises(ValueError, match=r"x.*\(3,\)"):
                aggregate(record(sent), replies, numbers, layers, parameters)
        return
    found = aggregate(record(sent), replies, numbers, ["x"], ["x.weight"])
    want = layer_cosines(sent, decoded, ["x"])
    assert found.scores == pytest.approx(want, rel=0, abs=1e-12, nan_ok=True)
    drift = local_drift(decoded, ["x.weight"])
    assert found.drift == pytest.approx(drift, rel=1e-12, abs=0)
    (want_mean,) = outcome(FedAvg(), replies_with(*ARRAYS[case]))[1]
    assert found.mean["x.weight"].data == want_mean


@pytest.mark.parametrize("sent", [np.zeros((2, 3), np.int64), np.zeros((2, 3), ">f4")])
def test_scores_where_other_types_were_sent(sent, read_again):
    replies = [record({"x.weight": values}) for values in (ones, twos * 3)]
    found = aggregate(record({"x.weight": sent}), replies, [1, 2], ["x"], ())
    assert found.scores == {"x": pytest.approx(1.0, abs=1e-15)}
    assert read_again == [(["x"], False)]


def test_errors_where_other_shapes_or_no_arrays_were_sent():
    replies = [record({"x.weight": ones})]
    with pytest.raises(ValueError, match=r"\(2, 3\), \(3, 2\) was sent"):
        aggregate(record({"x.weight": ones.T}), replies, [1], ["x"], ())
    with pytest.raises(ValueError, match=r"no array 'x\.weight' among the sent"):
        aggregate({}, replies, [1], ["x"], ())
    with pytest.raises(ValueError, match="not there: a reply has no such array"):
        aggregate({}, replies, [1], (), ["x.weight", "not there"])


def test_layers_in_the_order_in_which_they_are_given():
    replies = [record({"a.weight": ones, "b.weight": np.full((2, 3), math.nan)})]
    sent = record({"a.weight": twos, "b.weight": twos})
    for layers in (["a", "b"], ["b", "a"]):
        scores = aggregate(sent, replies, [1], layers, ()).scores
        assert list(scores) == layers
        assert (scores["a"], math.isnan(scores["b"])) == (1.0, True)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e200])
def test_a_drift_that_is_not_finite(value):
    """1e200 is finite, its square is not."""
    replies = [record({"x": ones}), record({"x": np.full((2, 3), value)})]
    drift = aggregate({}, replies, [1, 1], (), ["x"]).drift
    assert drift == math.inf if value == 1e200 else math.isnan(drift)


def test_metrics_are_aggregated_by_the_given_function():
    calls = []

    def function(contents, key):
        calls.append(([c["metrics"]["loss"] for c in contents], key))
        return MetricRecord({"mine": 1})

    strategy = OnePassFedAvg(train_metrics_aggr_fn=function)
    _, metrics = strategy.aggregate_train(1, iter(replies_with(ones, twos)))
    assert metrics == MetricRecord({"mine": 1})
    assert calls == [([0.3, 0.3], "num-examples")]


def test_the_strategy_measures_the_drift_of_its_parameters():
    strategy = OnePassFedAvg()
    replies = trained_replies(strategy)
    strategy.aggregate_train(1, replies)
    assert math.isnan(strategy.last_aggregate.drift), "no parameters are given"
    for names in (NAMES[:3], NAMES[1:2]):
        strategy.drift_parameters = names
        arrays, _ = strategy.aggregate_train(1, replies)
        want = local_drift(values_of(replies), names)
        assert strategy.last_aggregate.drift == pytest.approx(want, rel=1e-12, abs=0)
        assert dict(arrays) == strategy.last_aggregate.mean
        assert strategy.last_aggregate.scores == {}
    strategy.aggregate_train(1, replies[:1])
    assert strategy.last_aggregate.drift == 0.0
    strategy.aggregate_train(1, [])
    assert strategy.last_aggregate is None, "nothing was aggregated in the last round"


def slow_scores(replies):
    return layer_cosines(ndarrays(weights()), values_of(replies), LAYERS)


def assert_measured(found, replies):
    assert found.scores == pytest.approx(slow_scores(replies), rel=0, abs=1e-12)
    drift = local_drift(values_of(replies), NAMES[:3])
    assert found.drift == pytest.approx(drift, rel=1e-12, abs=0)


@pytest.mark.parametrize("name", [*ALGORITHMS, "Flower's FedAvgM", "Flower's FedAdam"])
def test_every_method_reads_replies_once(name, read_again):
    selection = {"layers": LAYERS, "drift_parameters": NAMES[:3]}
    if name in ALGORITHMS:
        known = {"parameters": NAMES[:3], "num_clients": 5}
        strategy = ALGORITHMS[name].build_strategy(default_keys(), known, **selection)
    else:
        strategy = (FLFAFedAvgM if "FedAvgM" in name else FLFAFedAdam)(**selection)

    def client(message):
        reply = noisy_client(message)
        for key in getattr(strategy, "reply_metrics", ()):
            reply["metrics"][key] = 0.5
        return reply

    replies = trained_replies(strategy, client=client)
    mean, _ = OnePassFedAvg().aggregate_train(1, replies)
    strategy.aggregate_train(1, replies)
    assert_measured(strategy.last_aggregate, replies)
    assert strategy.scores == strategy.last_aggregate.scores
    assert bits(strategy.last_aggregate.mean) == bits(mean)
    assert read_again == []


class Dropping(OnePassFedAvg):
    """A base that leaves out the last reply."""

    def aggregate_train(self, server_round, replies):
        return super().aggregate_train(server_round, list(replies)[:-1])


class Clipping(OnePassFedAvg):
    """A base that puts other arrays into the replies."""

    def aggregate_train(self, server_round, replies):
        for reply in replies:
            arrays = reply.content["arrays"]
            for name, array in arrays.items():
                clipped = np.clip(array.numpy(), -0.1, 0.1)
                arrays[name] = Array(np.asarray(clipped))
        return super().aggregate_train(server_round, replies)


class Reversing(OnePassFedAvg):
    """A base that averages the replies in another order."""

    def aggregate_train(self, server_round, replies):
        return super().aggregate_train(server_round, list(replies)[::-1])


class EmptyingFedAvg(FedAvg):
    """A base of its own kind that empties the replies, as Flower's QFedAvg does."""

    def aggregate_train(self, server_round, replies):
        aggregated = super().aggregate_train(server_round, replies)
        for reply in replies:
            reply.content["arrays"].clear()
        return aggregated


class Emptying(EmptyingFedAvg, OnePassFedAvg):
    """A base that averages in one pass, and then empties the replies."""


@pytest.mark.parametrize(
    "base",
    [
        FedAvg,
        flower.FedMedian,
        EmptyingFedAvg,
        Dropping,
        Clipping,
        Reversing,
        Emptying,
        OnePassFedAvg,
    ],
)
def test_any_base_is_measured_by_all_replies_as_they_came(base, read_again):
    strategy = type("Mine", (LayerSelection, base), {})(
        layers=LAYERS, drift_parameters=NAMES[:3]
    )
    replies = trained_replies(strategy)
    drift = local_drift(values_of(replies), NAMES[:3])
    scores = slow_scores(replies)
    aggregated, _ = strategy.aggregate_train(1, replies)
    found = strategy.last_aggregate
    assert found.scores == pytest.approx(scores, rel=0, abs=1e-12)
    assert found.drift == pytest.approx(drift, rel=1e-12, abs=0)
    in_one_pass = base in (Emptying, OnePassFedAvg)
    assert read_again == ([] if in_one_pass else [(LAYERS, True)])
    assert dict(aggregated) == found.mean or not issubclass(base, OnePassFedAvg)


def test_a_base_to_the_left_decides_what_is_scored(read_again):
    class Picky(FedAvg):
        def aggregate_train(self, server_round, replies):
            return super().aggregate_train(server_round, list(replies)[1:])

    strategy = type("Mine", (Picky, FLFAFedAvg), {})(
        layers=LAYERS, drift_parameters=NAMES[:3]
    )
    replies = trained_replies(strategy)
    strategy.aggregate_train(1, replies)
    assert_measured(strategy.last_aggregate, replies[1:])
    assert read_again == []


def with_value(value):
    """Clients of which one, node 2, sends this value in an array."""
    array = Array(np.full((6, 5), value, np.float32))
    return changing(
        {(1, 2): lambda content: content["arrays"].update({"a.weight": array})}
    )


def test_checked_replies_are_read_once(read_again):
    strategy = type("Mine", (CheckedReplies, FLFAFedAvg), {})(layers=LAYERS)
    replies = trained_replies(strategy, client=with_value(math.nan))
    strategy.aggregate_train(1, replies)
    good = [reply for reply in replies if reply.metadata.src_node_id != 2]
    assert list(strategy.rejected) == [2]
    assert strategy.scores == pytest.approx(slow_scores(good), rel=0, abs=1e-12)
    assert read_again == []


def test_only_layers_that_one_pass_cannot_score_are_read_again(read_again):
    """An infinite reply changes which clients count: 4 of 5, in that layer alone."""
    strategy = FLFAFedAvg(layers=LAYERS)
    replies = trained_replies(strategy, client=with_value(math.inf))
    want = slow_scores(replies)
    strategy.aggregate_train(1, replies)
    assert strategy.scores == pytest.approx(want, rel=0, abs=1e-12)
    assert all(map(math.isfinite, want.values()))
    assert read_again == [(["a"], False)]


class Failing(OnePassFedAvg):
    def aggregate_train(self, server_round, replies):
        super().aggregate_train(server_round, replies)
        raise RuntimeError("planned")


@pytest.mark.parametrize("base", [OnePassFedAvg, FedAvg, Failing])
def test_the_replies_of_a_round_are_released(base):
    strategy = type("Mine", (LayerSelection, base), {})(layers=LAYERS)
    replies = trained_replies(strategy)
    references = [weakref.ref(reply.content["arrays"]["a.weight"]) for reply in replies]
    try:
        strategy.aggregate_train(1, replies)
    except RuntimeError:
        assert base is Failing
    del replies
    gc.collect()
    assert [reference() for reference in references] == [None] * 5


def test_memory_does_not_grow_with_the_number_of_replies():
    """The replies share their arrays, so only the server's own memory is counted."""
    parameters = ("a.weight", "b.weight")
    strategy = FLFAFedAvg(layers=LAYERS, drift_parameters=parameters)
    arrays = record({"a.weight": np.ones(90_000), "b.weight": np.ones((300, 300))})
    grid = FakeGrid(1, noisy_client)
    strategy.min_train_nodes = strategy.min_available_nodes = 1
    (message,) = strategy.configure_train(1, arrays, ConfigRecord(), grid)
    (reply,) = grid.send_and_receive([message])

    def peak(number):
        replies = [Message(reply.content, reply_to=message) for _ in range(number)]
        strategy.last_aggregate = None
        tracemalloc.start()
        try:
            strategy.aggregate_train(1, replies)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(2)  # allocations that are made only once
    assert peak(200) <= 1.1 * peak(20)
