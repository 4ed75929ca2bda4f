"""The weighted mean and the statistics of one array, from one pass over all replies.

The pass goes over blocks of columns of all replies that fit into the processor's
cache. The memory for double precision is therefore the same for any array size and any
number of clients. The block size depends on the number of clients only, and no sum is
left to BLAS, whose order of summation depends on the number of threads: the results
are the same on every machine.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["ArrayStatistics", "array_statistics", "fits_one_pass"]

NDArray: TypeAlias = npt.NDArray[Any]
Float64: TypeAlias = npt.NDArray[np.float64]

BLOCK_SIZE = 2**16  # numbers in double precision: half a megabyte
MIN_COLUMNS = 2**12  # per client; with fewer, calls to NumPy take longer than the work


@dataclass
class ArrayStatistics:
    """The mean of an array and the statistics of the clients' updates, one each.

    An update is relative to the array that was sent, or to zero if that is not given.
    All updates count alike, whatever the weights of the mean.
    """

    mean: NDArray
    """Weighted, with the arithmetic of Flower's FedAvg, bit for bit."""
    squared_norms: Float64
    dot_products: Float64
    """Of each client's update with the sum of all updates."""
    squared_distances: Float64
    """Of each client from the unweighted mean."""
    squared_norm_of_sum: float = 0.0
    """The squared norm of the sum of all updates."""

    def score(self) -> float | None:
        """Return the layer's score as ``layer_cosines`` does.

        None if an update is not finite: ``layer_cosines`` leaves that client out, which
        changes the sum of the others.
        """
        sums = [*self.squared_norms, *self.dot_products, self.squared_norm_of_sum]
        if not np.isfinite(sums).all():
            return None
        moved = self.squared_norms > 0
        if not moved.any():
            return math.nan
        if self.squared_norm_of_sum == 0:
            return 0.0
        cosines = self.dot_products[moved] / np.sqrt(self.squared_norms[moved])
        score = float(cosines.mean()) / math.sqrt(self.squared_norm_of_sum)
        return min(1.0, max(-1.0, score))  # rounding can leave the interval


def fits_one_pass(replies: Sequence[NDArray], factors: Sequence[float]) -> bool:
    """Whether all replies have one shape, type and memory layout (C-contiguous).

    The factors must be Python floats: NumPy's would widen float32 to float64.
    """
    first = replies[0]
    return all(type(factor) is float for factor in factors) and all(
        reply.shape == first.shape
        and reply.dtype == first.dtype
        and reply.flags.c_contiguous
        for reply in replies
    )


def array_statistics(
    replies: Sequence[NDArray],
    factors: Sequence[float],
    *,
    sent: NDArray | None = None,
    drift: bool = False,
) -> ArrayStatistics:
    """Average the clients' versions of an array and measure their updates.

    The replies must pass :func:`fits_one_pass`. The factors, the clients' weights in
    the mean, add up to 1. Updates are measured if ``drift`` is true or ``sent`` is
    given, the C-contiguous array that the clients received; the score needs it.
    """
    rows = [reply.reshape(-1) for reply in replies]
    mean = np.empty(rows[0].shape, (rows[0][:0] * factors[0]).dtype)
    columns = max(BLOCK_SIZE // len(rows), MIN_COLUMNS)
    scratch = np.empty(min(columns, mean.size), mean.dtype)
    updates, measured = None, 0
    if drift or sent is not None:
        flat_sent = None if sent is None else sent.reshape(-1)
        updates, measured = _Updates(rows, flat_sent, columns), len(rows)
    statistics = ArrayStatistics(
        mean.reshape(replies[0].shape), *np.zeros((3, measured))
    )
    for begin in range(0, mean.size, columns):
        block = slice(begin, begin + columns)
        part, product = mean[block], scratch[: mean[block].size]
        np.multiply(rows[0][block], factors[0], out=part)
        for row, factor in zip(rows[1:], factors[1:], strict=True):
            np.multiply(row[block], factor, out=product)
            np.add(part, product, out=part)
        if updates is not None:
            updates.add_block(block, statistics)
    return statistics


class _Updates:
    """The clients' updates, by groups of clients and blocks of columns."""

    def __init__(
        self, rows: Sequence[NDArray], sent: NDArray | None, columns: int
    ) -> None:
        self._rows, self._sent = rows, sent
        group_size = min(len(rows), BLOCK_SIZE // columns)
        self._groups = [
            slice(first, first + group_size)
            for first in range(0, len(rows), group_size)
        ]
        self._buffer = np.empty((group_size, min(columns, rows[0].size)))

    def add_block(self, block: slice, to: ArrayStatistics) -> None:
        # The results are checked by whoever uses them.
        with np.errstate(over="ignore", invalid="ignore"):
            total: Any = 0.0
            for group in self._groups:
                updates = self._updates(group, block)
                to.squared_norms[group] += np.einsum("cn,cn->c", updates, updates)
                total = total + np.add.reduce(updates, axis=0)
            to.squared_norm_of_sum += float(np.einsum("n,n->", total, total))
            mean = total / len(self._rows)
            for group in self._groups:
                if len(self._groups) > 1:  # a single group is still in the buffer
                    updates = self._updates(group, block)
                to.dot_products[group] += np.einsum("cn,n->c", updates, total)
                for update in updates:  # all rows at once would need a temporary array
                    update -= mean
                to.squared_distances[group] += np.einsum("cn,cn->c", updates, updates)

    def _updates(self, group: slice, block: slice) -> Float64:
        """Write the updates of a group of clients into the buffer; return them."""
        rows = [row[block] for row in self._rows[group]]
        updates = self._buffer[: len(rows), : rows[0].size]
        sent = None if self._sent is None else self._sent[block].astype(np.float64)
        for update, row in zip(updates, rows, strict=True):
            update[:] = row
            if sent is not None:
                update -= sent
        return updates
