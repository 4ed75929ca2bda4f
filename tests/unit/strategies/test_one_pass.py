"""The pass over an array against Flower's mean and the formulas on whole arrays."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tracemalloc
import warnings
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords

from strategies import layer_cosines, local_drift, one_pass
from strategies.one_pass import ArrayStatistics, can_pass

ROOT = Path(__file__).parents[3]
SHAPES = [(), (1,), (0,), (3, 0), (7,), (5, 3), (4, 3, 3, 3), (64, 33), (1, 1, 4, 1)]
FLOATS = [np.float16, np.float32, np.float64]
# Numbers at once and the fewest columns: as they are; one column and one client; rows
# shorter than an array; several groups of clients; groups of unequal size.
CUTS = [None, (1, 1), (24, 8), (8, 4), (15, 5)]


@pytest.fixture(params=CUTS, ids=str)
def cut(request, monkeypatch):
    if request.param is not None:
        at_once, fewest = request.param
        monkeypatch.setattr(one_pass, "AT_ONCE", at_once)
        monkeypatch.setattr(one_pass, "FEWEST_COLUMNS", fewest)
    return request.param


def clients(shape, number, dtype, seed=0):
    """What was sent, and replies that have something in common."""
    rng = np.random.default_rng([seed, number, len(shape), math.prod(shape)])
    sent = np.asarray(rng.normal(size=shape), dtype)
    common = rng.normal(size=shape)
    replies = [
        np.asarray(sent + 0.3 * common + rng.normal(size=shape), dtype)
        for _ in range(number)
    ]
    return sent, replies


def shares(number):
    weights = [3 * i + 1 for i in range(number)]
    return [weight / sum(weights) for weight in weights]


def flowers(replies):
    """What Flower makes of the replies with the weights of :func:`shares`."""
    contents = [
        RecordDict(
            {
                "arrays": ArrayRecord({"x": Array(np.asarray(reply))}),
                "metrics": MetricRecord({"n": 3 * i + 1}),
            }
        )
        for i, reply in enumerate(replies)
    ]
    return aggregate_arrayrecords(contents, "n")["x"].numpy()


def naive(sent, replies):
    """Every statistic by its formula, on whole arrays in double precision."""
    start = np.ravel(np.asarray(sent, np.float64))
    updates = np.stack([np.ravel(np.asarray(r, np.float64)) - start for r in replies])
    total = updates.sum(axis=0)
    apart = updates - updates.mean(axis=0)
    return {
        "squares": (updates**2).sum(axis=1),
        "dots": (updates * total).sum(axis=1),
        "total": (total**2).sum(),
        "distances": (apart**2).sum(axis=1),
    }


def run(sent, replies, **options) -> ArrayStatistics:
    return one_pass.one_pass(replies, shares(len(replies)), sent=sent, **options)


@pytest.mark.parametrize("number", [1, 2, 3, 10, 33])
@pytest.mark.parametrize(
    "dtype", [*FLOATS, np.int64, np.int8, np.uint16, np.bool_, np.complex64]
)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_mean_is_flowers_bit_for_bit(shape, dtype, number):
    rng = np.random.default_rng([number, math.prod(shape)])
    replies = [
        np.asarray(100 * rng.random(size=shape)).astype(dtype) for _ in range(number)
    ]
    want = flowers(replies)
    for options in ({}, {"drift": True}, {"sent": replies[0]}):
        if np.dtype(dtype).kind != "f" and options:
            continue
        got = one_pass.one_pass(replies, shares(len(replies)), **options).mean
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("number", [1, 2, 5, 19])
@pytest.mark.parametrize("dtype", FLOATS)
def test_how_it_is_cut_changes_no_bit_of_the_mean(cut, number, dtype):
    sent, replies = clients((31, 3), number, dtype)
    got = run(sent, replies).mean
    assert got.tobytes() == flowers(replies).tobytes()


@pytest.mark.parametrize("number", [1, 2, 5, 19])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(), (7,), (31, 3), (2, 0)], ids=str)
def test_the_statistics_are_the_formulas(cut, shape, dtype, number):
    sent, replies = clients(shape, number, dtype)
    found = run(sent, replies)
    for name, want in naive(sent, replies).items():
        assert getattr(found, name) == pytest.approx(want, rel=1e-12, abs=1e-12), name


@pytest.mark.parametrize("number", [1, 2, 5, 19])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_score_is_the_one_of_layer_cosines(cut, shape, number):
    sent, replies = clients(shape, number, np.float32)
    (want,) = layer_cosines(
        {"x.weight": sent}, [{"x.weight": r} for r in replies], ["x"]
    ).values()
    got = run(sent, replies).score()
    assert type(got) is float
    assert got == pytest.approx(want, rel=0, abs=1e-12, nan_ok=True)
    assert math.isnan(got) == (math.prod(shape) == 0)


@pytest.mark.parametrize("number", [1, 2, 5, 19])
@pytest.mark.parametrize("with_sent", [False, True])
def test_the_distances_are_those_of_local_drift(cut, number, with_sent):
    """What was sent cancels out."""
    sent, replies = clients((31, 3), number, np.float32)
    found = run(sent if with_sent else None, replies, drift=True)
    want = local_drift([{"x": reply} for reply in replies], ["x"])
    assert np.sqrt(found.distances).mean() == pytest.approx(want, rel=1e-12, abs=0)


def test_several_groups_of_clients_as_they_are_cut_by_default():
    """100 clients are more than are looked at together, 5000 columns too."""
    sent, replies = clients((5000,), 100, np.float32)
    assert one_pass.AT_ONCE // one_pass.FEWEST_COLUMNS < 100
    assert one_pass.FEWEST_COLUMNS < 5000
    found = run(sent, replies)
    for name, want in naive(sent, replies).items():
        assert getattr(found, name) == pytest.approx(want, rel=1e-12), name
    assert found.mean.tobytes() == flowers(replies).tobytes()


def test_what_is_not_asked_for_is_not_measured():
    _, replies = clients((3,), 2, np.float32)
    found = one_pass.one_pass(replies, shares(2))
    assert found.squares.size == found.dots.size == found.distances.size == 0


def scored(*updates, sent=0.0, dtype=np.float64):
    start = np.full(np.shape(updates[0]), sent, dtype)
    replies = [np.asarray(start + np.array(update), dtype) for update in updates]
    return run(start, replies)


@pytest.mark.parametrize(
    ("updates", "expected"),
    [
        ([(3.0, 4.0)], 1.0),
        # mean (1/2, 1/2): both cosines are cos 45 degrees.
        ([(1.0, 0.0), (0.0, 1.0)], 1 / math.sqrt(2)),
        # mean (1, 1/2), of the updates and not of their directions.
        ([(2.0, 0.0), (0.0, 1.0)], 3 / (2 * math.sqrt(5))),
        # mean -8/3: one client agrees, two do not.
        ([(-10.0,), (1.0,), (1.0,)], -1 / 3),
        # Who does not move does not count: 0.8, and not 8/15.
        ([(3.0, 4.0), (0.0, 0.0), (-3.0, 4.0)], 0.8),
    ],
)
def test_scores_by_hand(cut, updates, expected):
    assert scored(*updates).score() == pytest.approx(expected, rel=0, abs=1e-15)
    assert scored(*updates, sent=16.0).score() == pytest.approx(expected, abs=1e-15)


def test_a_score_of_nobody_and_of_updates_that_cancel_out(cut):
    assert math.isnan(scored((0.0, 0.0), (0.0, 0.0)).score())
    assert scored((1.0, -2.0), (-1.0, 2.0)).score() == 0.0
    assert scored((1.0, -2.0), (-1.0, 2.0), sent=8.0, dtype=np.float16).score() == 0.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e200])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_what_is_not_finite_has_no_score_here(cut, bad, place):
    """1e200 is, but its square is not. The caller looks at it: no warnings."""
    updates = [(3.0, 4.0), (-3.0, 4.0)]
    updates.insert(place, (bad, 1.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = scored(*updates)
    assert found.score() is None
    assert not np.isfinite(found.distances).all()


def test_never_leaves_the_interval():
    rng = np.random.default_rng(0)
    for size in range(1, 60):
        update = rng.normal(size=size)
        assert 1 - 1e-12 <= scored(*[update] * 7).score() <= 1.0


def test_half_precision_updates_beyond_the_range_of_half_precision():
    """-6e4 - 6e4 overflows float16; here it does not: 1, and 1.2e5 squared."""
    found = scored((-1.2e5,), sent=6e4, dtype=np.float16)
    assert found.score() == 1.0
    assert found.squares.tolist() == [1.44e10]


@pytest.mark.parametrize("dtype", FLOATS)
def test_one_client_is_nowhere_but_at_the_mean(cut, dtype):
    sent, replies = clients((31, 3), 1, dtype)
    for with_sent in (sent, None):
        assert run(with_sent, replies, drift=True).distances.tolist() == [0.0]


def test_the_order_of_the_replies(cut):
    """Statistics go with their clients; scores and distances do not depend on it."""
    sent, replies = clients((31, 3), 9, np.float32)
    found = run(sent, replies)
    order = np.random.default_rng(1).permutation(9)
    again = run(sent, [replies[i] for i in order])
    assert again.score() == pytest.approx(found.score(), rel=0, abs=1e-14)
    assert again.squares.tolist() == found.squares[order].tolist()
    assert again.distances == pytest.approx(found.distances[order], rel=1e-12)


def test_inputs_are_not_changed():
    sent, replies = clients((31, 3), 3, np.float32)
    copies = [array.copy() for array in (sent, *replies)]
    for array in (sent, *replies):
        array.setflags(write=False)
    run(sent, replies)
    assert all(map(np.array_equal, (sent, *replies), copies))


def test_memory_does_not_grow_with_the_number_of_replies():
    sent, replies = clients((40_000,), 10, np.float32)

    def peak(number):
        many = [replies[i % 10] for i in range(number)]
        tracemalloc.start()
        try:
            run(sent, many)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(2)  # whatever is allocated only once
    assert peak(200) <= 1.1 * peak(20)


@pytest.mark.parametrize(
    ("replies", "factors", "expected"),
    [
        ([np.zeros(2), np.ones(2)], [0.5, 0.5], True),
        ([np.zeros(2)], [np.float64(1)], False),  # makes float64 of float32
        ([np.zeros(2)], [1], False),
        ([np.zeros(2), np.zeros(1)], [0.5, 0.5], False),
        ([np.zeros((2, 1)), np.zeros((1, 2))], [0.5, 0.5], False),
        ([np.zeros(2), np.zeros(2, np.float32)], [0.5, 0.5], False),
        ([np.zeros(2), np.zeros(2, ">f8")], [0.5, 0.5], False),
        ([np.zeros((2, 2)), np.zeros((2, 2), order="F")], [0.5, 0.5], False),
        ([np.zeros(4)[::2], np.zeros(2)], [0.5, 0.5], False),
    ],
)
def test_what_can_be_passed_over(replies, factors, expected):
    assert can_pass(replies, factors) == expected


# Arrays above OpenBLAS's 10 000 numbers, from where on it uses its threads.
BITS = """
import numpy as np
from strategies import layer_cosines
from strategies import local_drift
from strategies.blockwise import squared_distance
from strategies.one_pass import one_pass

rng = np.random.default_rng(0)
sent, *replies = rng.normal(size=(4, 70_000)).astype(np.float32)
found = one_pass(replies, [1 / 3] * 3, sent=sent)
named = [{"x.weight": reply} for reply in replies]
print(found.score().hex(), found.distances.tobytes().hex(), found.total.hex())
print(layer_cosines({"x.weight": sent}, named, ["x"])["x"].hex())
print(local_drift(named, ["x.weight"]).hex(), squared_distance(*replies[:2]).hex())
"""


def test_the_number_of_threads_changes_no_bit():
    def bits(threads):
        variables = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
        environment = os.environ | dict.fromkeys(variables, str(threads))
        command = [sys.executable, "-c", BITS]
        done = subprocess.run(
            command, env=environment, cwd=ROOT, capture_output=True, check=True
        )
        return done.stdout

    assert bits(1) == bits(2) == bits(3)
    assert bits(1).count(b"\n") == 3
