"""The declaration of a key of the run config."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import Field, dataclass, field
from functools import partial
from pkgutil import resolve_name
from typing import Any, TypeVar

from flfa_app.methods import ALGORITHMS
from strategies.options import ValueType

T = TypeVar("T")
METHODS = "Options of the methods"  # heading of all of them


@dataclass(frozen=True)
class Key:
    """A key of the run config."""

    name: str
    default: Any
    values: ValueType[Any]
    meaning: str
    """What the key does, for the documentation. Not a sentence, no full stop."""
    group: str
    """Heading of the keys it belongs to."""
    note: str = ""
    """More about it, in sentences, for the documentation."""
    algorithm: str = ""
    """The method whose option it is; empty for the keys of all runs."""
    flfa_only: bool = False
    """The key belongs to FLFA. A run with FLFA may differ in it from the run without
    FLFA that it is compared with."""
    is_path: bool = False
    """The value is a path. A relative path starts at the folder of the user."""
    may_change_on_resume: bool = False
    """A resumed run may have another value: it does not change what a round computes.
    """
    changes_results: bool = True
    """Another value may give other results. If not, a finished run of a grid remains
    valid when the value changes."""


def declare(
    default: T, values: ValueType[T], meaning: str, **properties: str | bool
) -> T:
    """Declare a field of a dataclass as a key.

    ``properties`` are those of :class:`Key`; ``group`` is that of the keys before it
    unless it is given.
    """
    declaration = {"default": default, "values": values, "meaning": meaning}
    declared: T = field(default=default, metadata=declaration | properties)
    return declared


def declare_adjustable(
    default: T, values: ValueType[T], meaning: str, **properties: str | bool
) -> T:
    """Declare a key that may have another value when a run is resumed."""
    return declare(default, values, meaning, may_change_on_resume=True, **properties)


def keys_of(declared: Collection[Field[Any]]) -> dict[str, Key]:
    """Return the keys that fields declare, by their names, in the order of the fields.

    The field without a declaration stands for the options of all methods.
    """
    keys: list[Key] = []
    for one in declared:
        if one.metadata:
            group = one.metadata.get("group") or keys[-1].group
            name = one.name.replace("_", "-")
            keys.append(Key(name, **{**one.metadata, "group": group}))
        else:
            keys += method_keys()
    return {key.name: key for key in keys}


def method_keys() -> list[Key]:
    """Return the keys of the options of all methods."""
    return [
        Key(x.key, x.default, x.values, x.meaning, METHODS, algorithm=algorithm)
        for algorithm, method in ALGORITHMS.items()
        for x in method.options
    ]


def names_in(path: str) -> Callable[[], Collection[str]]:
    """Return a function that finds names in a module that takes long to import."""
    return partial(resolve_name, path)
