"""What is asked of an array piece by piece, against the same on whole arrays."""

from __future__ import annotations

import math

import numpy as np
import pytest

from strategies import array_checks
from strategies.array_checks import count_non_finite, squared_distance

SHAPES = [(), (0,), (1,), (10,), (11,), (3, 7), (2, 3, 4)]


@pytest.fixture(params=[1, 5, 2**16])
def at_once(request, monkeypatch):
    monkeypatch.setattr(array_checks, "BLOCK_SIZE", request.param)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.complex64])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("order", ["C", "F"])
def test_counts_what_is_count_non_finite(at_once, shape, dtype, order):
    rng = np.random.default_rng(len(shape))
    values = np.array(rng.normal(size=shape), dtype, order=order)
    assert count_non_finite(values) == 0
    for bad in (math.nan, math.inf, -math.inf):
        broken = np.where(rng.random(size=shape) < 0.4, dtype(bad), values)
        broken = np.array(broken, order=order)
        assert count_non_finite(broken) == sum(not np.isfinite(x) for x in broken.flat)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.complex64])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("orders", ["CC", "CF", "FF"])
def test_the_square_of_the_distance(at_once, shape, dtype, orders):
    rng = np.random.default_rng(len(shape))
    pair = [np.array(rng.normal(size=shape), dtype, order=order) for order in orders]
    if dtype is np.complex64:
        pair[0] += dtype(1j)
    wide = [complex(a) - complex(b) for a, b in zip(*map(np.ravel, pair), strict=True)]
    want = sum(abs(apart) ** 2 for apart in wide)
    got = squared_distance(*pair)
    assert type(got) is float
    assert got == pytest.approx(want, rel=1e-12, abs=0)


def test_a_distance_beyond_all_numbers(at_once):
    """6e4 + 6e4 is beyond half precision only; 1e200 squared is beyond all."""
    halves = np.array([6e4, 0], np.float16), np.array([-6e4, 0], np.float16)
    assert squared_distance(*halves) == 1.44e10
    far = np.array([1e200, 0.0]), np.zeros(2)
    assert squared_distance(*far) == math.inf
    assert squared_distance(np.array([math.inf]), np.array([math.inf])) == math.inf
