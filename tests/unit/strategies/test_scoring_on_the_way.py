"""Layers scored while the replies are averaged, and from the replies where not."""

from __future__ import annotations

import gc
import math
import weakref

import numpy as np
import pytest
from flwr.app import Array
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
    layer_cosines,
    local_drift,
    selection,
)
from strategies.aggregation import Scoring
from tests.federation import default_keys
from tests.unit.strategies.fakes import ndarrays, noisy_client
from tests.unit.strategies.one_round import NAMES, trained, values_of, weights


@pytest.fixture
def computed(monkeypatch):
    """The layers that were scored from the replies, and not on the way."""
    layers_of_calls = []

    def counting(sent, replies, layers):
        layers = list(layers)
        layers_of_calls.append(layers)
        return layer_cosines(sent, replies, layers)

    monkeypatch.setattr(selection, "layer_cosines", counting)
    return layers_of_calls


def slow_scores(replies, layers=("a", "b")):
    return layer_cosines(ndarrays(weights()), values_of(replies), layers)


@pytest.mark.parametrize("cls", [FLFAFedAvg, FLFAFedAvgM, FLFAFedAdam])
def test_flowers_strategies_with_flfa_score_on_the_way(cls, computed):
    strategy = cls(layers=["a", "b"])
    replies = trained(strategy)
    want = slow_scores(replies)
    strategy.aggregate_train(1, replies)
    assert strategy.scores == pytest.approx(want, rel=0, abs=1e-12)
    assert computed == [[]]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_method_scores_on_the_way(name, computed):
    known = {"parameters": NAMES[:3], "num_clients": 5}
    strategy = ALGORITHMS[name].build_strategy(
        default_keys(), known, layers=["a", "b"], rule="lowest"
    )
    strategy.drift_of = NAMES[:3]

    def client(message):
        reply = noisy_client(message)
        for key in getattr(strategy, "reply_metrics", ()):
            reply["metrics"][key] = 0.5
        return reply

    replies = trained(strategy, client=client)
    want = slow_scores(replies)
    strategy.aggregate_train(1, replies)
    assert strategy.scores == pytest.approx(want, rel=0, abs=1e-12)
    assert computed == [[]]
    drift = local_drift(values_of(replies), NAMES[:3])
    assert strategy.drift == pytest.approx(drift, rel=1e-12, abs=0)


class Dropping(OnePassFedAvg):
    """A user's base that leaves out the last reply."""

    def aggregate_train(self, server_round, replies):
        return super().aggregate_train(server_round, list(replies)[:-1])


class Clipping(OnePassFedAvg):
    """A user's base that puts other arrays into the replies."""

    def aggregate_train(self, server_round, replies):
        for reply in replies:
            arrays = reply.content["arrays"]
            for name, array in arrays.items():
                clipped = np.clip(array.numpy(), -0.1, 0.1)
                arrays[name] = Array(np.asarray(clipped))
        return super().aggregate_train(server_round, replies)


class Emptying(OnePassFedAvg):
    """A user's base that averages, and then empties the replies."""

    def aggregate_train(self, server_round, replies):
        aggregated = super().aggregate_train(server_round, replies)
        for reply in replies:
            reply.content["arrays"].clear()
        return aggregated


class Reversing(OnePassFedAvg):
    """A user's base that averages in another order: not the question's."""

    def aggregate_train(self, server_round, replies):
        return super().aggregate_train(server_round, list(replies)[::-1])


@pytest.mark.parametrize(
    ("base", "on_the_way"),
    [
        (FedAvg, False),
        (flower.FedMedian, False),
        (Dropping, False),
        (Clipping, False),
        (Reversing, False),
        (Emptying, True),
        (OnePassFedAvg, True),
    ],
)
def test_any_base_is_scored_by_all_replies_as_they_came(base, on_the_way, computed):
    strategy = type("Mine", (LayerSelection, base), {})(layers=["a", "b"])
    replies = trained(strategy)
    want = slow_scores(replies)
    strategy.aggregate_train(1, replies)
    assert strategy.scores == pytest.approx(want, rel=0, abs=1e-12)
    assert computed == [[] if on_the_way else ["a", "b"]]


