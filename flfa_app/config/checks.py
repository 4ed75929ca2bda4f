"""All problems of a run config: unknown keys, wrong values, contradictions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any

from flfa_app.config.keys import Key


def config_problems(
    keys: Mapping[str, Key], run_config: Mapping[str, Any]
) -> list[str]:
    """Return every problem of a run config, each with key, value and cure."""
    unknown = [_unknown_key(key, keys) for key in run_config if key not in keys]
    wrong = {name: _wrong_value(key, run_config) for name, key in keys.items()}
    valid = {name: run_config[name] for name in keys if wrong[name] is None}
    return [*unknown, *filter(None, wrong.values()), *_contradictions(valid)]


def split_names(text: str) -> tuple[str, ...]:
    """Return the names in a text that separates them by commas."""
    names = (name.strip() for name in text.split(","))
    return tuple(name for name in names if name)


def _unknown_key(key: str, keys: Collection[str]) -> str:
    close = get_close_matches(key, keys, n=1)
    return f"{key} is not a key" + (f"; did you mean {close[0]}?" if close else "")


def _wrong_value(key: Key, run_config: Mapping[str, Any]) -> str | None:
    if key.name not in run_config:
        return f"{key.name} is missing; it must be {key.values.allowed}"
    value = run_config[key.name]
    if key.values.accepts(value):
        return None
    return f"{key.name} is {value!r}; it must be {key.values.allowed}"


def _contradictions(valid: Mapping[str, Any]) -> list[str]:
    """Return the contradictions between values that are valid one by one.

    A key that is missing in ``valid`` has a problem already and contradicts nothing.
    """
    problems = _layer_contradictions(valid.get("flfa"), valid.get("fixed-fa-layers"))
    if valid.get("feedback") == "dfa":
        problems += _direct_feedback_contradictions(valid)
    partitioner, column = valid.get("partitioner"), valid.get("partition-column")
    if partitioner == "natural" and column == "":
        problems.append(
            "partition-column is empty, but partitioner is 'natural'; name the column "
            "of the data that has the owner of each image"
        )
    if partitioner not in (None, "natural") and column:
        problems.append(
            f"partition-column is {column!r}, but partitioner is {partitioner!r}; set "
            "partitioner to 'natural' or leave partition-column empty"
        )
    return problems


def _layer_contradictions(rule: str | None, layers: str | None) -> list[str]:
    if layers is None:
        return []
    names = split_names(layers)
    problems = []
    if rule == "fixed" and not names:
        problems.append(
            "fixed-fa-layers is empty, but flfa is 'fixed'; name the layers, separated "
            "by commas"
        )
    if rule not in (None, "fixed") and names:
        problems.append(
            f"fixed-fa-layers is {layers!r}, but flfa is {rule!r}; set flfa to 'fixed' "
            "or leave fixed-fa-layers empty"
        )
    if len(set(names)) < len(names):
        problems.append(
            f"fixed-fa-layers is {layers!r}, which names a layer twice; name it once"
        )
    return problems


def _direct_feedback_contradictions(valid: Mapping[str, Any]) -> list[str]:
    problems = []
    if valid.get("scaling", "tensor") != "tensor":
        problems.append(
            f"scaling is {valid['scaling']!r}, but feedback is 'dfa', which has no "
            "weight to rescale; set scaling to 'tensor'"
        )
    if (
        valid.get("algorithm") == "fedsol"
        and valid.get("fedsol-part") == "head"
        and valid.get("flfa", "none") != "none"
    ):
        problems.append(
            "fedsol-part is 'head', but feedback is 'dfa': the head runs a second time "
            "on its own, without the output whose error dfa needs; set fedsol-part to "
            "'all'"
        )
    return problems
