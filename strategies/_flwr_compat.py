"""The one private part of Flower that the strategies use.

``tests/unit/strategies/test_flwr_compat.py`` fails when Flower changes it.
"""

from collections.abc import Iterable
from logging import INFO

from flwr.app import Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp.exception import InconsistentMessageReplies
from flwr.serverapp.strategy import FedAvg

__all__ = ["valid_train_replies"]


def valid_train_replies(strategy: FedAvg, replies: Iterable[Message]) -> list[Message]:
    """Return the train replies that FedAvg averages, after its own checks.

    Replies with an error are logged and left out. The strategy's own private method
    does the work; if Flower drops it, the same checks are done here. They raise
    ``InconsistentMessageReplies`` if the replies cannot be averaged.
    """
    check_and_log = getattr(strategy, "_check_and_log_replies", None)
    if check_and_log is not None:
        valid: list[Message] = check_and_log(replies, is_train=True)[0]
        return valid
    valid = []
    for reply in replies:
        if reply.has_error():
            node, reason = reply.metadata.src_node_id, reply.error.reason
            log(INFO, "aggregate_train: error from node %d: %s", node, reason)
        else:
            valid.append(reply)
    _check_consistency([reply.content for reply in valid], strategy.weighted_by_key)
    return valid


def _check_consistency(contents: list[RecordDict], weighted_by_key: str) -> None:
    """Raise unless the replies have the same records, names and a scalar weight."""
    layouts = []
    for content in contents:
        if len(content.array_records) != 1 or len(content.metric_records) != 1:
            raise InconsistentMessageReplies(
                reason="a reply must have one ArrayRecord and one MetricRecord"
            )
        ((arrays_key, arrays),) = content.array_records.items()
        ((metrics_key, metrics),) = content.metric_records.items()
        layouts.append({arrays_key: set(arrays), metrics_key: set(metrics)})
        if isinstance(metrics.get(weighted_by_key, []), list):
            raise InconsistentMessageReplies(
                reason=f"the metric {weighted_by_key!r} must be one number"
            )
    if any(layout != layouts[0] for layout in layouts[1:]):
        raise InconsistentMessageReplies(
            reason="all replies must have the same arrays and metrics"
        )
