"""FedAvg's mean, the layer scores and the drift: each reply is read once."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import FedAvg

from ._flwr_compat import valid_train_replies
from .array_statistics import array_statistics, fits_one_pass
from .cosine import layer_cosines, local_drift, weight_name
from .decoding import DecodedArrays, array_view, encode

__all__ = ["Aggregate", "OnePassFedAvg", "aggregate", "measure"]

FLOATS = tuple(map(np.dtype, ("float16", "float32", "float64")))


@dataclass(frozen=True)
class Aggregate:
    """The result of a round's aggregation."""

    mean: dict[str, Array]
    """Flower's weighted mean of each array, bit for bit. Empty if the base strategy
    aggregates in its own way (a median, say)."""
    scores: dict[str, float]
    """:func:`~.cosine.layer_cosines` of the requested layers."""
    drift: float
    """:func:`~.cosine.local_drift` of the requested arrays; nan if there is none."""


class OnePassFedAvg(FedAvg):
    """Flower's ``FedAvg``, bit for bit, which also scores layers and measures drift.

    It is the rightmost base of a strategy that builds on FedAvg's mean:
    ``class Mine(LayerSelection, FedAvgM, OnePassFedAvg)``.

    Attributes
    ----------
    drift_parameters : Collection[str]
        The arrays whose drift is measured: the model's parameters. None by default.
    last_aggregate : Aggregate or None
        The result of the last round; None if there was nothing to aggregate.
    """

    drift_parameters: Collection[str] = ()
    last_aggregate: Aggregate | None = None

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate as FedAvg does; store the result in ``last_aggregate``."""
        self.last_aggregate = None
        valid = valid_train_replies(self, replies)
        if not valid:
            return None, None
        contents = [message.content for message in valid]
        records = [next(iter(one.array_records.values())) for one in contents]
        metrics = [next(iter(one.metric_records.values())) for one in contents]
        weights: list[Any] = [one[self.weighted_by_key] for one in metrics]
        self.last_aggregate = self.aggregate_arrays(records, weights)
        arrays = ArrayRecord()
        arrays.update(self.last_aggregate.mean)  # ArrayRecord(mean) would copy them
        return arrays, self.train_metrics_aggr_fn(contents, self.weighted_by_key)

    def aggregate_arrays(
        self, replies: Sequence[Mapping[str, Array]], weights: Sequence[float]
    ) -> Aggregate:
        """Aggregate the arrays of the valid replies.

        ``LayerSelection``, which is further left, overrides this to score its layers.
        """
        return aggregate({}, replies, weights, (), self.drift_parameters)


def aggregate(
    sent: Mapping[str, Array],
    replies: Sequence[Mapping[str, Array]],
    weights: Sequence[float],
    layers: Sequence[str],
    parameters: Collection[str],
) -> Aggregate:
    """Average replies, score ``layers`` and measure the drift of ``parameters``.

    The weights count for the mean only. Of ``sent`` only the arrays of ``layers`` are
    read. Arrays that differ in shape, type or memory layout are averaged as Flower does
    it and measured by ``layer_cosines`` and ``local_drift``, one more reading each.
    """
    total = sum(weights)
    factors = [weight / total for weight in weights]
    layer_of = {weight_name(layer): layer for layer in layers}
    unmeasured = set(parameters)
    squared_distances = np.zeros(len(replies))
    mean: dict[str, Array] = {}
    scores: dict[str, float] = {}
    for name in replies[0]:
        arrays = [reply[name] for reply in replies]
        views = [view for view in map(array_view, arrays) if view is not None]
        if len(views) < len(arrays) or not fits_one_pass(views, factors):
            mean[name] = Array(_mean_like_flower(arrays, factors))
            continue
        is_float = views[0].dtype in FLOATS
        start = None
        if is_float and name in layer_of:
            start = _view_like(views[0], sent.get(name))
        has_drift = is_float and name in unmeasured
        statistics = array_statistics(views, factors, sent=start, drift=has_drift)
        mean[name] = encode(statistics.mean)
        if start is not None and (score := statistics.score()) is not None:
            scores[layer_of[name]] = score
        if has_drift:
            squared_distances += statistics.squared_distances
            unmeasured.remove(name)
    missing = [layer for layer in layers if layer not in scores]
    is_measured = not unmeasured and bool(np.isfinite(squared_distances).all())
    slow_scores, drift = measure(
        sent, replies, missing, () if is_measured else parameters
    )
    if parameters and is_measured:
        drift = float(np.sqrt(squared_distances).mean())
    scores |= slow_scores
    return Aggregate(mean, {layer: scores[layer] for layer in layers}, drift)


def measure(
    sent: Mapping[str, Array],
    replies: Sequence[Mapping[str, Array]],
    layers: Collection[str],
    parameters: Collection[str],
) -> tuple[dict[str, float], float]:
    """Return the scores and the drift of :func:`aggregate` without the mean."""
    decoded = [DecodedArrays(reply) for reply in replies]
    scores = layer_cosines(DecodedArrays(sent), decoded, layers) if layers else {}
    return scores, local_drift(decoded, parameters) if parameters else math.nan


def _view_like(view: npt.NDArray[Any], array: Array | None) -> npt.NDArray[Any] | None:
    """Return a view of a floating array of the same shape; None if it is not one."""
    other = None if array is None else array_view(array)
    if other is None or other.shape != view.shape or other.dtype not in FLOATS:
        return None
    return other


def _mean_like_flower(
    arrays: Sequence[Array], factors: Sequence[float]
) -> npt.NDArray[Any]:
    """Return the mean with Flower's own operations, for arrays of any kind."""
    mean = arrays[0].numpy() * factors[0]
    for array, factor in zip(arrays[1:], factors[1:], strict=True):
        mean += array.numpy() * factor
    return np.asarray(mean)
