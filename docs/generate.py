"""``make docs``: write what follows from the declared keys and methods.

These are the keys in ``pyproject.toml`` and the tables in ``docs/configuration.md``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from textwrap import wrap

from flfa_app.config import KEYS, Key
from flfa_app.methods import ALGORITHMS
from strategies.options import OneOf

PROJECT = Path(__file__).resolve().parents[1]
PYPROJECT_START = "[tool.flwr.app.config]\n"
PYPROJECT_END = "# End of the generated keys."
COMMENT_COLUMN = 32
MOST_NAMES = 12  # a comment in pyproject.toml lists no more of them


def main(project: Path = PROJECT) -> None:
    """Write the files whose content has changed."""
    for path, text in generated_files(project).items():
        if path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")


def generated_files(project: Path = PROJECT) -> dict[Path, str]:
    """Return the content that each file with a generated part should have."""
    grouped = groupby(KEYS.values(), lambda key: key.group)
    groups = {group: list(keys) for group, keys in grouped}
    page, sections = project / "docs" / "configuration.md", []
    for group, keys in groups.items():
        sections += [f"## {group}\n", *_sections(keys)]
    introduction = page.read_text("utf-8").partition(sections[0])[0]

    pyproject = project / "pyproject.toml"
    text = pyproject.read_text("utf-8")
    start = text.index(PYPROJECT_START) + len(PYPROJECT_START)
    blocks = [
        "".join([f"# {group}\n", *map(_pyproject_line, keys)])
        for group, keys in groups.items()
    ]
    end = text[text.index(PYPROJECT_END, start) :]
    return {
        pyproject: text[:start] + "\n".join(blocks) + end,
        page: introduction + "\n".join(sections),
    }


def _pyproject_line(key: Key) -> str:
    comment = key.meaning.replace("`", "")
    if isinstance(key.values, OneOf) and len(key.values.names) <= MOST_NAMES:
        comment += ": " + ", ".join(key.values.names)
    if key.algorithm and list(ALGORITHMS[key.algorithm].fedavg_keys) == [key.name]:
        comment += f" ({ALGORITHMS[key.algorithm].fedavg_keys[key.name]:g}: FedAvg)"
    # TOML writes texts, numbers and flags as JSON does.
    setting = f"{key.name} = {json.dumps(key.default)}"
    return f"{setting:{COMMENT_COLUMN}}# {comment}\n"


def _sections(keys: list[Key]) -> Iterator[str]:
    """Yield the table of a group, or a headed table for each of its methods."""
    if not keys[0].algorithm:
        yield from _table(keys)
        return
    yield "[methods.md](methods.md) describes the methods. FedAvg has no options.\n"
    for algorithm, options in groupby(keys, lambda key: key.algorithm):
        method = ALGORITHMS[algorithm]
        yield f"### {method.display_name}: `algorithm = {json.dumps(algorithm)}`\n"
        yield from _table(list(options))
        if neutral := method.fedavg_keys:
            values = [f"`{key} = {json.dumps(x)}`" for key, x in neutral.items()]
            yield f"{method.display_name} is FedAvg with {' and '.join(values)}.\n"


def _table(keys: list[Key]) -> Iterator[str]:
    """Yield a table of keys, and what does not fit into its cells as a list."""
    rows = ["| key | default | allowed | meaning |", "|---|---|---|---|"]
    notes: list[str] = []
    for key in keys:
        mark = " ↻" if key.may_change_on_resume else ""
        allowed, note = key.values.allowed, key.note
        if isinstance(key.values, OneOf):
            allowed, note = "a name", f"{_explained_names(key.values)}. {note}".strip()
        cells = (f"`{key.name}`{mark}", f"`{json.dumps(key.default)}`", allowed)
        rows.append(f"| {' | '.join(cells)} | {key.meaning} |")
        if note:
            notes += wrap(
                f"- `{key.name}`: {note}",
                width=100,
                subsequent_indent="  ",
                break_long_words=False,
                break_on_hyphens=False,
            )
    yield "\n".join(rows) + "\n"
    if notes:
        yield "\n".join(notes) + "\n"


def _explained_names(values: OneOf) -> str:
    explanations = {name: values.explanations.get(name) for name in values.names}
    return ", ".join(
        f"`{name}` ({text})" if text else f"`{name}`"
        for name, text in explanations.items()
    )


if __name__ == "__main__":
    main()
