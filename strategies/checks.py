"""Is a client's reply fit to be averaged? A pure function of it and what was sent.

Flower averages what it is sent: one NaN is in the model for good, a negative number of
examples turns an average around, and one reply with other arrays ends the run.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, Message

from .blockwise import not_finite, squared_distance
from .decoding import NUMPY, decoded, view_of

__all__ = ["ReplyRules", "other_names", "problem_of"]

MAGIC = b"\x93NUMPY\x01\x00"  # format 1.0, in which NumPy saves what we send
LONGEST_HEADER = 10_000  # beyond, NumPy refuses to read it
LARGEST_WEIGHT = 2.0**53  # far below where a sum of weights would be infinite
MOST_NAMES = 3  # that a reason names ...
MOST_CHARACTERS = 80  # ... and of each of them


@dataclass(frozen=True)
class ReplyRules:
    """What a good reply is, besides having the arrays that were sent.

    Records of config may be in it; nothing reads them.

    Parameters
    ----------
    arrays, metrics : str, optional
        Names of the reply's only two records; any if they are not given.
    weight : str (default: "num-examples")
        The metric clients are weighted by: above 0.
    max_weight : float (default: inf)
        The largest weight that is believed; 2^53 is, however large it is.
    keys : Collection[str], optional
        All metrics of a reply, the weight included; any if it is not given.
    positive : Collection[str] (default: ())
        Metrics that must be there and above 0, like the weight.
    lists : bool (default: False)
        Whether other metrics may be lists of numbers.
    max_norm : float (default: inf)
        The largest norm of an update, over ``parameters``.
    parameters : Collection[str], optional
        The arrays whose change is the update; all floating ones if it is not given.
    dtypes : Mapping[str, str], optional
        Types in which arrays may come back besides the one they were sent in.
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
    """Return why a reply without error cannot count, or None if it can.

    Whatever a client sends, this returns: an array is decoded only when it is known to
    be as large as the one that was sent, and nothing is evaluated or unpickled.

    Parameters
    ----------
    reply : Message
        The reply to a train message.
    sent : Mapping[str, Array]
        The arrays of that message; the reply must have the same names in the same
        order, with the same shapes and types.
    rules : ReplyRules
        Everything else.
    """
    content = reply.content
    for kind, found, wanted in (
        ("array", [*content.array_records], rules.arrays),
        ("metric", [*content.metric_records], rules.metrics),
    ):
        if len(found) != 1 or wanted not in (None, *found):
            must = "one" if wanted is None else f"one, {wanted!r}"
            return f"its {kind} records are {_some(found)}; it must have {must}"
    (metrics,) = content.metric_records.values()
    (arrays,) = content.array_records.values()
    return _metrics_problem(metrics, rules) or _arrays_problem(arrays, sent, rules)


def other_names(kind: str, found: Collection[str], wanted: Collection[str]) -> str:
    """Say which names of a client are not the ones that were wanted."""
    parts = []
    is_found, is_wanted = frozenset(found), frozenset(wanted)
    if missing := [name for name in wanted if name not in is_found]:
        parts.append(f"{_some(missing)} missing")
    if more := [name for name in found if name not in is_wanted]:
        parts.append(f"{_some(more)} not asked for")
    return f"its {kind} are others: {', '.join(parts)}"


def _metrics_problem(metrics: Mapping[str, Any], rules: ReplyRules) -> str | None:
    if rules.keys is not None and set(metrics) != set(rules.keys):
        return other_names("metrics", metrics, rules.keys)
    positive = [rules.weight, *rules.positive]
    if missing := [name for name in positive if name not in metrics]:
        return f"it has no metric {_some(missing)}"
    for name, value in metrics.items():
        may_be_list = rules.lists and name not in positive
        numbers = value if may_be_list and isinstance(value, list) else [value]
        if not all(map(_finite, numbers)):
            kind = "finite" if may_be_list else "a finite number"
            return f"its metric {_short(name)} is {_short(value)}; it must be {kind}"
    for name in positive:
        if not metrics[name] > 0:
            value = _short(metrics[name])
            return f"its metric {_short(name)} is {value}; it must be above 0"
    weight, most = metrics[rules.weight], min(rules.max_weight, LARGEST_WEIGHT)
    if weight > most:
        value = _short(weight)
        return f"its metric {rules.weight!r} is {value}; it must be at most {most:.16g}"
    return None


