"""The declaration of a key of the run config."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import Field, dataclass, field
from functools import partial
from pkgutil import resolve_name
from typing import Any, TypeVar

from flfa_app.methods import ALGORITHMS
from strategies.options import ValueType

__all__ = ["Key", "declare", "keys_of", "method_keys", "names_in"]

T = TypeVar("T")
METHODS = "Options of the methods"
"""Heading of the options of all methods."""


@dataclass(frozen=True)
class Key:
    """A key of the run config.

    Parameters
    ----------
    name : str
        The key as it is written in a config file.
    default : Any
        The value if the user gives none.
    values : ValueType[Any]
        The allowed values.
    meaning : str
        What the key does, for the documentation. Not a sentence, no full stop.
    group : str
        Heading of the keys it belongs to.
    note : str (default: "")
        More about it, in sentences, for the documentation.
    algorithm : str (default: "")
        The method whose option it is; empty for the keys of all runs.
    flfa_only : bool (default: False)
        The key belongs to FLFA. A run with FLFA may differ in it from the run without
        FLFA that it is compared with.
    is_path : bool (default: False)
        The value is a path. A relative path starts at the folder of the user.
    may_change_on_resume : bool (default: False)
        A resumed run may have another value: it does not change what a round computes.
    changes_results : bool (default: True)
        Another value may give other results. If not, a finished run of a grid remains
        valid when the value changes.
    """

    name: str
    default: Any
    values: ValueType[Any]
    meaning: str
    group: str
    note: str = ""
    algorithm: str = ""
    flfa_only: bool = False
    is_path: bool = False
    may_change_on_resume: bool = False
    changes_results: bool = True


def declare(
    default: T,
    values: ValueType[T],
    meaning: str,
    *,
    group: str = "",
    note: str = "",
    **flags: bool,
) -> T:
    """Declare a field of a dataclass as a key.

    The first key of a group has its heading as ``group``. ``flags`` are the boolean
    properties of :class:`Key`.
    """
    declaration = {
        "default": default,
        "values": values,
        "meaning": meaning,
        "group": group,
        "note": note,
        **flags,
    }
    declared: T = field(default=default, metadata=declaration)
    return declared


def keys_of(declared: Collection[Field[Any]]) -> dict[str, Key]:
    """Return the keys that fields declare, by their names, in the order of the fields.

    The field without a declaration stands for the options of all methods.
    """
    keys: list[Key] = []
    for one in declared:
        if not one.metadata:
            keys += method_keys()
            continue
        group = one.metadata["group"] or keys[-1].group
        name = one.name.replace("_", "-")
        keys.append(Key(name, **{**one.metadata, "group": group}))
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
