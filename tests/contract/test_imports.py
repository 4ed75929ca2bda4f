"""Rules about imports, read from the source: directions, and no private parts.

``strategies`` and ``clients`` are libraries: each needs one framework and nothing of
the app. Inside ``flfa_app``, ``experiments`` imports ``launch`` and ``launch`` imports
the rest; ``server`` and ``client`` are two sides that share only neutral modules; and
nothing imports an entry point. What other projects do not document as public is used
in the compat files only.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from torch import nn

ROOT = Path(__file__).parents[2]
# The frameworks of each library, besides Python's own modules.
FRAMEWORKS = {"strategies": {"flwr", "numpy"}, "clients": {"torch"}}
# Which packages and modules of the app may import one of these; the others may not.
IMPORTERS = {
    "experiments": {"experiments"},
    "launch": {"launch", "experiments", "compare", "deploy_demo"},
    "server": {"server", "server_app"},
    "client": {"client", "client_app"},
    "server_app": set[str](),
    "client_app": set[str](),
}
COMPAT_FILES = {
    "flfa_app/_flwr_compat.py",
    "strategies/_flwr_compat.py",
    "clients/_torch_compat.py",
}
PUBLIC_FLOWER = {
    "flwr.app",
    "flwr.clientapp",
    "flwr.common.logger",
    "flwr.serverapp",
    "flwr.serverapp.strategy",
}
FRAMEWORK_ROOTS = {"flwr", "ray", "torch"}
PRIVATE_CLASSES = {"InMemoryGrid", "InMemoryLinkState"}
INHERITED_PRIVATE = {
    name
    for base in (FedAvg(), Grid, nn.Conv2d(1, 1, 1))
    for name in dir(base)
    if name.startswith("_") and not name.startswith("__") and name != "_abc_impl"
}


def sources(*packages: str) -> dict[str, str]:
    """The source of every file of some packages, by its path in the project."""
    return {
        path.relative_to(ROOT).as_posix(): path.read_text()
        for package in packages
        for path in sorted((ROOT / package).rglob("*.py"))
    }


def imports(source: str) -> Iterator[tuple[int, str]]:
    """Every import of a module: ``(level, name)``, in functions and branches too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.module:
                yield node.level, node.module
            else:  # from . import x
                yield from ((node.level, alias.name) for alias in node.names)


def imported_names(source: str) -> Iterator[str]:
    """Every absolute name that is imported: ``a.b.c`` for ``from a.b import c``."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def dynamic_imports(path: str, source: str) -> list[str]:
    """Ways to import a module that the other rules cannot see."""
    modules = [name for _, name in imports(source) if name.startswith("importlib")]
    return modules + [
        node.id
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Name) and node.id in ("__import__", "exec", "eval")
    ]


def foreign_imports(path: str, source: str) -> list[str]:
    """Imports of a library that are not its framework or its own modules."""
    package, *parts = path.split("/")
    allowed = FRAMEWORKS[package] | sys.stdlib_module_names
    wrong = [
        name
        for level, name in imports(source)
        if (level == 0 and name.partition(".")[0] not in allowed) or level > len(parts)
    ]
    for level, name in imports(source):
        if 0 < level <= len(parts):
            target = (ROOT / path).parents[level - 1].joinpath(*name.split("."))
            if not (target.with_suffix(".py").is_file() or target.is_dir()):
                wrong.append(f"{'.' * level}{name}")
    return wrong


def wrong_directions(path: str, source: str) -> list[str]:
    """Imports inside the app that its layers do not allow."""
    importer = path.removesuffix(".py").split("/")[1]
    wrong = []
    for name in imported_names(source):
        root, _, rest = name.partition(".")
        imported = rest.partition(".")[0]
        if root == "flfa_app" and importer not in IMPORTERS.get(imported, {importer}):
            wrong.append(f"{importer} -> {imported}")
    return wrong


def private_parts(path: str, source: str) -> list[str]:
    """Uses of names that other projects keep private, outside of the compat files."""
    if path in COMPAT_FILES:
        return []
    found = [
        name
        for name in imported_names(source)
        if name.partition(".")[0] in FRAMEWORK_ROOTS
        and (_is_private(name) or not _is_public_flower(name))
    ]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and _is_private(node.attr):
            if _is_foreign(node.value) or node.attr in INHERITED_PRIVATE:
                found.append(ast.unparse(node))
        elif isinstance(node, ast.Constant) and node.value in PRIVATE_CLASSES:
            found.append(str(node.value))
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("attr"):
            texts = [a.value for a in node.args if isinstance(a, ast.Constant)]
            found += [t for t in texts if isinstance(t, str) and _is_private(t)]
    return found


def _is_private(name: str) -> bool:
    return any(
        part.startswith("_") and not part.endswith("__") for part in name.split(".")
    )


def _is_public_flower(name: str) -> bool:
    """Whether a dotted name is not Flower's, or from one of its public modules."""
    is_flower = name.partition(".")[0] == "flwr"
    return not is_flower or bool({name, name.rpartition(".")[0]} & PUBLIC_FLOWER)


def _is_foreign(value: ast.expr) -> bool:
    """Whether a private attribute of this value belongs to somebody else."""
    root = ast.unparse(value).partition(".")[0]
    return root not in ("self", "cls", "super()") and (
        root not in sys.stdlib_module_names
    )


