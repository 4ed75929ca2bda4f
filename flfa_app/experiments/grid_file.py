"""The syntax of grid files: read one and check each of its parts.

:mod:`.grid` expands the result into cells.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flfa_app.errors import ConfigError
from flfa_app.experiments.analysis.paper import paper_tables
from flfa_app.experiments.store import GridSpec
from flfa_app.launch.app_files import default_run_config
from flfa_app.results.metrics import METRICS

GRID_KEYS = ["title", "table", "nodes", "seeds", "metric", "columns"]
GRID_KEYS += ["keys", "axes", "exclude"]
NODES, FILE = "nodes", "file"
# Keys of a run config that a grid sets itself, and where to set them instead.
RESERVED_KEYS = {"seed": "list it under seeds", "output-dir": "use --out"}
# Names of axis values become part of a folder's name.
VALUE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass
class AxisValue:
    """The keys that one value of an axis sets.

    ``place`` is where the grid file has it, for error texts. ``own_keys`` take
    precedence over ``file_keys``, which come from the value's ``file``.
    """

    place: str
    file_keys: dict[str, Any] = field(default_factory=dict)
    own_keys: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class GridFile:
    """The checked content of a grid file.

    ``nodes`` is None if only axis values set it. ``excluded`` are partial combinations
    of axis values; every combination that contains one of them is left out.
    """

    spec: GridSpec
    nodes: int | None
    keys: dict[str, Any]
    axes: dict[str, dict[str, AxisValue]]
    excluded: list[dict[str, str]]


def parse_grid_file(path: Path, extra_seeds: Sequence[int] = ()) -> GridFile:
    """Read a grid file; raise ConfigError with all problems of its syntax."""
    parser = _Parser(path)
    try:
        file = parser.parse(_load_toml(path), extra_seeds)
    except ConfigError as problem:
        parser.problems.append(str(problem))
    if parser.problems:
        raise ConfigError(f"{path} cannot be used:", dict.fromkeys(parser.problems))
    return file


def _load_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no file {path}") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        raise ConfigError(f"{path} cannot be read: {problem}") from problem


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


class _Parser:
    """Checks the parts of one grid file and collects their problems."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems: list[str] = []
        self.run_config_keys = default_run_config().keys()

    def parse(self, content: dict[str, Any], extra_seeds: Sequence[int]) -> GridFile:
        for key in content.keys() - set(GRID_KEYS):
            self.problems.append(
                f"{key} is not a key; there are {', '.join(GRID_KEYS)}"
            )
        title, nodes = content.get("title"), content.get(NODES)
        self._require(isinstance(title, str), "title", title, "a text")
        if nodes is not None:
            self._check_nodes(nodes, NODES)
        keys = self._table(content, "keys")
        self._check_keys(keys, "keys")
        axes = self._axes(content)
        table_metrics = [key for key, spec in METRICS.items() if spec.is_number]
        spec = GridSpec(
            title=str(title),
            table=self._choice(content, "table", ["", *paper_tables()]),
            metric=self._choice(content, "metric", table_metrics),
            seeds=list(dict.fromkeys([*self._seeds(content), *extra_seeds])),
            axes={axis: list(values) for axis, values in axes.items()},
            columns=self._choice(content, "columns", axes, "dataset", "an axis:"),
        )
        return GridFile(spec, nodes, keys, axes, self._excluded(content, axes))

    def _require(self, valid: bool, place: str, value: Any, requirement: str) -> bool:
        if not valid:
            self.problems.append(f"{place} is {value!r}; it must be {requirement}")
        return valid

    def _table(self, content: Mapping[str, Any], key: str) -> dict[str, Any]:
        value = content.get(key, {})
        valid = self._require(isinstance(value, dict), key, value, "a table")
        return value if valid else {}

    def _choice(
        self,
        content: Mapping[str, Any],
        key: str,
        choices: Iterable[str],
        default: str | None = None,
        kind: str = "one of",
    ) -> str:
        """Return one of the choices; by default the first."""
        names = list(choices)
        value = content.get(key, names[0] if default is None else default)
        listed = ", ".join(name for name in names if name)
        self._require(value in names, key, value, f"{kind} {listed}")
        return str(value)

    def _axes(self, content: Mapping[str, Any]) -> dict[str, dict[str, AxisValue]]:
        tables = self._table(content, "axes")
        if not tables:
            self.problems.append("axes is missing or empty; a grid has [axes.x.y]")
        axes: dict[str, dict[str, AxisValue]] = {}
        for axis, values in tables.items():
            if axis == "seed":
                self.problems.append("axes.seed: seeds are listed under seeds")
            if not isinstance(values, dict) or not values:
                self.problems.append(f"axes.{axis} has no values")
                continue
            axes[axis] = {
                name: self._axis_value(f"axes.{axis}.{name}", name, keys)
                for name, keys in values.items()
            }
        return axes

    def _axis_value(self, place: str, name: str, keys: Any) -> AxisValue:
        value = AxisValue(place)
        if not VALUE_NAME.fullmatch(name):
            self.problems.append(
                f"{place}: a name has letters, digits, dots, hyphens and underscores"
            )
        if not self._require(isinstance(keys, dict), place, keys, "a table of keys"):
            return value
        value.own_keys = {key: item for key, item in keys.items() if key != FILE}
        self._check_keys(value.own_keys, place, allow_nodes=True)
        if FILE in keys:
            file = self.path.parent / str(keys[FILE])
            if file.is_file():
                value.file_keys = _load_toml(file)
                self._check_keys(value.file_keys, f"{place}.file ({file})")
            else:
                self.problems.append(f"{place}.file: there is no file {file}")
        return value

    def _check_keys(
        self, keys: Mapping[str, Any], place: str, *, allow_nodes: bool = False
    ) -> None:
        for key, value in keys.items():
            if key in RESERVED_KEYS:
                self.problems.append(
                    f"{place}: {key} cannot be set; {RESERVED_KEYS[key]}"
                )
            elif key == NODES and allow_nodes:
                self._check_nodes(value, f"{place}.{key}")
            elif key not in self.run_config_keys:
                self.problems.append(f"{place}: {key} is not a key of a run config")

    def _check_nodes(self, nodes: Any, place: str) -> None:
        self._require(_is_whole(nodes, 1), place, nodes, "1 or more")

    def _seeds(self, content: Mapping[str, Any]) -> list[int]:
        seeds: Any = content.get("seeds")
        valid = (
            isinstance(seeds, list)
            and all(_is_whole(seed, 0) for seed in seeds)
            and 0 < len(set(seeds)) == len(seeds)
        )
        requirement = "a list of different whole numbers, 0 or more"
        return seeds if self._require(valid, "seeds", seeds, requirement) else []

    def _excluded(
        self, content: Mapping[str, Any], axes: Mapping[str, Mapping[str, Any]]
    ) -> list[dict[str, str]]:
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
                elif value not in list(axes[axis]):
                    self.problems.append(
                        f"exclude: {value!r} is not a value of {axis}; there are "
                        f"{', '.join(axes[axis])}"
                    )
        return rules
