"""The statistics of one array against Flower's mean and formulas on whole arrays."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords

from strategies import array_statistics as module
from strategies import layer_cosines, local_drift
from strategies.array_statistics import (
    ArrayStatistics,
    array_statistics,
    fits_one_pass,
)
from tests.unit.strategies.fakes import answer

ROOT = Path(__file__).parents[3]
FLOATS = [np.float16, np.float32, np.float64]
# Block size and fewest columns: the default; one column and one client; blocks shorter
# than an array; several groups of clients of unequal size.
BLOCKS = [None, (1, 1), (24, 8), (15, 5)]


@pytest.fixture(params=BLOCKS, ids=str)
def blocks(request, monkeypatch):
    if request.param is not None:
        block_size, min_columns = request.param
        monkeypatch.setattr(module, "BLOCK_SIZE", block_size)
        monkeypatch.setattr(module, "MIN_COLUMNS", min_columns)


def clients(shape, number, dtype, seed=0):
    """Return a sent array, and replies whose updates have something in common."""
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


def flowers_mean(replies):
    """Return Flower's mean of the replies with the weights of :func:`shares`."""
    contents = [answer({"x": reply}, 3 * i + 1) for i, reply in enumerate(replies)]
    return aggregate_arrayrecords(contents, "num-examples")["x"].numpy()


def formulas(sent, replies):
    """Return every statistic by its formula, on whole arrays in double precision."""
    start = np.ravel(np.asarray(sent, np.float64))
    updates = np.stack([np.ravel(np.asarray(r, np.float64)) - start for r in replies])
    total = updates.sum(axis=0)
    distances = updates - updates.mean(axis=0)
    return {
        "squared_norms": (updates**2).sum(axis=1),
        "dot_products": (updates * total).sum(axis=1),
        "squared_norm_of_sum": (total**2).sum(),
        "squared_distances": (distances**2).sum(axis=1),
    }


def statistics(sent, replies, **options) -> ArrayStatistics:
    return array_statistics(replies, shares(len(replies)), sent=sent, **options)


@pytest.mark.parametrize("number", [1, 10])
@pytest.mark.parametrize("dtype", [np.int64, np.int8, np.bool_, np.complex64])
@pytest.mark.parametrize("shape", [(), (3, 0), (64, 33)], ids=str)
def test_the_mean_of_other_types_is_flowers_bit_for_bit(shape, dtype, number):
    rng = np.random.default_rng([number, math.prod(shape)])
    replies = [
        np.asarray(100 * rng.random(size=shape)).astype(dtype) for _ in range(number)
    ]
    want = flowers_mean(replies)
    found = array_statistics(replies, shares(number))
    assert (found.mean.dtype, found.mean.shape) == (want.dtype, want.shape)
    assert found.mean.tobytes() == want.tobytes()
    assert found.squared_norms.size == found.squared_distances.size == 0


@pytest.mark.parametrize("number", [1, 19])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(), (31, 3), (2, 0)], ids=str)
def test_mean_and_statistics_in_blocks(blocks, shape, dtype, number):
    """Whatever the blocks: no bit of the mean changes, the statistics are formulas."""
    sent, replies = clients(shape, number, dtype)
    found = statistics(sent, replies)
    mean = flowers_mean(replies)
    assert (found.mean.dtype, found.mean.shape) == (mean.dtype, mean.shape)
    assert found.mean.tobytes() == mean.tobytes()
    for name, want in formulas(sent, replies).items():
        assert getattr(found, name) == pytest.approx(want, rel=1e-12, abs=1e-12), name
    (want,) = layer_cosines(
        {"x.weight": sent}, [{"x.weight": r} for r in replies], ["x"]
    ).values()
    assert type(found.score()) is float
    assert found.score() == pytest.approx(want, rel=0, abs=1e-12, nan_ok=True)
    assert math.isnan(found.score()) == (math.prod(shape) == 0)


