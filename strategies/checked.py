"""A strategy that leaves bad replies out, whatever its base does with good ones."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from logging import WARNING
from typing import Any, TypeAlias

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from .checks import ReplyRules, other_names, problem_of

__all__ = ["CheckedReplies"]

Form: TypeAlias = tuple[str, str, tuple[tuple[str, int], ...]]


class CheckedReplies(Strategy):
    """Check every reply before it counts; the first base of a strategy.

    ``class Mine(CheckedReplies, LayerSelection, FedAvg)`` averages and scores good
    replies only: those with the arrays that were sent (names, order, shapes, types),
    finite values, a believable weight, and records and metrics like most others'. Bad
    ones are logged and counted, and the round goes on. Where none is left, nothing is
    aggregated, as in Flower, and the model stays as it is. The base may also be one of
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
        replies = list(replies)
        problems = self.__problems(replies)
        self.rejected = {
            replies[place].metadata.src_node_id: problem
            for place, problem in problems.items()
        }
        for node, problem in self.rejected.items():
            log(
                WARNING,
                "round %d: the reply of node %d does not count: %s",
                server_round,
                node,
                problem,
            )
        good = [reply for i, reply in enumerate(replies) if i not in problems]
        return super().aggregate_train(server_round, good)  # type: ignore[safe-super]

    def __problems(self, replies: list[Message]) -> dict[int, str]:
        """Return what is wrong with the replies, by their places in the list."""
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
        problems: dict[int, str] = {}
        forms: dict[int, Form] = {}
        for place, reply in enumerate(replies):
            if reply.has_error():
                continue
            if problem := problem_of(reply, self.__sent, rules):
                problems[place] = problem
            else:
                forms[place] = _form(reply)
        if forms:
            usual = _most_common(forms.values())
            for place, form in forms.items():
                if form != usual:
                    problems[place] = _difference(form, usual)
        return problems

    def __key(self, name: str, default: str) -> str:
        """Return a key of the base, or of the strategy that it wraps."""
        base: Any = self
        while hasattr(base, "strategy"):
            base = base.strategy
        return str(getattr(base, name, default))


def _form(reply: Message) -> Form:
    """Return what must be the same in all replies that are averaged.

    The names of both records, and those of the metrics with the lengths of lists.
    """
    ((arrays, _),) = reply.content.array_records.items()
    ((name, metrics),) = reply.content.metric_records.items()
    lengths = {k: len(v) if isinstance(v, list) else -1 for k, v in metrics.items()}
    return arrays, name, tuple(sorted(lengths.items()))


def _most_common(forms: Iterable[Form]) -> Form:
    """Return the form of most replies; of two, not the one that came first."""
    counted = Counter(forms)
    return max(sorted(counted), key=counted.__getitem__)


def _difference(form: Form, usual: Form) -> str:
    found, wanted = (
        [*names, *(k if length < 0 else f"{k}[{length}]" for k, length in metrics)]
        for *names, metrics in (form, usual)
    )
    return f"unlike most replies, {other_names('records and metrics', found, wanted)}"
