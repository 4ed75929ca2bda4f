"""``python -m flfa_app.config.docs``: write what follows from the declared keys.

These are ``[tool.flwr.app.config]`` in ``pyproject.toml`` and
``docs/configuration.md``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from textwrap import wrap
from typing import Any

from flfa_app.config.keys import METHODS, Key
from flfa_app.config.run_config import KEYS
from flfa_app.methods import ALGORITHMS
from strategies.options import OneOf

__all__ = ["configuration_page", "generated_files"]

PROJECT = Path(__file__).resolve().parents[2]
HEADER = "[tool.flwr.app.config]\n"
END = "# End of the generated keys."
COMMENT_COLUMN = 32
MOST_NAMES = 12  # a comment in pyproject.toml lists no more of them
LINE_LENGTH = 100

INTRODUCTION = """\
# Configuration

After this page you can set every key of a run and know what it does.

`make docs` generates this page from the declarations in `flfa_app/config` and
`strategies/methods`.

## Set a key

`pyproject.toml` has every key with its default. A run overrides some of them:

```sh
make run ARGS="--run-config 'seed=1 flfa=\\"auto\\"'"      # keys and values
make run ARGS="--run-config configs/digits_moon.toml"    # a file of keys
flwr run . --run-config "seed=1 local-epochs=2"          # Flower's own command
```

`--run-config` may be repeated; the last value of a key counts. Texts are in quotation
marks, as in TOML.

A wrong key, type, range or name stops the run before the first round. All problems are
named at once, each with the key, its value and what is allowed.

A resumed run must have the same values, except for the keys marked with ↻.
"""


def generated_files() -> dict[Path, str]:
    """Return the content that each generated file should have."""
    pyproject = PROJECT / "pyproject.toml"
    before, found, rest = pyproject.read_text("utf-8").partition(HEADER)
    _, end, after = rest.partition(END)
    if not found or not end:
        raise ValueError(f"{pyproject} has no {HEADER.strip()} that ends with {END!r}")
    return {
        pyproject: f"{before}{HEADER}{_pyproject_keys()}{END}{after}",
        PROJECT / "docs" / "configuration.md": configuration_page(),
    }


def configuration_page() -> str:
    """Return the reference of all keys as Markdown."""
    parts = [INTRODUCTION]
    for group, members in groupby(KEYS.values(), lambda key: key.group):
        parts.append(f"## {group}\n")
        if group == METHODS:
            parts += _method_sections(list(members))
        else:
            parts += _section(list(members))
    return "\n".join(parts)


def _method_sections(keys: list[Key]) -> Iterator[str]:
    yield "[methods.md](methods.md) describes the methods. FedAvg has no options.\n"
    for algorithm, members in groupby(keys, lambda key: key.algorithm):
        method = ALGORITHMS[algorithm]
        yield f"### {method.display_name}: `algorithm = {_toml(algorithm)}`\n"
        yield from _section(list(members))
        if method.fedavg_keys:
            values = [f"`{k} = {_toml(v)}`" for k, v in method.fedavg_keys.items()]
            yield f"{method.display_name} is FedAvg with {' and '.join(values)}.\n"


def _section(keys: list[Key]) -> Iterator[str]:
    """Yield a table of keys, and what does not fit into its cells as a list."""
    rows = ["| key | default | allowed | meaning |", "|---|---|---|---|"]
    for key in keys:
        mark = " ↻" if key.may_change_on_resume else ""
        allowed = "a name" if isinstance(key.values, OneOf) else key.values.allowed
        default = f"`{_toml(key.default)}`"
        rows.append(f"| `{key.name}`{mark} | {default} | {allowed} | {key.meaning} |")
    yield "\n".join(rows) + "\n"
    if items := [line for key in keys for line in _details(key)]:
        yield "\n".join(items) + "\n"


def _details(key: Key) -> Iterator[str]:
    """Yield the names that are allowed and the note, as one wrapped list item."""
    text = _names(key.values, "`") + "." if isinstance(key.values, OneOf) else ""
    text = " ".join(filter(None, (text, key.note)))
    if text:
        yield from wrap(
            f"- `{key.name}`: {text}",
            LINE_LENGTH,
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )


def _names(values: OneOf, quote: str) -> str:
    explained = (
        f"{quote}{name}{quote}"
        + (f" ({values.explanations[name]})" if values.explanations.get(name) else "")
        for name in values.names
    )
    return ", ".join(explained)


def _pyproject_keys() -> str:
    parts = []
    for group, members in groupby(KEYS.values(), lambda key: key.group):
        lines = [f"# {group}", *(_pyproject_line(key) for key in members)]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _pyproject_line(key: Key) -> str:
    comment = key.meaning.replace("`", "")
    if isinstance(key.values, OneOf) and len(key.values.names) <= MOST_NAMES:
        comment += ": " + ", ".join(key.values.names)
    if key.algorithm and list(ALGORITHMS[key.algorithm].fedavg_keys) == [key.name]:
        comment += f" ({ALGORITHMS[key.algorithm].fedavg_keys[key.name]:g}: FedAvg)"
    return f"{key.name} = {_toml(key.default)}".ljust(COMMENT_COLUMN) + f"# {comment}"


def _toml(value: Any) -> str:
    """Return a default as TOML writes it; texts, numbers and flags are JSON's."""
    return json.dumps(value)


def main() -> None:
    """Write the files whose content has changed."""
    for path, text in generated_files().items():
        if not path.is_file() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
