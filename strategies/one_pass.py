"""One array of all clients, read once: its mean, its score and how far it drifted.

A few columns of all replies at a time, so that they stay in the processor's cache, and
what is computed in double precision needs the same memory for any array and any number
of clients. How they are cut depends on that number alone and nothing here is left to
BLAS, which sums in another order on another number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["ArrayStatistics", "can_pass", "one_pass"]

Array: TypeAlias = npt.NDArray[Any]
Float64: TypeAlias = npt.NDArray[np.float64]

AT_ONCE = 2**16  # numbers in double precision: half a megabyte
FEWEST_COLUMNS = 2**12  # of a client; below, calling NumPy takes longer than computing


def _nobody() -> Float64:
    return np.zeros(0)


@dataclass(frozen=True)
class ArrayStatistics:
    """What a pass has found; the last four are empty if it was for the mean alone.

    Updates are relative to what was sent, or to zero if that was not given; all of
    them count alike, whatever the factors of the mean are.
    """

    mean: Array
    """Weighted, in the arithmetic of Flower's FedAvg, bit for bit."""
    squares: Float64 = field(default_factory=_nobody)
    """The squared norm of each client's update."""
    dots: Float64 = field(default_factory=_nobody)
    """The product of each client's update with their sum."""
    total: float = 0.0
    """The squared norm of their sum."""
    distances: Float64 = field(default_factory=_nobody)
    """The squared distance of each client from the mean of all."""

    def score(self) -> float | None:
        """Return the score that ``layer_cosines`` gives.

        None if an update is not finite: who is left out changes the sum of the others.
        """
        if not np.isfinite([*self.squares, *self.dots, self.total]).all():
            return None
        moved = self.squares > 0
        if not moved.any():
            return math.nan
        if self.total == 0:
            return 0.0
        cosines = self.dots[moved] / np.sqrt(self.squares[moved])
        score = float(cosines.mean()) / math.sqrt(self.total)
        return min(1.0, max(-1.0, score))  # rounding can leave the interval


def can_pass(replies: Sequence[Array], factors: Sequence[float]) -> bool:
    """Whether replies lie alike in memory and have the types that are usual."""
    first = replies[0]
    return all(type(factor) is float for factor in factors) and all(
        reply.shape == first.shape
        and reply.dtype == first.dtype
        and reply.flags.c_contiguous
        for reply in replies
    )


def one_pass(
    replies: Sequence[Array],
    factors: Sequence[float],
    *,
    sent: Array | None = None,
    drift: bool = False,
) -> ArrayStatistics:
    """Average the clients' versions of an array, and measure them on the way.

    Parameters
    ----------
    replies : Sequence[ndarray]
        One of each client, of one shape and type, C-contiguous.
    factors : Sequence[float]
        The clients' weights in the mean.
    sent : ndarray, optional
        What the clients were sent; C-contiguous. Without it there is no score.
    drift : bool (default: False)
        Whether to measure without it, too.
    """
    rows = [reply.reshape(-1) for reply in replies]
    mean = np.empty(rows[0].shape, (rows[0][:0] * factors[0]).dtype)
    columns = max(AT_ONCE // len(rows), FEWEST_COLUMNS)
    scratch = np.empty(min(columns, mean.size), mean.dtype)
    measured = None
    if drift or sent is not None:
        measured = _Measured(rows, None if sent is None else sent.reshape(-1), columns)
    for begin in range(0, mean.size, columns):
        part = slice(begin, begin + columns)
        _average(rows, factors, part, mean[part], scratch)
        if measured is not None:
            measured.add(part)
    shaped = mean.reshape(replies[0].shape)
    if measured is None:
        return ArrayStatistics(shaped)
    return ArrayStatistics(
        shaped, measured.squares, measured.dots, measured.total, measured.distances
    )


def _average(
    rows: Sequence[Array],
    factors: Sequence[float],
    part: slice,
    mean: Array,
    scratch: Array,
) -> None:
    """Do what Flower does to whole arrays: multiply one client after another, add."""
    product = scratch[: mean.size]
    np.multiply(rows[0][part], factors[0], out=mean)
    for row, factor in zip(rows[1:], factors[1:], strict=True):
        np.multiply(row[part], factor, out=product)
        np.add(mean, product, out=mean)


class _Measured:
    """The sums over all columns so far."""

    def __init__(self, rows: Sequence[Array], sent: Array | None, columns: int) -> None:
        self.squares = np.zeros(len(rows))
        self.dots = np.zeros(len(rows))
        self.distances = np.zeros(len(rows))
        self.total = 0.0
        self._rows, self._sent = rows, sent
        at_once = min(len(rows), AT_ONCE // columns)
        self._groups = [
            slice(first, first + at_once) for first in range(0, len(rows), at_once)
        ]
        self._updates = np.empty((at_once, min(columns, rows[0].size)))

    def add(self, part: slice) -> None:
        """Take in some columns."""
        with np.errstate(over="ignore", invalid="ignore"):  # looked at by the caller
            total: Any = 0.0
            for group in self._groups:
                updates = self._filled(group, part)
                self.squares[group] += np.einsum("cn,cn->c", updates, updates)
                total = total + np.add.reduce(updates, axis=0)
            self.total += float(np.einsum("n,n->", total, total))
            mean = total / len(self._rows)
            for group in self._groups:
                if len(self._groups) > 1:  # or they are still there
                    updates = self._filled(group, part)
                self.dots[group] += np.einsum("cn,n->c", updates, total)
                for update in updates:  # together NumPy would need room of its own
                    update -= mean
                self.distances[group] += np.einsum("cn,cn->c", updates, updates)

    def _filled(self, group: slice, part: slice) -> Float64:
        """Return the updates of some clients in some columns, in double precision."""
        rows = [row[part] for row in self._rows[group]]
        updates = self._updates[: len(rows), : rows[0].size]
        sent = None if self._sent is None else self._sent[part].astype(np.float64)
        for update, row in zip(updates, rows, strict=True):
            update[:] = row
            if sent is not None:
                update -= sent
        return updates
