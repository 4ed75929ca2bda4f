"""The text of a grid file, checked piece by piece; :mod:`.grid` makes cells of it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flfa_app.errors import ConfigError
from flfa_app.launch.cli import default_keys

__all__ = ["NODES", "Axes", "Reader", "Value"]

KNOWN = ["title", "table", "nodes", "seeds", "metric", "columns"]
KNOWN += ["keys", "axes", "exclude"]
NODES, FILE = "nodes", "file"
# What the grid itself says for every cell, and what the results folder decides.
NOT_HERE = {"seed": "list it under seeds", "output-dir": "use --out"}
# A name is part of a folder's name.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass
class Value:
    """What a value of an axis sets: keys of its file, and its own keys."""

    place: str
    from_file: dict[str, Any] = field(default_factory=dict)
    own: dict[str, Any] = field(default_factory=dict)


Axes = Mapping[str, Mapping[str, Value]]
"""Axes, their values, and what those set."""


class Reader:
    """Reads the parts of one file and collects its problems."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems: list[str] = []
        self.defaults = default_keys()

    def stop_if_wrong(self) -> None:
        """Raise :class:`ConfigError` with all problems so far, if there are any."""
        if self.problems:
            lines = "\n".join(f"  - {x}" for x in dict.fromkeys(self.problems))
            raise ConfigError(f"{self.path} cannot be used:\n{lines}")

    def load(self, path: Path) -> dict[str, Any]:
        """Return the content of a TOML file."""
        try:
            return tomllib.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            self.problems.append(f"there is no file {path}")
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
            self.problems.append(f"{path} cannot be read: {problem}")
        self.stop_if_wrong()
        raise AssertionError("a problem has been reported")

    def check_names(self, content: Mapping[str, Any]) -> None:
        """Report the keys of the file that mean nothing."""
        for key in content.keys() - set(KNOWN):
            self.problems.append(f"{key} is not a key; there are {', '.join(KNOWN)}")

    def axes(self, content: Mapping[str, Any]) -> dict[str, dict[str, Value]]:
        """Return the axes and what their values set."""
        tables = self.table(content, "axes")
        if not tables:
            self.problems.append("axes is missing or empty; a grid has [axes.x.y]")
        axes: dict[str, dict[str, Value]] = {}
        for axis, values in tables.items():
            if axis == "seed":
                self.problems.append("axes.seed: seeds are listed under seeds")
            if not isinstance(values, dict) or not values:
                self.problems.append(f"axes.{axis} has no values")
                continue
            axes[axis] = {
                name: self._value(f"axes.{axis}.{name}", name, sets)
                for name, sets in values.items()
            }
        return axes

    def _value(self, place: str, name: str, sets: Any) -> Value:
        value = Value(place)
        if not NAME.fullmatch(name):
            self.problems.append(
                f"{place}: a name has letters, digits, dots, hyphens and underscores"
            )
        if not isinstance(sets, dict):
            self.problems.append(f"{place} is {sets!r}; it must be a table of keys")
            return value
        value.own = {key: item for key, item in sets.items() if key != FILE}
        self.check_keys(value.own, place, also=(NODES,))
        if FILE in sets:
            file = self.path.parent / str(sets[FILE])
            if file.is_file():
                value.from_file = self.load(file)
                self.check_keys(value.from_file, f"{place}.file ({file})")
            else:
                self.problems.append(f"{place}.file: there is no file {file}")
        return value

    def check_keys(
        self, sets: Mapping[str, Any], place: str, also: tuple[str, ...] = ()
    ) -> None:
        """Report keys that a run config does not have, but for those in ``also``."""
        for key, value in sets.items():
            if key in NOT_HERE:
                self.problems.append(f"{place}: {key} cannot be set; {NOT_HERE[key]}")
            elif key in also:
                self.check_nodes(value, f"{place}.{key}")
            elif key not in self.defaults:
                self.problems.append(f"{place}: {key} is not a key of a run config")

    def check_nodes(self, nodes: Any, place: str) -> None:
        """Report what is no number of nodes."""
        if not isinstance(nodes, int) or isinstance(nodes, bool) or nodes < 1:
            self.problems.append(f"{place} is {nodes!r}; it must be 1 or more")

    def seeds(self, content: Mapping[str, Any]) -> list[int]:
        """Return the seeds."""
        seeds = content.get("seeds")
        right = isinstance(seeds, list) and all(
            isinstance(s, int) and not isinstance(s, bool) and s >= 0 for s in seeds
        )
        if not right or not seeds or len(set(seeds)) < len(seeds):
            self.problems.append(
                f"seeds is {seeds!r}; it must be a list of different whole numbers, "
                "0 or more"
            )
            return []
        return list(seeds)

    def columns(self, content: Mapping[str, Any], axes: Mapping[str, Any]) -> str:
        """Return the axis that makes the columns."""
        columns = content.get("columns", "dataset")
        if not isinstance(columns, str) or columns not in axes:
            self.problems.append(
                f"columns is {columns!r}; it must be an axis: {', '.join(axes)}"
            )
        return str(columns)

    def excluded(
        self, content: Mapping[str, Any], axes: Mapping[str, Mapping[str, Any]]
    ) -> list[dict[str, str]]:
        """Return the combinations that are no cells."""
        rules = content.get("exclude", [])
        if not isinstance(rules, list) or not all(isinstance(x, dict) for x in rules):
            self.problems.append("exclude must be [[exclude]] tables of axis = value")
            return []
        for rule in rules:
            if not rule:
                self.problems.append("exclude: an empty table would drop every cell")
            for axis, value in rule.items():
                if axis not in axes:
                    self.problems.append(f"exclude: {axis} is not an axis")
                elif not isinstance(value, str) or value not in axes[axis]:
                    self.problems.append(
                        f"exclude: {value!r} is not a value of {axis}; there are "
                        f"{', '.join(axes[axis])}"
                    )
        return rules

    def text(self, content: Mapping[str, Any], key: str, default: str | None) -> str:
        """Return a text."""
        value = content.get(key, default)
        if not isinstance(value, str):
            self.problems.append(f"{key} is {value!r}; it must be a text")
        return str(value)

    def name(self, content: Mapping[str, Any], key: str, known: Sequence[str]) -> str:
        """Return one of the known names, the first of them if nothing is said."""
        value = content.get(key, known[0])
        if not isinstance(value, str) or value not in known:
            names = ", ".join(name for name in known if name)
            self.problems.append(f"{key} is {value!r}; it must be one of {names}")
        return str(value)

    def table(self, content: Mapping[str, Any], key: str) -> dict[str, Any]:
        """Return a table, empty if there is none."""
        value = content.get(key, {})
        if not isinstance(value, dict):
            self.problems.append(f"{key} is {value!r}; it must be a table")
            return {}
        return value
