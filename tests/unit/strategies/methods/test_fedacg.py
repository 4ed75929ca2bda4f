"""FedACG: the mean is returned, the look-ahead is sent."""

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg

from strategies.methods.fedacg import FedACG, FLFAFedACG
from strategies.methods.momentum import ServerMomentum
from tests.unit.strategies.fakes import FakeGrid, bits, ndarrays, record
from tests.unit.strategies.methods.cases import (
    BUFFERS,
    NODES,
    PARAMETERS,
    assert_close,
    client,
    drive,
    planned,
    sent_in,
    weights,
)

ROUNDS = 4


@pytest.mark.parametrize("lookahead", [0.3, 0.99])
def test_what_is_sent_and_what_is_returned(lookahead):
    """Sent in round t: W + lambda (W - the W before it), W alone in round 1."""
    grid = FakeGrid(NODES, client)
    strategy = FedACG(lookahead=lookahead, parameters=PARAMETERS, fraction_train=0.5)
    first = weights(np.float64)
    models = [ndarrays(first)]
    for server_round, arrays in drive(strategy, grid, first, ROUNDS):
        sent = sent_in(grid, server_round)
        if server_round == 1:
            want = models[0]
        else:
            last, before = models[-1], models[-2]
            want = {k: last[k] + lookahead * (last[k] - before[k]) for k in PARAMETERS}
        assert_close(
            {k: sent[k] for k in PARAMETERS}, {k: want[k] for k in PARAMETERS}, 1e-14
        )
        for name in BUFFERS:
            assert sent[name].tobytes() == models[-1][name].tobytes()
        models.append(ndarrays(arrays))
        momentum = {k: models[-1][k] - models[-2][k] for k in PARAMETERS}
        assert_close(strategy.momentum, momentum, 1e-14)


def test_the_mean_of_the_replies_bit_for_bit():
    """Not W + m, which is the same number in other bits: FedAvg on what was sent."""
    grid = FakeGrid(NODES, client)
    strategy = FedACG(parameters=PARAMETERS)
    for server_round, arrays in drive(strategy, grid, weights(), ROUNDS):
        want, _ = FedAvg().aggregate_train(server_round, grid.replied[-NODES:])
        assert bits(arrays) == bits(want)


@pytest.mark.parametrize("lookahead", [0.5, 0.75])
def test_clients_that_add_a_fixed_step_make_it_the_heavy_ball(lookahead):
    """W + lambda m + step, and the heavy ball's W - v with v = lambda v - step.

    Steps and lambdas are short binary fractions: nothing is rounded, so bit for bit,
    although clients of the one start elsewhere than those of the other.
    """
    steps = ((2.0, -4.0), (6.0, 0.0))
    plan = {r: {"fc.weight": steps} for r in range(1, 8)}
    plan[4] = {"fc.weight": ((-8.0, 2.0), (0.0, 2.0))}
    histories, sent = [], []
    for strategy in (
        FedACG(lookahead=lookahead),
        ServerMomentum(form="heavy-ball", server_momentum=lookahead),
    ):
        grid = FakeGrid(2, planned(plan))
        first = record({"fc.weight": np.array([1.0, -1.0])})
        histories.append([bits(a) for _, a in drive(strategy, grid, first, 7)])
        sent.append([sent_in(grid, r)["fc.weight"].tolist() for r in range(1, 8)])
    assert histories[0] == histories[1]
    assert sent[0][0] == sent[1][0]
    assert all(a != b for a, b in zip(sent[0][1:], sent[1][1:], strict=True))


def one(values):
    return {"fc.weight": values}


def test_by_hand_with_a_lost_round():
    """lambda = 1/2, W = 1, mean updates of what was sent 4, (none), 2.

    Round 1 sends 1: W = 5, m = 4. Round 2 sends 5 + 2 = 7 and gets nothing. Round 3
    sends the same 7: W = 9, m = 4. Round 4 would send 9 + 2 = 11, with a mean update of
    -3: W = 8, m = -1. Round 5 sends 8 - 1/2.
    """
    plan = {1: one((3.0, 5.0)), 3: one((2.0, 2.0)), 4: one((-6.0, 0.0))}
    grid = FakeGrid(2, planned(plan))
    strategy = FedACG(lookahead=0.5)
    seen = []
    first = record({"fc.weight": np.array([1.0])})
    for server_round, arrays in drive(strategy, grid, first, 5):
        sent = sent_in(grid, server_round)["fc.weight"]
        model, momentum = arrays["fc.weight"].numpy(), strategy.momentum["fc.weight"]
        seen.append((sent.item(), model.item(), momentum.item()))
    assert seen == [
        (1.0, 5.0, 4.0),
        (7.0, 5.0, 4.0),
        (7.0, 9.0, 4.0),
        (11.0, 8.0, -1.0),
        (7.5, 8.0, -1.0),
    ]


def test_no_momentum_yet_after_a_lost_first_round():
    """Round 2 sends W as well, and m is then relative to it."""
    grid = FakeGrid(2, planned({2: one((4.0, 4.0))}))
    strategy = FedACG(lookahead=0.5)
    list(drive(strategy, grid, record({"fc.weight": np.array([1.0])}), 3))
    assert [sent_in(grid, r)["fc.weight"].item() for r in (1, 2, 3)] == [1.0, 1.0, 7.0]


def test_layers_are_scored_relative_to_the_look_ahead():
    """Round 1 moves both layers by 8 e1; the look-ahead of round 2 is W + 4 e1.

    From there, stem: +e1 and -e1, which cancel out: score 0. fc: e1 and e2, each at 45
    degrees to the mean: 1/sqrt 2. Relative to W stem would be 5 e1 and 3 e1: score 1,
    and fc, 5 e1 and 4 e1 + e2, the lower one.
    """
    far, e1, e2 = (8.0, 0.0), (1.0, 0.0), (0.0, 1.0)
    plan = {
        1: {"stem.weight": (far, far), "fc.weight": (far, far)},
        2: {"stem.weight": (e1, (-1.0, 0.0)), "fc.weight": (e1, e2)},
    }
    strategy = FLFAFedACG(lookahead=0.5, layers=["fc", "stem"])
    grid = FakeGrid(2, planned(plan))
    zeros = np.zeros(2, np.float32)
    first = record({"stem.weight": zeros, "fc.weight": zeros})
    list(drive(strategy, grid, first, 3))
    assert sent_in(grid, 2)["stem.weight"].tolist() == [12.0, 0.0]
    assert strategy.scores == {
        "fc": pytest.approx(np.sqrt(0.5), rel=1e-12),
        "stem": 0.0,
    }
    assert grid.fa_layers(3) == ["stem"]


def test_the_caller_keeps_the_model():
    """The look-ahead is a new record; the one handed in is not changed."""
    grid = FakeGrid(2, client)
    strategy = FedACG()
    _, (_, model) = drive(strategy, grid, weights(only=PARAMETERS), 2)
    before = bits(model)
    strategy.configure_train(3, model, grid.received[-1].content["config"], grid)
    assert bits(model) == before
