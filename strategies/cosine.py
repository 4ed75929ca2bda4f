"""Layer scores and drift: pure functions of the arrays that clients send back."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["layer_cosines", "local_drift", "weight_name"]

Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]
Float64: TypeAlias = npt.NDArray[np.float64]


def weight_name(layer: str) -> str:
    """Return the name of the array that holds a layer's weight."""
    return f"{layer}.weight"


def layer_cosines(
    sent: Arrays, replies: Iterable[Arrays], layers: Iterable[str]
) -> dict[str, float]:
    r"""Score each layer by the agreement of the clients' updates (paper, Eq. 14).

    With :math:`g_i` the update of client *i* and :math:`\bar g` the unweighted mean,
    :math:`z = \frac1K \sum_i \cos(g_i, \bar g)`. Because
    :math:`\sum_i \cos(g_i, \bar g) = (\sum_i g_i / |g_i|) \cdot \bar g / |\bar g|`,
    two running sums per layer are enough: the replies are added one at a time, and the
    memory does not grow with their number.

    Parameters
    ----------
    sent : Mapping[str, ndarray]
        The arrays that every client received; layer ``x`` has the array ``x.weight``.
    replies : Iterable[Mapping[str, ndarray]]
        The arrays that each client sent back; consumed once.
    layers : Iterable[str]
        The layers to score.

    Returns
    -------
    dict[str, float]
        A score in [-1, 1] for each layer. A client whose update of a layer is zero or
        not finite does not count for that layer. The score is 0 if the updates cancel
        out, and ``nan`` if no client counts.
    """
    sums = {layer: _LayerSums(_array(sent, layer, "sent")) for layer in layers}
    for reply in replies:
        for layer, layer_sums in sums.items():
            layer_sums.add(_array(reply, layer, "replied"), layer)
    return {layer: layer_sums.score() for layer, layer_sums in sums.items()}


def local_drift(replies: Sequence[Arrays], names: Iterable[str]) -> float:
    r"""Return the paper's drift :math:`H = \frac1K \sum_i |\Delta w_i - \bar\Delta w|`.

    The weights that were sent cancel out of the difference, so only the replies are
    needed.

    Parameters
    ----------
    replies : Sequence[Mapping[str, ndarray]]
        The arrays that each client sent back. Without replies the drift is ``nan``.
    names : Iterable[str]
        The arrays that make up the weight vector: parameters, not buffers.
    """
    if not replies:
        return math.nan
    squares = np.zeros(len(replies))
    for name in names:
        if not all(name in reply for reply in replies):
            raise ValueError(f"{name}: a reply has no such array, so it has no drift")
        if len(shapes := {np.shape(reply[name]) for reply in replies}) > 1:
            raise ValueError(f"{name}: clients replied with the shapes {shapes}")
        with np.errstate(over="ignore", invalid="ignore"):  # inf or nan, no warning
            mean: Any = sum(np.asarray(reply[name], np.float64) for reply in replies)
            mean = mean / len(replies)
            for i, reply in enumerate(replies):
                distance = np.ravel(reply[name] - mean)
                squares[i] += _dot(distance, distance)
    return float(np.sqrt(squares).mean())


class _LayerSums:
    """The two running sums of one layer."""

    def __init__(self, sent: npt.NDArray[Any]) -> None:
        self.sent: Float64 = np.asarray(sent, np.float64)
        self.updates: Float64 = np.zeros(self.sent.size)
        self.directions: Float64 = np.zeros(self.sent.size)
        self.count = 0

    def add(self, reply: npt.NDArray[Any], layer: str) -> None:
        if reply.shape != self.sent.shape:
            raise ValueError(
                f"layer {layer!r}: a client replied with shape {reply.shape}, "
                f"{self.sent.shape} was sent"
            )
        with np.errstate(invalid="ignore", over="ignore"):  # checked below
            update = np.ravel(np.asarray(reply, np.float64) - self.sent)
            norm = math.sqrt(_dot(update, update))
        if norm > 0 and math.isfinite(norm):
            self.updates += update
            self.directions += update / norm
            self.count += 1

    def score(self) -> float:
        if self.count == 0:
            return math.nan
        norm = math.sqrt(_dot(self.updates, self.updates))
        if norm == 0:
            return 0.0
        score = _dot(self.directions, self.updates) / norm / self.count
        return min(1.0, max(-1.0, score))  # rounding can leave the interval


def _dot(one: Float64, other: Float64) -> float:
    """Return the dot product without BLAS, whose order of summation varies."""
    return float(np.einsum("n,n->", one, other))


def _array(arrays: Arrays, layer: str, which: str) -> npt.NDArray[Any]:
    try:
        return arrays[weight_name(layer)]
    except KeyError:
        raise ValueError(
            f"layer {layer!r} has no array {weight_name(layer)!r} among the {which} "
            f"arrays: {', '.join(arrays)}"
        ) from None