def _arrays_problem(
    arrays: Mapping[str, Array], sent: Mapping[str, Array], rules: ReplyRules
) -> str | None:
    if [*arrays] != [*sent]:
        if set(arrays) == set(sent):
            return "its arrays are in another order than those sent"
        return other_names("arrays", arrays, sent)
    measured = sent if rules.parameters is None else rules.parameters
    square = 0.0
    for name, like in sent.items():
        array = arrays[name]
        problem = _kind_problem(array, like, (rules.dtypes or {}).get(name))
        values = view_of(array) if problem is None else None
        if values is None:
            if problem := problem or _bytes_problem(array, tuple(like.shape)):
                return f"its array {name!r} {problem}"
            values = array.numpy()
        if values.dtype.kind not in "fc":
            continue
        if bad := not_finite(values):
            return f"its array {name!r} has {bad} values that are not finite"
        if rules.max_norm < math.inf and name in measured:
            square += squared_distance(values, decoded(like))
    if not (norm := math.sqrt(square)) <= rules.max_norm:
        return (
            f"its update has the norm {norm:.4g}; it must be at most {rules.max_norm:g}"
        )
    return None


def _kind_problem(array: Array, like: Array, dtype: str | None) -> str | None:
    """Say in what an array is unlike the one that was sent, going by what it says."""
    shape = tuple(like.shape)
    if array.stype != NUMPY:
        return f"is of the kind {_short(array.stype)}, not {NUMPY!r}"
    if tuple(array.shape) != shape:
        return f"has the shape {_short(tuple(array.shape))}, not {shape}"
    if array.dtype not in (like.dtype, dtype):
        return f"is of the type {_short(array.dtype)}, not {like.dtype!r}"
    return None


def _bytes_problem(array: Array, shape: tuple[int, ...]) -> str | None:
    """Say in what the bytes of an array are not what it says of itself.

    NumPy evaluates the header of what it reads. Here it reads only what has, letter by
    letter, a header that NumPy writes itself for such an array, however it is padded.
    """
    if not array.data.startswith(MAGIC):
        found = _short(array.data[: len(MAGIC)])
        return f"begins with {found}, not with NumPy's {MAGIC!r}"
    own = np.dtype(array.dtype)
    length = int.from_bytes(array.data[len(MAGIC) : len(MAGIC) + 2], "little")
    begin = len(MAGIC) + 2 + length
    header = array.data[len(MAGIC) + 2 : begin].rstrip(b" \n")
    allowed = [_header(own, shape, fortran) for fortran in (False, True)]
    if header not in allowed:
        return f"has the header {_short(header)}, not {allowed[0]!r}"
    size, expected = len(array.data) - begin, own.itemsize * math.prod(shape)
    if size != expected:
        return f"has {max(size, 0)} bytes of values, not {expected}"
    if length > LONGEST_HEADER:
        return f"has a header of {length} bytes, more than {LONGEST_HEADER}"
    return None


def _header(dtype: np.dtype[Any], shape: tuple[int, ...], fortran_order: bool) -> bytes:
    """Return what NumPy writes before an array, without the padding."""
    descr = np.lib.format.dtype_to_descr(dtype)
    text = f"'descr': {descr!r}, 'fortran_order': {fortran_order}, 'shape': {shape}, "
    return f"{{{text}}}".encode("latin1")


def _finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except (OverflowError, TypeError):  # beyond all floats; a list
        return False


def _some(names: Collection[str]) -> str:
    """Return the first of some names that a client has made up, fit to be logged."""
    shown = [_short(name) for name, _ in zip(names, range(MOST_NAMES), strict=False)]
    if len(names) > MOST_NAMES:
        shown[-1] += f" and {len(names) - MOST_NAMES} more"
    return ", ".join(shown) or "none"


def _short(value: Any) -> str:
    """Return the beginning of what a client has sent, on one line."""
    if isinstance(value, str | bytes | list | tuple):
        value = value[:MOST_CHARACTERS]
    try:
        text = repr(value)
    except ValueError:  # Python writes no whole number of more than 4300 digits
        return "a number of thousands of digits"
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}..."
