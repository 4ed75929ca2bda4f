"""A strategy that leaves bad replies out, whatever its base does with good ones."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from logging import INFO, WARNING
from typing import Any, TypeAlias

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from .checks import ReplyRules, _metrics_problem, _some, other_names, problem_of

__all__ = ["CheckedReplies", "evaluation_problem_of"]

Form: TypeAlias = tuple[tuple[str, ...], tuple[tuple[str, int], ...]]


class CheckedReplies(Strategy):
    """Check every reply before it counts; the first base of a strategy.

    ``class Mine(CheckedReplies, LayerSelection, FedAvg)`` averages and scores good
    replies only: those with the arrays that were sent (names, order, shapes, types),
    finite values, a believable weight, and records and metrics like most others'. Bad
    ones are logged and counted, and the round goes on. Where none is left, nothing is
    aggregated, as in Flower, and the model stays as it is. Replies to evaluate messages
    are checked in the same way, for their metrics only. The base may also be one of
    Flower's wrappers, ``class Mine(CheckedReplies, DifferentialPrivacy...)``: they
    decode replies before the strategy inside sees them.

    Parameters
    ----------
    max_examples : float (default: inf)
        The largest weight (``weighted_by_key``) of a client.
    max_update_norm : float (default: inf)
        The largest norm of an update, over all floating arrays.
    **base : Any
        For the base strategy.

    Attributes
    ----------
    rejected : dict[int, str]
        Why replies of the last round did not count, by node.
    rejected_evaluations : dict[int, str]
        The same of its replies to evaluate messages.
    """

    def __init__(
        self,
        *,
        max_examples: float = math.inf,
        max_update_norm: float = math.inf,
        **base: Any,
    ) -> None:
        super().__init__(**base)
        for name, limit in (
            ("max_examples", max_examples),
            ("max_update_norm", max_update_norm),
        ):
            if not limit > 0:
                raise ValueError(f"{name} must be above 0, not {limit!r}")
        self.max_examples = max_examples
        self.max_update_norm = max_update_norm
        self.rejected: dict[int, str] = {}
        self.rejected_evaluations: dict[int, str] = {}
        self.__sent = ArrayRecord()
        self.__first_dtypes: dict[str, str] = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Configure the next round of federated training."""
        messages = list(super().configure_train(server_round, arrays, config, grid))  # type: ignore[safe-super]
        if messages:
            key = self.__key("arrayrecord_key", "arrays")
            self.__sent = messages[0].content.array_records[key]
            if not self.__first_dtypes:
                self.__first_dtypes = {k: a.dtype for k, a in self.__sent.items()}
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate the good replies as the base does."""
        rules = ReplyRules(
            arrays=None,
            metrics=None,
            weight=self.__key("weighted_by_key", "num-examples"),
            max_weight=self.max_examples,
            positive=getattr(self, "reply_metrics", ()),
            lists=True,
            max_norm=self.max_update_norm,
            # An averaged counter is sent as a float; clients may keep it whole.
            dtypes=self.__first_dtypes,
        )
        good, self.rejected = _good_and_rejected(
            replies,
            lambda reply: problem_of(reply, self.__sent, rules),
            lambda reply: (*reply.content.array_records, *reply.content.metric_records),
        )
        _report(f"round {server_round}: the reply", self.rejected)
        if not _any_without_error(server_round, good):
            return None, None
        return super().aggregate_train(server_round, good)  # type: ignore[safe-super]

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Aggregate the metrics of the good replies as the base does."""
        rules = ReplyRules(
            weight=self.__key("weighted_by_key", "num-examples"),
            max_weight=self.max_examples,
            lists=True,
        )
        good, self.rejected_evaluations = _good_and_rejected(
            replies,
            lambda reply: evaluation_problem_of(reply, rules),
            lambda reply: (*reply.content.metric_records,),
        )
        _report(f"round {server_round}: the evaluation", self.rejected_evaluations)
        if not _any_without_error(server_round, good):
            return None
        return super().aggregate_evaluate(server_round, good)  # type: ignore[safe-super]

    def __key(self, name: str, default: str) -> str:
        """Return a key of the base, or of the strategy that it wraps."""
        base: Any = self
        while hasattr(base, "strategy"):
            base = base.strategy
        return str(getattr(base, name, default))


def evaluation_problem_of(reply: Message, rules: ReplyRules) -> str | None:
    """Return why a reply without error to an evaluate message cannot count, or None.

    Of the rules those for metrics hold; arrays are not looked at, because nothing reads
    them.
    """
    records = reply.content.metric_records
    if len(records) != 1:
        return f"its metric records are {_some([*records])}; it must have one"
    (metrics,) = records.values()
    return _metrics_problem(metrics, rules)


def _good_and_rejected(
    replies: Iterable[Message],
    problem_with: Callable[[Message], str | None],
    names_of: Callable[[Message], tuple[str, ...]],
) -> tuple[list[Message], dict[int, str]]:
    """Return the replies that count, failures among them, and why others do not.

    Parameters
    ----------
    replies : Iterable[Message]
        All of a round.
    problem_with : Callable[[Message], str | None]
        What is wrong with a reply by itself.
    names_of : Callable[[Message], tuple[str, ...]]
        The names of its records, which must be those of most others.
    """
    replies = list(replies)
    problems: dict[int, str] = {}
    forms: dict[int, Form] = {}
    for place, reply in enumerate(replies):
        if reply.has_error():
            continue
        if problem := problem_with(reply):
            problems[place] = problem
        else:
            forms[place] = names_of(reply), _lengths(reply)
    if forms:
        usual = _most_common(forms.values())
        for place, form in forms.items():
            if form != usual:
                problems[place] = _difference(form, usual)
    good = [reply for place, reply in enumerate(replies) if place not in problems]
    return good, {replies[i].metadata.src_node_id: x for i, x in problems.items()}


def _report(what: str, rejected: dict[int, str]) -> None:
    for node, problem in rejected.items():
        log(WARNING, "%s of node %d does not count: %s", what, node, problem)


def _any_without_error(server_round: int, replies: list[Message]) -> bool:
    """Whether there is something to aggregate; if not, log why nobody has sent it.

    Bases log failures too, but some of Flower's divide by the number of replies.
    """
    if not all(reply.has_error() for reply in replies):
        return True
    for reply in replies:
        node, reason = reply.metadata.src_node_id, reply.error.reason
        log(INFO, "round %d: node %d has failed: %s", server_round, node, reason)
    return False


def _lengths(reply: Message) -> tuple[tuple[str, int], ...]:
    """Return the names of the metrics with the lengths of lists."""
    (metrics,) = reply.content.metric_records.values()
    lengths = {k: len(v) if isinstance(v, list) else -1 for k, v in metrics.items()}
    return tuple(sorted(lengths.items()))


def _most_common(forms: Iterable[Form]) -> Form:
    """Return the form of most replies; of two, not the one that came first."""
    counted = Counter(forms)
    return max(sorted(counted), key=counted.__getitem__)


def _difference(form: Form, usual: Form) -> str:
    found, wanted = (
        [*names, *(k if length < 0 else f"{k}[{length}]" for k, length in metrics)]
        for names, metrics in (form, usual)
    )
    return f"unlike most replies, {other_names('records and metrics', found, wanted)}"