def test_a_picky_base_to_the_left_decides_what_is_scored(computed):
    class Picky(FedAvg):
        def aggregate_train(self, server_round, replies):
            return super().aggregate_train(server_round, list(replies)[1:])

    strategy = type("Mine", (Picky, FLFAFedAvg), {})(layers=["a", "b"])
    replies = trained(strategy)
    strategy.aggregate_train(1, replies)
    assert strategy.scores == pytest.approx(slow_scores(replies[1:]), rel=0, abs=1e-12)
    assert computed == [[]]


def test_checked_replies_are_scored_on_the_way(computed):
    def client(message):
        reply = noisy_client(message)
        if message.metadata.dst_node_id == 2:
            reply["arrays"]["a.weight"] = Array(np.full((6, 5), np.nan, np.float32))
        return reply

    strategy = type("Mine", (CheckedReplies, FLFAFedAvg), {})(layers=["a", "b"])
    replies = trained(strategy, client=client)
    strategy.aggregate_train(1, replies)
    good = [reply for reply in replies if reply.metadata.src_node_id != 2]
    assert list(strategy.rejected) == [2]
    assert strategy.scores == pytest.approx(slow_scores(good), rel=0, abs=1e-12)
    assert computed == [[]]


def test_only_the_layers_that_are_not_scored_on_the_way_are_computed(computed):
    """A reply that is not finite changes who counts: 4 of 5, in that layer alone."""

    def client(message):
        reply = noisy_client(message)
        if message.metadata.dst_node_id == 2:
            reply["arrays"]["a.weight"] = Array(np.full((6, 5), np.inf, np.float32))
        return reply

    strategy = FLFAFedAvg(layers=["a", "b"])
    replies = trained(strategy, client=client)
    want = slow_scores(replies)
    strategy.aggregate_train(1, replies)
    assert strategy.scores == pytest.approx(want, rel=0, abs=1e-12)
    assert all(map(math.isfinite, want.values()))
    assert computed == [["a"]]


@pytest.mark.parametrize("sent", [np.zeros((3, 2)), np.zeros((2, 3), np.int64), None])
def test_what_was_sent_must_fit(sent):
    """Another shape or type, or nothing: no answer, and no error here."""
    arrays = [Array(np.ones((2, 3))), Array(np.full((2, 3), 2.0))]
    asked = Scoring(
        {} if sent is None else {"x": Array(sent)}, [{"x": a} for a in arrays]
    )
    replies = trained(FedAvg(), nodes=2)
    for reply, array in zip(replies, arrays, strict=True):
        reply.content["arrays"]["x"] = array
    strategy = OnePassFedAvg()
    with strategy.answering(asked):
        strategy.aggregate_train(1, replies)
    assert asked.scores == {}


def test_a_question_is_of_one_round():
    """Nothing of it stays, or a strategy would hold the replies of a whole round."""
    strategy = FLFAFedAvg(layers=["a", "b"])
    replies = trained(strategy)
    kept = [weakref.ref(reply.content["arrays"]["a.weight"]) for reply in replies]
    strategy.aggregate_train(1, replies)
    del replies
    gc.collect()
    assert [ref() for ref in kept] == [None] * 5


def test_an_error_ends_the_question():
    class Failing(OnePassFedAvg):
        def aggregate_train(self, server_round, replies):
            super().aggregate_train(server_round, replies)
            raise RuntimeError("planned")

    strategy = type("Mine", (LayerSelection, Failing), {})(layers=["a"])
    replies = trained(strategy)
    kept = weakref.ref(replies[0].content["arrays"]["a.weight"])
    with pytest.raises(RuntimeError, match="planned"):
        strategy.aggregate_train(1, replies)
    del replies
    gc.collect()
    assert kept() is None
