"""FedAvg in one pass: Flower's bits, and the drift on the way."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp.exception import InconsistentMessageReplies
from flwr.serverapp.strategy import FedAvg

from flfa_app.server.loop import _drift
from strategies import (
    FLFAFedAvg,
    LayerSelection,
    OnePassFedAvg,
    local_drift,
)
from strategies.methods import base as method
from tests.unit.strategies.fakes import FakeGrid, bits, noisy_client, record
from tests.unit.strategies.one_round import NAMES, trained, values_of, weights


def question(nodes=1):
    """Messages of a round, to reply to."""
    grid = FakeGrid(nodes, noisy_client)
    strategy = FedAvg(min_train_nodes=nodes, min_available_nodes=nodes)
    return list(strategy.configure_train(1, weights(), ConfigRecord(), grid))


def replies_with(*arrays, weights=None):
    """Replies with these values under the name ``x``."""
    (message,) = question()
    numbers = weights or range(3, 3 + len(arrays))
    return [
        Message(
            RecordDict(
                {
                    "arrays": ArrayRecord({"x": Array(values)}),
                    "metrics": MetricRecord({"num-examples": number, "loss": 0.3}),
                }
            ),
            reply_to=message,
        )
        for values, number in zip(arrays, numbers, strict=True)
    ]


def outcome(strategy, replies):
    """Arrays and metrics, or what was raised."""
    try:
        arrays, metrics = strategy.aggregate_train(1, replies)
    except (ArithmeticError, TypeError, ValueError) as error:
        return type(error)
    return bits(arrays), [a.data for a in arrays.values()], metrics


ones, twos = np.ones((2, 3)), np.full((2, 3), 2.0)
ODD = {
    "one reply": (ones,),
    "0-dimensional": (np.array(1.5, np.float32), np.array(2.5, np.float32)),
    "empty": (np.zeros((0, 3)), np.zeros((0, 3))),
    "whole": (np.arange(4), np.arange(4) + 7),
    "bool": (np.array([True, False]), np.array([True, True])),
    "complex": (ones + 1j, twos - 2j),
    "half": (ones.astype(np.float16) / 3, twos.astype(np.float16) / 7),
    "Fortran": (np.asfortranarray(ones / 3), np.asfortranarray(twos / 7)),
    "Fortran and C": (np.asfortranarray(ones / 3), twos / 7),
    "C and Fortran": (ones / 3, np.asfortranarray(twos / 7)),
    "big-endian": ((ones / 3).astype(">f4"), (twos / 7).astype(">f4")),
    "float32 and float64": (ones.astype(np.float32) / 3, twos / 7),
    "float64 and float32": (ones / 3, twos.astype(np.float32) / 7),
    "float32 and int64": (ones.astype(np.float32) / 3, twos.astype(np.int64)),
    "float and complex": (ones, twos + 1j),
    "a shape that broadcasts": (ones, np.full(3, 2.0)),
    "a shape that does not broadcast": (np.ones(1), np.ones(3)),
    "another shape": (np.ones(2), np.ones(3)),
    "words": (np.array(["a"]), np.array(["b"])),
}


@pytest.mark.parametrize("case", ODD)
def test_whatever_is_averaged_is_flowers_bit_for_bit(case):
    """Bytes and their order too, or the same error."""
    want = outcome(FedAvg(), replies_with(*ODD[case]))
    assert outcome(OnePassFedAvg(), replies_with(*ODD[case])) == want
    measuring = OnePassFedAvg()
    measuring.drift_of = {"x"}
    assert outcome(measuring, replies_with(*ODD[case])) == want


def test_some_of_them_cannot_be_averaged():
    """The comparison above covers both outcomes."""
    found = {case: outcome(FedAvg(), replies_with(*ODD[case])) for case in ODD}
    assert {case for case, what in found.items() if isinstance(what, type)} == {
        "float and complex",
        "a shape that does not broadcast",
        "another shape",
        "words",
    }


def test_weights_that_add_up_to_nothing():
    for strategy in (FedAvg(), OnePassFedAvg()):
        with pytest.raises(ZeroDivisionError):
            strategy.aggregate_train(1, replies_with(ones, twos, weights=[1, -1]))


def test_weights_that_are_floats():
    def replies():
        return replies_with(ones / 3, twos / 7, weights=[0.3, 1e-9])

    assert outcome(OnePassFedAvg(), replies()) == outcome(FedAvg(), replies())


def test_metrics_are_aggregated_by_the_function_that_is_given():
    seen = []

    def function(contents, key):
        seen.append(([c["metrics"]["loss"] for c in contents], key))
        return MetricRecord({"mine": 1})

    strategy = OnePassFedAvg(train_metrics_aggr_fn=function)
    _, metrics = strategy.aggregate_train(1, iter(replies_with(ones, twos)))
    assert metrics == MetricRecord({"mine": 1})
    assert seen == [([0.3, 0.3], "num-examples")]


def test_errors_and_inconsistent_replies_are_flowers():
    (message,) = question()
    errors = [Message(Error(code=1, reason="planned"), reply_to=message)]
    for strategy in (FedAvg(), OnePassFedAvg()):
        assert strategy.aggregate_train(1, []) == (None, None)
        assert strategy.aggregate_train(1, errors) == (None, None)
        some = replies_with(ones, twos) + errors
        assert outcome(strategy, some) == outcome(FedAvg(), replies_with(ones, twos))
        unlike = replies_with(ones, twos)
        unlike[0].content["arrays"]["more"] = Array(ones)
        with pytest.raises(InconsistentMessageReplies):
            strategy.aggregate_train(1, unlike)


def test_the_drift_is_local_drift():
    strategy = OnePassFedAvg()
    replies = trained(strategy)
    strategy.aggregate_train(1, replies)
    assert strategy.drift is None, "nobody has asked"
    for names in (NAMES[:3], NAMES[1:2]):
        strategy.drift_of = names
        strategy.aggregate_train(1, replies)
        want = local_drift(values_of(replies), names)
        assert strategy.drift == pytest.approx(want, rel=1e-12, abs=0)
    strategy.aggregate_train(1, replies[:1])
    assert strategy.drift == 0.0
    strategy.aggregate_train(1, [])
    assert strategy.drift is None, "of the replies averaged last"


@pytest.mark.parametrize(
    ("arrays", "names"),
    [
        (ODD["Fortran"], {"x"}),
        (ODD["a shape that broadcasts"], {"x"}),
        (ODD["float32 and float64"], {"x"}),
        (ODD["whole"], {"x"}),
        ((ones, np.full((2, 3), math.nan)), {"x"}),
        ((ones, np.full((2, 3), math.inf)), {"x"}),
        ((ones, np.full((2, 3), 1e200)), {"x"}),
        ((ones, twos), {"x", "not there"}),
    ],
)
def test_a_drift_that_cannot_be_measured_on_the_way(arrays, names):
    strategy = OnePassFedAvg()
    strategy.drift_of = names
    strategy.aggregate_train(1, replies_with(*arrays))
    assert strategy.drift is None


@pytest.mark.parametrize("base", [OnePassFedAvg, FedAvg])
def test_the_app_gets_its_drift_from_any_strategy(base):
    strategy = type("Mine", (LayerSelection, base), {})(layers=["a", "b"])
    replies = trained(strategy)
    names = NAMES[:3]
    if base is OnePassFedAvg:
        strategy.drift_of = names
    strategy.aggregate_train(1, replies)
    want = local_drift(values_of(replies), names)
    assert _drift(strategy, replies, names) == pytest.approx(want, rel=1e-12, abs=0)
    if base is OnePassFedAvg:
        assert _drift(strategy, [], names) == strategy.drift, "measured on the way"


def test_memory_does_not_grow_with_the_number_of_replies():
    """Average, scores and drift, with arrays that are small for what is held of each.

    The arrays are shared: what is counted is what the server makes of them.
    """
    strategy = FLFAFedAvg(layers=["a", "b"])
    strategy.drift_of = ("a.weight", "b.weight")
    arrays = record({"a.weight": np.ones(90_000), "b.weight": np.ones((300, 300))})
    grid = FakeGrid(1, noisy_client)
    strategy.min_train_nodes = strategy.min_available_nodes = 1
    (message,) = strategy.configure_train(1, arrays, ConfigRecord(), grid)
    (reply,) = grid.send_and_receive([message])

    def peak(number):
        replies = [Message(reply.content, reply_to=message) for _ in range(number)]
        tracemalloc.start()
        try:
            strategy.aggregate_train(1, replies)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(2)  # whatever is allocated only once
    assert peak(200) <= 1.1 * peak(20)


class Plain(method.FedMethod):
    """A method without a step of its own on the server."""


class Looking(method.FedMethod):
    """A method whose step looks at the replies and changes nothing."""

    def server_step(self, sent, mean, replies):
        self.seen = [dict(reply.arrays) for reply in replies]
        self.given = [*sent.values(), *mean.values()]
        return {}


def test_replies_are_decoded_for_the_methods_that_look_at_them(monkeypatch):
    parameters = NAMES[:2]
    plain, looking = Plain(parameters=parameters), Looking(parameters=parameters)
    wanted = FedAvg().aggregate_train(1, trained(FedAvg()))
    replies = trained(looking)
    assert bits(looking.aggregate_train(1, replies)[0]) == bits(wanted[0])
    for seen, values in zip(looking.seen, values_of(replies), strict=True):
        assert list(seen) == list(parameters)
        assert all(np.array_equal(seen[name], values[name]) for name in parameters)
    arrays = [*looking.given, *(a for seen in looking.seen for a in seen.values())]
    assert len(arrays) == 2 * 2 + 2 * len(replies)
    assert not any(array.flags.writeable for array in arrays)
    replies = trained(plain)
    monkeypatch.delattr(method, "Decoded")
    assert bits(plain.aggregate_train(1, replies)[0]) == bits(wanted[0])
    with pytest.raises(NameError):
        looking.aggregate_train(1, replies)
