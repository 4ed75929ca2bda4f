"""Flower's FedAvg, measured while it averages: every reply is read once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import FedAvg

from .decoding import encoded, view_of
from .one_pass import ArrayStatistics, can_pass, one_pass

__all__ = ["OnePassFedAvg", "Scoring"]

FLOATS = tuple(map(np.dtype, ("float16", "float32", "float64")))


@dataclass(frozen=True)
class Scoring:
    """The question how far the clients agree, to whoever reads their replies anyway.

    Parameters
    ----------
    sent : Mapping[str, Array]
        What the clients were sent.
    replied : Sequence[Mapping[str, Array]]
        The arrays of each client that are to be scored.
    scores : dict[str, float]
        The answers, by array. Those that are not there can be had from
        ``layer_cosines``.
    """

    sent: Mapping[str, Array]
    replied: Sequence[Mapping[str, Array]]
    scores: dict[str, float] = field(default_factory=dict)

    def about(self, name: str, arrays: Sequence[Array]) -> bool:
        """Whether the question is about these very arrays, all of them."""
        return len(arrays) == len(self.replied) and all(
            replied.get(name) is array
            for replied, array in zip(self.replied, arrays, strict=True)
        )


class OnePassFedAvg(FedAvg):
    """Flower's ``FedAvg``, bit for bit, and what can be had from the same reading.

    To the right of a strategy that goes on from FedAvg's mean:
    ``class Mine(LayerSelection, FedAvgM, OnePassFedAvg)``.

    Attributes
    ----------
    drift_of : Collection[str]
        The arrays whose drift is to be measured; none at first.
    drift : float or None
        ``local_drift`` of the replies averaged last. None if nothing was to be
        measured or it cannot be measured on the way, as if arrays differ in shape.
    """

    drift_of: Collection[str] = ()
    drift: float | None = None
    __scoring: Scoring | None = None

    @contextmanager
    def answering(self, scoring: Scoring) -> Iterator[None]:
        """Answer a question, as far as that is possible, while replies are averaged."""
        self.__scoring = scoring
        try:
            yield
        finally:
            self.__scoring = None  # it holds the replies

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate as FedAvg does."""
        self.drift = None
        valid, _ = self._check_and_log_replies(replies, is_train=True)
        if not valid:
            return None, None
        contents = [message.content for message in valid]
        records = [next(iter(one.array_records.values())) for one in contents]
        metrics = [next(iter(one.metric_records.values())) for one in contents]
        weights: list[Any] = [one[self.weighted_by_key] for one in metrics]
        total = sum(weights)
        arrays = self.__averaged(records, [weight / total for weight in weights])
        return arrays, self.train_metrics_aggr_fn(contents, self.weighted_by_key)

    def __averaged(
        self, records: Sequence[ArrayRecord], factors: Sequence[float]
    ) -> ArrayRecord:
        """Return the weighted mean; note what was to be measured."""
        means = ArrayRecord()  # filled: made of a dictionary, it makes every array anew
        squares = np.zeros(len(records))
        unmeasured = set(self.drift_of)
        for name in records[0]:
            arrays = [record[name] for record in records]
            found = self.__passed(name, arrays, factors)
            if found is None:
                means[name] = Array(_flowers_mean(arrays, factors))
                continue
            means[name] = encoded(found.mean)
            if name in unmeasured and found.distances.size:
                squares += found.distances
                unmeasured.remove(name)
        if self.drift_of and not unmeasured and np.isfinite(squares).all():
            self.drift = float(np.sqrt(squares).mean())
        return means

    def __passed(
        self, name: str, arrays: Sequence[Array], factors: Sequence[float]
    ) -> ArrayStatistics | None:
        """Return what one pass has found, or None if the arrays are too unlike."""
        views = [values for values in map(view_of, arrays) if values is not None]
        if len(views) < len(arrays) or not can_pass(views, factors):
            return None
        measured = views[0].dtype in FLOATS
        sent = self.__sent_to_score(name, arrays, views[0].shape) if measured else None
        drift = measured and name in self.drift_of
        found = one_pass(views, factors, sent=sent, drift=drift)
        if self.__scoring is not None and sent is not None:
            score = found.score()
            if score is not None:
                self.__scoring.scores[name] = score
        return found

    def __sent_to_score(
        self, name: str, arrays: Sequence[Array], shape: tuple[int, ...]
    ) -> npt.NDArray[Any] | None:
        """Return what was sent of an array, if it is to be scored and can be."""
        if self.__scoring is None or not self.__scoring.about(name, arrays):
            return None
        array = self.__scoring.sent.get(name)
        sent = None if array is None else view_of(array)
        if sent is None or sent.shape != shape or sent.dtype not in FLOATS:
            return None
        return sent


def _flowers_mean(
    arrays: Sequence[Array], factors: Sequence[float]
) -> npt.NDArray[Any]:
    """Return what Flower makes of arrays that may differ in anything."""
    mean = arrays[0].numpy() * factors[0]
    for array, factor in zip(arrays[1:], factors[1:], strict=True):
        mean += array.numpy() * factor
    return np.asarray(mean)
