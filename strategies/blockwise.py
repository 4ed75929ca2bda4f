"""Questions to large arrays, answered a piece at a time to need no such room again."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["not_finite", "squared_distance"]

AT_ONCE = 2**16  # numbers


def not_finite(values: npt.NDArray[Any]) -> int:
    """Count the values that are not finite."""
    flat, bad = values.ravel(order="K"), 0
    for i in range(0, flat.size, AT_ONCE):
        finite = np.isfinite(flat[i : i + AT_ONCE])
        bad += finite.size - int(np.count_nonzero(finite))
    return bad


def squared_distance(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> float:
    """Return the square of the distance in double precision; inf if it has none."""
    wide = np.result_type(one, np.float64)
    one, other = np.ravel(one), np.ravel(other)
    square = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for i in range(0, one.size, AT_ONCE):
            part = slice(i, i + AT_ONCE)
            apart = np.subtract(one[part], other[part], dtype=wide)
            # Not BLAS, which sums in another order on another number of threads.
            square += float(np.einsum("n,n->", apart.conj(), apart).real)
    return square if math.isfinite(square) else math.inf
