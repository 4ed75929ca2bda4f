"""Check whether a client's reply can be averaged: a pure function of the reply.

Flower averages whatever it receives: one NaN stays in the model, a negative number of
examples inverts an average, and one reply with other arrays ends the run.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import Array, Message

from .array_checks import (
    count_non_finite,
    encoding_problem,
    metadata_problem,
    quote_value,
    squared_distance,
)
from .decoding import array_view, decode

__all__ = ["ReplyRules", "evaluation_problem_of", "name_differences", "problem_of"]

MAX_WEIGHT = 2.0**53  # far below where a sum of weights would be infinite
MAX_NAMES = 3  # in a message


@dataclass(frozen=True)
class ReplyRules:
    """What a good reply has besides the arrays that were sent.

    Config records are allowed in a reply; nothing reads them.

    Parameters
    ----------
    arrays, metrics : str, optional
        The names of the reply's only two records; None allows any name.
    weight : str (default: "num-examples")
        The metric that clients are weighted by; it must be above 0.
    max_weight : float (default: inf)
        The largest weight that is accepted, at most 2^53.
    keys : Collection[str], optional
        The names of all metrics, the weight included; None allows any.
    positive : Collection[str] (default: ())
        Metrics that are required and must be above 0, like the weight.
    lists : bool (default: False)
        Whether the other metrics may be lists of numbers.
    max_norm : float (default: inf)
        The largest norm of an update, over ``parameters``.
    parameters : Collection[str], optional
        The arrays whose change is the update; default: all floating arrays.
    dtypes : Mapping[str, str], optional
        By array, a type that is allowed besides the one it was sent in.
    """

    arrays: str | None = "arrays"
    metrics: str | None = "metrics"
    weight: str = "num-examples"
    max_weight: float = math.inf
    keys: Collection[str] | None = None
    positive: Collection[str] = ()
    lists: bool = False
    max_norm: float = math.inf
    parameters: Collection[str] | None = None
    dtypes: Mapping[str, str] | None = None


def problem_of(
    reply: Message, sent: Mapping[str, Array], rules: ReplyRules
) -> str | None:
    """Return why a reply without error cannot be averaged, or None if it can.

    It returns for any content: an array is decoded only after its size is known to be
    that of the array that was sent, and nothing is evaluated or unpickled.

    Parameters
    ----------
    reply : Message
        The reply to a train message.
    sent : Mapping[str, Array]
        The arrays of that message. The reply must have the same names in the same
        order, with the same shapes and types.
    rules : ReplyRules
        All other requirements.
    """
    content = reply.content
    for kind, names, required in (
        ("array", [*content.array_records], rules.arrays),
        ("metric", [*content.metric_records], rules.metrics),
    ):
        if len(names) != 1 or required not in (None, *names):
            one = "one" if required is None else f"one, {required!r}"
            return f"its {kind} records are {_quote_names(names)}; it must have {one}"
    (metrics,) = content.metric_records.values()
    (arrays,) = content.array_records.values()
    return _metrics_problem(metrics, rules) or _arrays_problem(arrays, sent, rules)


def evaluation_problem_of(reply: Message, rules: ReplyRules) -> str | None:
    """Return why a reply to an evaluate message cannot be averaged, or None if it can.

    Only the rules for metrics apply. Arrays are not checked, because nothing reads
    them.
    """
    records = reply.content.metric_records
    if len(records) != 1:
        return f"its metric records are {_quote_names([*records])}; it must have one"
    (metrics,) = records.values()
    return _metrics_problem(metrics, rules)


def name_differences(
    kind: str, names: Collection[str], expected: Collection[str]
) -> str:
    """Describe which of a client's names are missing or unexpected."""
    parts = []
    name_set, expected_set = frozenset(names), frozenset(expected)
    if missing := [name for name in expected if name not in name_set]:
        parts.append(f"{_quote_names(missing)} missing")
    if unexpected := [name for name in names if name not in expected_set]:
        parts.append(f"{_quote_names(unexpected)} unexpected")
    return f"its {kind} differ: {', '.join(parts)}"


def _metrics_problem(metrics: Mapping[str, Any], rules: ReplyRules) -> str | None:
    if rules.keys is not None and set(metrics) != set(rules.keys):
        return name_differences("metrics", metrics, rules.keys)
    positive = [rules.weight, *rules.positive]
    if missing := [name for name in positive if name not in metrics]:
        return f"it has no metric {_quote_names(missing)}"
    for name, value in metrics.items():
        may_be_list = rules.lists and name not in positive
        numbers = value if may_be_list and isinstance(value, list) else [value]
        if not all(map(_is_finite, numbers)):
            kind = "finite" if may_be_list else "a finite number"
            return _metric_text(name, value, f"it must be {kind}")
    for name in positive:
        if not metrics[name] > 0:
            return _metric_text(name, metrics[name], "it must be above 0")
    weight, limit = metrics[rules.weight], min(rules.max_weight, MAX_WEIGHT)
    if weight > limit:
        return _metric_text(rules.weight, weight, f"it must be at most {limit:.16g}")
    return None


def _arrays_problem(
    arrays: Mapping[str, Array], sent: Mapping[str, Array], rules: ReplyRules
) -> str | None:
    if [*arrays] != [*sent]:
        if set(arrays) == set(sent):
            return "its arrays are in another order than those sent"
        return name_differences("arrays", arrays, sent)
    parameters = sent if rules.parameters is None else rules.parameters
    square = 0.0
    for name, sent_array in sent.items():
        array = arrays[name]
        further_dtype = (rules.dtypes or {}).get(name)
        problem = metadata_problem(array, sent_array, further_dtype)
        values = array_view(array) if problem is None else None
        if values is None:
            problem = problem or encoding_problem(array, tuple(sent_array.shape))
            if problem:
                return f"its array {name!r} {problem}"
            values = array.numpy()
        if values.dtype.kind not in "fc":
            continue
        if count := count_non_finite(values):
            return f"its array {name!r} has {count} values that are not finite"
        if rules.max_norm < math.inf and name in parameters:
            square += squared_distance(values, decode(sent_array))
    if not (norm := math.sqrt(square)) <= rules.max_norm:
        return (
            f"its update has the norm {norm:.4g}; it must be at most {rules.max_norm:g}"
        )
    return None


def _metric_text(name: str, value: Any, requirement: str) -> str:
    return f"its metric {quote_value(name)} is {quote_value(value)}; {requirement}"


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except (OverflowError, TypeError):  # an int beyond all floats; a list
        return False


def _quote_names(names: Collection[str]) -> str:
    """Return the first of a client's names, safe to log, and the number of others."""
    quoted = [quote_value(name) for name in [*names][:MAX_NAMES]]
    if len(names) > MAX_NAMES:
        quoted[-1] += f" and {len(names) - MAX_NAMES} more"
    return ", ".join(quoted) or "none"