RULES: dict[Callable[[str, str], list[str]], tuple[str, ...]] = {
    foreign_imports: ("strategies", "clients"),
    dynamic_imports: ("strategies", "clients"),
    wrong_directions: ("flfa_app",),
    private_parts: ("flfa_app", "strategies", "clients"),
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_file_keeps_the_rule(rule: Callable[[str, str], list[str]]) -> None:
    files = sources(*RULES[rule])
    assert len(files) > 20
    violations = {path: found for path in files if (found := rule(path, files[path]))}
    assert violations == {}


def test_feedback_alignment_can_be_copied_as_one_file() -> None:
    source = (ROOT / "clients" / "feedback" / "autograd.py").read_text()
    assert not any(level for level, _ in imports(source))


def test_compat_files_exist() -> None:
    assert all((ROOT / path).is_file() for path in COMPAT_FILES)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import a.b, c", [(0, "a.b"), (0, "c")]),
        ("from a import b", [(0, "a")]),
        ("from . import x, y", [(1, "x"), (1, "y")]),
        ("from ..z import q", [(2, "z")]),
        ("def f():\n    import late", [(0, "late")]),
        ("try:\n    import maybe\nexcept ImportError:\n    pass", [(0, "maybe")]),
    ],
)
def test_the_reader_of_imports(source: str, expected: list[tuple[int, str]]) -> None:
    assert list(imports(source)) == expected


@pytest.mark.parametrize(
    ("rule", "path", "source", "violations"),
    [
        (dynamic_imports, "clients/x.py", "import importlib as i", 1),
        (dynamic_imports, "clients/x.py", "from importlib import import_module", 1),
        (dynamic_imports, "clients/x.py", "import importlib.util", 1),
        (dynamic_imports, "clients/x.py", "__import__('torch')", 1),
        (dynamic_imports, "clients/x.py", "exec('import torch')", 1),
        (foreign_imports, "strategies/x.py", "import torch", 1),
        (foreign_imports, "strategies/x.py", "import strategies.cosine", 1),
        (foreign_imports, "clients/x.py", "from flwr.app import Message", 1),
        (foreign_imports, "clients/x.py", "from flfa_app import task", 1),
        (foreign_imports, "clients/x.py", "from ..flfa_app import task", 1),
        (foreign_imports, "clients/x.py", "from .no_such_module import x", 1),
        (foreign_imports, "clients/methods/x.py", "from ..settings import x", 0),
        (foreign_imports, "strategies/x.py", "import math, numpy", 0),
        (wrong_directions, "flfa_app/server/x.py", "import flfa_app.client.state", 1),
        (wrong_directions, "flfa_app/client/x.py", "from flfa_app.server import x", 1),
        (
            wrong_directions,
            "flfa_app/task.py",
            "from flfa_app.client.state import x",
            1,
        ),
        (wrong_directions, "flfa_app/results/x.py", "import flfa_app.server.loop", 1),
        (wrong_directions, "flfa_app/server/x.py", "import flfa_app.launch.cli", 1),
        (wrong_directions, "flfa_app/config.py", "from flfa_app import launch", 1),
        (wrong_directions, "flfa_app/launch/x.py", "import flfa_app.experiments", 1),
        (
            wrong_directions,
            "flfa_app/launch/x.py",
            "from flfa_app import server_app",
            1,
        ),
        (
            wrong_directions,
            "flfa_app/experiments/a.py",
            "import flfa_app.client_app",
            1,
        ),
        (wrong_directions, "flfa_app/experiments/a.py", "import flfa_app.launch.x", 0),
        (wrong_directions, "flfa_app/server_app.py", "import flfa_app.server.loop", 0),
        (wrong_directions, "flfa_app/server/x.py", "import flfa_app.errors", 0),
        (private_parts, "flfa_app/x.py", "from flwr.supercore.run import Run", 1),
        (private_parts, "flfa_app/x.py", "import flwr.proto.node_pb2", 1),
        (private_parts, "flfa_app/x.py", "from flwr.common import constant", 1),
        (private_parts, "flfa_app/x.py", "from torch._dynamo import disable", 1),
        (private_parts, "flfa_app/x.py", "from ray import _private", 1),
        (private_parts, "clients/x.py", "import torch\ntorch._foreach_add_(a, b)", 1),
        (private_parts, "clients/x.py", "model._forward_hooks", 1),
        (private_parts, "clients/x.py", "self._parameters", 1),
        (private_parts, "strategies/x.py", "self._check_and_log_replies(r)", 1),
        (private_parts, "strategies/x.py", "getattr(s, '_check_and_log_replies')", 1),
        (private_parts, "flfa_app/x.py", "kind == 'InMemoryGrid'", 1),
        (private_parts, "flfa_app/_flwr_compat.py", "import flwr.proto.node_pb2", 0),
        (private_parts, "flfa_app/x.py", "from flwr.common.logger import log", 0),
        (private_parts, "flfa_app/x.py", "self._rounds; super()._own; a.__name__", 0),
        (private_parts, "flfa_app/x.py", "import pickle\npickle._Unpickler", 0),
    ],
)
def test_a_broken_rule_is_noticed(
    rule: Callable[[str, str], list[str]], path: str, source: str, violations: int
) -> None:
    assert len(rule(path, source)) == violations
