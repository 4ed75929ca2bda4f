"""Reductions in blocks against the same on whole arrays.

The checks of metadata and bytes are tested through ``problem_of`` in test_checks.py.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from strategies import array_checks
from strategies.array_checks import count_non_finite, squared_distance

SHAPES = [(), (0,), (11,), (2, 3, 4)]
DTYPES = [np.float16, np.float64, np.complex64]


@pytest.fixture(params=[1, 5, 2**16], autouse=True)
def block_size(request, monkeypatch):
    monkeypatch.setattr(array_checks, "BLOCK_SIZE", request.param)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_count_of_non_finite_values(shape):
    rng = np.random.default_rng(len(shape))
    for dtype in DTYPES:
        for order in "CF":
            values = np.array(rng.normal(size=shape), dtype, order=order)
            assert count_non_finite(values) == 0
            for bad in (math.nan, math.inf, -math.inf):
                broken = np.where(rng.random(size=shape) < 0.4, dtype(bad), values)
                broken = np.array(broken, order=order)
                want = sum(not np.isfinite(x) for x in broken.flat)
                assert count_non_finite(broken) == want


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_squared_distance(shape):
    rng = np.random.default_rng(len(shape))
    for dtype in DTYPES:
        for orders in ("CC", "CF", "FF"):
            one, other = (
                np.array(rng.normal(size=shape), dtype, order=order) for order in orders
            )
            if dtype is np.complex64:
                one += dtype(1j)
            pairs = zip(one.ravel(), other.ravel(), strict=True)
            want = sum(abs(complex(a) - complex(b)) ** 2 for a, b in pairs)
            got = squared_distance(one, other)
            assert type(got) is float
            assert got == pytest.approx(want, rel=1e-12, abs=0)


def test_a_distance_beyond_all_numbers():
    """6e4 + 6e4 is beyond half precision only; 1e200 squared is beyond all floats."""
    halves = np.array([6e4, 0], np.float16), np.array([-6e4, 0], np.float16)
    assert squared_distance(*halves) == 1.44e10
    far = np.array([1e200, 0.0]), np.zeros(2)
    assert squared_distance(*far) == math.inf
    assert squared_distance(np.array([math.inf]), np.array([math.inf])) == math.inf
