"""A strategy base that rejects bad replies before its other bases aggregate."""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from logging import INFO, WARNING
from typing import Any, TypeAlias

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from .checks import ReplyRules, evaluation_problem_of, name_differences, problem_of

__all__ = ["CheckedReplies"]

# The names of a reply's records, and its metrics with the lengths of lists.
Layout: TypeAlias = tuple[tuple[str, ...], tuple[tuple[str, int], ...]]
SCALAR = -1  # the "length" of a metric that is a number


class CheckedReplies(Strategy):
    """Check every reply before it counts; the first base of a strategy.

    ``class Mine(CheckedReplies, LayerSelection, FedAvg)`` averages and scores good
    replies only: those with the arrays that were sent (names, order, shapes, types),
    finite values, a plausible weight, and the same records and metrics as most other
    replies. Bad replies are logged and counted, and the round continues. If no good
    reply is left, nothing is aggregated and the model stays as it is, as in Flower.
    Replies to evaluate messages are checked in the same way, for their metrics only.

    The base may also be one of Flower's wrappers, ``class Mine(CheckedReplies,
    DifferentialPrivacy...)``. A wrapper decodes replies before its inner strategy gets
    them, so the check belongs to the left of the wrapper and not inside it.

    Parameters
    ----------
    max_examples : float (default: inf)
        The largest weight (``weighted_by_key``) of a client.
    max_update_norm : float (default: inf)
        The largest norm of an update, over all floating arrays.
    **base : Any
        The arguments of the base strategy.

    Attributes
    ----------
    rejected : dict[int, str]
        Why train replies of the last round were rejected, by node.
    rejected_evaluations : dict[int, str]
        Why evaluate replies of the last round were rejected, by node.
    """

    def __init__(
        self,
        *,
        max_examples: float = math.inf,
        max_update_norm: float = math.inf,
        **base: Any,
    ) -> None:
        super().__init__(**base)
        self.max_examples = max_examples
        self.max_update_norm = max_update_norm
        for name in ("max_examples", "max_update_norm"):
            if not (limit := getattr(self, name)) > 0:
                raise ValueError(f"{name} must be above 0, not {limit!r}")
        self.rejected: dict[int, str] = {}
        self.rejected_evaluations: dict[int, str] = {}
        self.__sent = ArrayRecord()
        self.__initial_dtypes: dict[str, str] = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Configure the next round of federated training."""
        messages = list(super().configure_train(server_round, arrays, config, grid))  # type: ignore[safe-super]
        if messages:
            key = self.__record_key("arrayrecord_key", "arrays")
            self.__sent = messages[0].content.array_records[key]
            if not self.__initial_dtypes:
                self.__initial_dtypes = {k: a.dtype for k, a in self.__sent.items()}
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate the good replies as the base does."""
        rules = ReplyRules(
            arrays=None,
            metrics=None,
            weight=self.__record_key("weighted_by_key", "num-examples"),
            max_weight=self.max_examples,
            positive=getattr(self, "reply_metrics", ()),
            lists=True,
            max_norm=self.max_update_norm,
            # Averaging turns an integer counter into a float; clients may keep the int.
            dtypes=self.__initial_dtypes,
        )
        accepted, self.rejected = _accepted_replies(
            server_round,
            f"round {server_round}: the reply",
            replies,
            lambda reply: problem_of(reply, self.__sent, rules),
            lambda reply: (*reply.content.array_records, *reply.content.metric_records),
        )
        if not accepted:
            return None, None
        return super().aggregate_train(server_round, accepted)  # type: ignore[safe-super]

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Aggregate the metrics of the good replies as the base does."""
        rules = ReplyRules(
            weight=self.__record_key("weighted_by_key", "num-examples"),
            max_weight=self.max_examples,
            lists=True,
        )
        accepted, self.rejected_evaluations = _accepted_replies(
            server_round,
            f"round {server_round}: the evaluation",
            replies,
            lambda reply: evaluation_problem_of(reply, rules),
            lambda reply: (*reply.content.metric_records,),
        )
        if not accepted:
            return None
        return super().aggregate_evaluate(server_round, accepted)  # type: ignore[safe-super]

    def __record_key(self, attribute: str, default: str) -> str:
        """Return a key of the base, or of the strategy that the base wraps."""
        base: Any = self
        while hasattr(base, "strategy"):
            base = base.strategy
        return str(getattr(base, attribute, default))


def _accepted_replies(
    server_round: int,
    subject: str,
    replies: Iterable[Message],
    problem_with: Callable[[Message], str | None],
    record_names: Callable[[Message], tuple[str, ...]],
) -> tuple[list[Message], dict[int, str]]:
    """Return the replies for the base and, by node, why the others are rejected.

    The names of a reply's records must be those of most replies. Replies with an error
    are handed on: the base logs them. But without any valid reply nothing is, because
    some of Flower's strategies divide by the number of replies.
    """
    replies = list(replies)
    problems: dict[int, str] = {}
    layouts: dict[int, Layout] = {}
    for index, reply in enumerate(replies):
        if reply.has_error():
            continue
        if problem := problem_with(reply):
            problems[index] = problem
        else:
            layouts[index] = record_names(reply), _metric_lengths(reply)
    usual = _most_common(layouts.values()) if layouts else None
    for index, layout in layouts.items():
        if usual is not None and layout != usual:
            problems[index] = _layout_problem(layout, usual)
    rejected = {replies[i].metadata.src_node_id: text for i, text in problems.items()}
    for node, problem in rejected.items():
        log(WARNING, "%s of node %d is rejected: %s", subject, node, problem)
    accepted = [reply for index, reply in enumerate(replies) if index not in problems]
    if not all(reply.has_error() for reply in accepted):
        return accepted, rejected
    for reply in accepted:
        node, reason = reply.metadata.src_node_id, reply.error.reason
        log(INFO, "round %d: node %d has failed: %s", server_round, node, reason)
    return [], rejected


def _metric_lengths(reply: Message) -> tuple[tuple[str, int], ...]:
    """Return the sorted names of the metrics, with the lengths of lists."""
    (metrics,) = reply.content.metric_records.values()
    lengths = {k: len(v) if isinstance(v, list) else SCALAR for k, v in metrics.items()}
    return tuple(sorted(lengths.items()))


def _most_common(layouts: Iterable[Layout]) -> Layout:
    """Return the layout of most replies; a tie does not depend on their order."""
    counts = Counter(layouts)
    return max(sorted(counts), key=counts.__getitem__)


def _layout_problem(layout: Layout, usual: Layout) -> str:
    names, expected = (
        [*records, *(k if n == SCALAR else f"{k}[{n}]" for k, n in metrics)]
        for records, metrics in (layout, usual)
    )
    differences = name_differences("records and metrics", names, expected)
    return f"unlike most replies, {differences}"