@pytest.mark.parametrize("number", [1, 19])
@pytest.mark.parametrize("with_sent", [False, True])
def test_the_distances_are_those_of_local_drift(blocks, number, with_sent):
    """The sent array cancels out; a single client has no distance at all."""
    sent, replies = clients((31, 3), number, np.float32)
    found = statistics(sent if with_sent else None, replies, drift=True)
    want = local_drift([{"x": reply} for reply in replies], ["x"])
    drift = np.sqrt(found.squared_distances).mean()
    assert drift == pytest.approx(want, rel=1e-12, abs=0)
    assert (drift == 0) == (number == 1)


def test_several_groups_of_clients_with_the_default_blocks():
    """100 clients and 5000 columns are both more than fit into one block."""
    sent, replies = clients((5000,), 100, np.float32)
    assert module.BLOCK_SIZE // module.MIN_COLUMNS < 100
    assert module.MIN_COLUMNS < 5000
    found = statistics(sent, replies)
    for name, want in formulas(sent, replies).items():
        assert getattr(found, name) == pytest.approx(want, rel=1e-12), name
    assert found.mean.tobytes() == flowers_mean(replies).tobytes()


def statistics_of_updates(*updates, sent=0.0, dtype=np.float64):
    start = np.full(np.shape(updates[0]), sent, dtype)
    replies = [np.asarray(start + np.array(update), dtype) for update in updates]
    return statistics(start, replies)


@pytest.mark.parametrize(
    ("updates", "expected"),
    [
        # A client that does not move does not count: 0.8, and not 8/15.
        ([(96.0, 128.0), (0.0, 0.0), (-96.0, 128.0)], 0.8),
        # Updates that cancel out.
        ([(32.0, -64.0), (-32.0, 64.0)], 0.0),
        # -6e4 - 6e4 overflows float16, but not double precision.
        ([(-1.2e5,)], 1.0),
        # No update at all.
        ([(0.0, 0.0), (0.0, 0.0)], math.nan),
    ],
)
def test_scores_by_hand(updates, expected):
    score = statistics_of_updates(*updates, sent=6e4, dtype=np.float16).score()
    assert score == pytest.approx(expected, rel=0, abs=1e-15, nan_ok=True)


@pytest.mark.parametrize("bad", [math.nan, -math.inf, 1e200])
def test_updates_that_are_not_finite_have_no_score_here(blocks, bad):
    """1e200 is finite, its square is not. There are no warnings."""
    found = statistics_of_updates((3.0, 4.0), (bad, 1.0), (-3.0, 4.0))
    assert found.score() is None
    assert not np.isfinite(found.squared_distances).all()


def test_the_score_never_leaves_the_interval():
    rng = np.random.default_rng(0)
    for size in range(1, 60):
        update = rng.normal(size=size)
        assert 1 - 1e-12 <= statistics_of_updates(*[update] * 7).score() <= 1.0


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
def test_what_fits_one_pass(replies, factors, expected):
    assert fits_one_pass(replies, factors) == expected


# Arrays above 10,000 numbers, from where on OpenBLAS uses its threads.
PRINT_BITS = """
import numpy as np
from strategies import layer_cosines, local_drift
from strategies.array_checks import squared_distance
from strategies.array_statistics import array_statistics

rng = np.random.default_rng(0)
sent, *replies = rng.normal(size=(4, 70_000)).astype(np.float32)
found = array_statistics(replies, [1 / 3] * 3, sent=sent)
named = [{"x.weight": reply} for reply in replies]
print(found.score().hex(), found.squared_distances.tobytes().hex())
print(found.squared_norm_of_sum.hex())
print(layer_cosines({"x.weight": sent}, named, ["x"])["x"].hex())
print(local_drift(named, ["x.weight"]).hex(), squared_distance(*replies[:2]).hex())
"""


def test_the_number_of_threads_changes_no_bit():
    def start(threads):
        variables = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
        environment = os.environ | dict.fromkeys(variables, str(threads))
        command = [sys.executable, "-c", PRINT_BITS]
        return subprocess.Popen(
            command, env=environment, cwd=ROOT, stdout=subprocess.PIPE
        )

    one, two = (process.communicate()[0] for process in [start(1), start(2)])
    assert one == two
    assert one.count(b"\n") == 4
