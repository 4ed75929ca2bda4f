"""Failed replies do not count, and a round without replies changes nothing."""

import numpy as np
import pytest
from flwr.app import ConfigRecord, Error, Message

from tests.unit.strategies.fakes import FakeGrid, bits, over_the_wire, record
from tests.unit.strategies.methods.cases import (
    METHODS,
    NODES,
    PARAMETERS,
    client,
    drive,
    node_of,
    planned,
    state_of,
    weights,
)

ALL = pytest.mark.parametrize("name", METHODS)


def messages_of(strategy, server_round, arrays, grid):
    return list(strategy.configure_train(server_round, arrays, ConfigRecord(), grid))


def after_a_round(name):
    """A strategy that has state, the model after its first round, and its grid."""
    strategy = METHODS[name].build(flfa=True)
    grid = FakeGrid(NODES, client)
    ((_, arrays),) = drive(strategy, grid, weights(), 1)
    return strategy, arrays, grid


def errors_to(messages):
    reason = Error(code=1, reason="out of memory")
    return [over_the_wire(Message(reason, reply_to=m)) for m in messages]


@ALL
def test_failed_replies_are_left_out(name):
    """As if they had not come, wherever in the row they stand."""
    outcomes = []
    for failing in (False, True):
        strategy, arrays, grid = after_a_round(name)
        messages = sorted(messages_of(strategy, 2, arrays, grid), key=node_of)
        good = list(grid.send_and_receive(messages[1:-1]))
        bad = errors_to([messages[0], messages[-1]]) if failing else []
        replies = [*bad[:1], good[0], *bad[1:], *good[1:]]
        new, metrics = strategy.aggregate_train(2, iter(replies))
        outcomes.append((bits(new), dict(metrics), state_of(strategy)))
    assert outcomes[0] == outcomes[1]


@ALL
@pytest.mark.parametrize("kind", ["errors", "silence"])
def test_nothing_but_failures(name, kind):
    """(None, None), and not a bit of the state is another."""
    strategy, arrays, grid = after_a_round(name)
    messages = messages_of(strategy, 2, arrays, grid)
    before = state_of(strategy)
    replies = errors_to(messages) if kind == "errors" else []
    assert strategy.aggregate_train(2, replies) == (None, None)
    assert state_of(strategy) == before


@ALL
def test_a_lost_round_leaves_no_trace(name):
    """Rounds 1, 4 and 5 are lost: the model of three updates in a row, bit for bit."""
    rng = np.random.default_rng(2)
    updates = [
        {k: rng.normal(size=(2, *a.shape)) for k, a in weights().items() if a.shape}
        for _ in range(3)
    ]
    finals = []
    for rounds in ((1, 2, 3), (2, 3, 6)):
        strategy = METHODS[name].build(flfa=True)
        plan = dict(zip(rounds, updates, strict=True))
        steps = drive(strategy, FakeGrid(2, planned(plan)), weights(), rounds[-1])
        *_, (_, arrays) = steps
        finals.append(bits(arrays))
    assert finals[0] == finals[1]
    assert finals[0] != bits(weights())


@ALL
def test_scores_are_of_what_the_clients_did(name):
    """The clients' updates of what they got: FedAvg's scores, whatever is sent.

    stem: e1 and e1, score 1; fc: e1 and -e1, score 0; later the other way round.
    """
    e1, back = (1.0, 0.0), (-1.0, 0.0)
    plan = {
        1: {"stem.weight": (e1, e1), "fc.weight": (e1, back)},
        2: {"stem.weight": (e1, e1), "fc.weight": (back, e1)},
        3: {"stem.weight": (back, e1), "fc.weight": (e1, e1)},
    }
    names = {} if name == "FedProx" else {"parameters": PARAMETERS}
    strategy = METHODS[name].build(flfa=True, **names)
    zeros = np.zeros(2)
    first = record({"stem.weight": zeros, "fc.weight": zeros})
    seen = [
        (strategy.scores, strategy.selected)
        for _ in drive(strategy, FakeGrid(2, planned(plan)), first, 3)
    ]
    for (scores, selected), low in zip(seen, ["fc", "fc", "stem"], strict=True):
        assert scores == {
            layer: pytest.approx(float(layer != low), abs=1e-12)
            for layer in ("stem", "fc")
        }
        assert selected == [low]
