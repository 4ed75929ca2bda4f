"""Which way the imports point, read from the source."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# What each library may use besides Python's own modules and its own.
ALLOWED = {"strategies": {"flwr", "numpy"}, "clients": {"torch"}}
FORBIDDEN = {
    "strategies": {"torch", "torchvision", "clients", "flfa_app", "strategies"},
    "clients": {"flwr", "strategies", "flfa_app", "clients"},
}
FILES = [
    pytest.param(package, path, id=str(path.relative_to(ROOT)))
    for package in ALLOWED
    for path in sorted((ROOT / package).rglob("*.py"))
]


def imports(source):
    """Every import of a module: ``(level, name)``, in functions and branches too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.module:
                yield node.level, node.module
            else:  # from . import x
                yield from ((node.level, alias.name) for alias in node.names)


def dynamic_imports(source):
    """What can import a module behind our back."""
    yield from (name for _, name in imports(source) if name.startswith("importlib"))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and node.id in ("__import__", "exec", "eval"):
            yield node.id


def test_there_are_files():
    assert {path.values[1].name for path in FILES} >= {"__init__.py", "cosine.py"}
    assert len(FILES) >= 12


@pytest.mark.parametrize(("package", "path"), FILES)
def test_absolute_imports(package, path):
    roots = {
        name.partition(".")[0]
        for level, name in imports(path.read_text())
        if level == 0
    }
    assert not roots & FORBIDDEN[package]
    assert roots <= ALLOWED[package] | sys.stdlib_module_names


@pytest.mark.parametrize(("package", "path"), FILES)
def test_relative_imports_stay_inside(package, path):
    depth = len(path.relative_to(ROOT / package).parts)
    for level, name in imports(path.read_text()):
        if level:
            assert level <= depth, f"{'.' * level}{name} leaves {package}"
            target = path.parents[level - 1].joinpath(*name.split("."))
            assert target.with_suffix(".py").is_file() or target.is_dir()


@pytest.mark.parametrize(("package", "path"), FILES)
def test_no_dynamic_imports(package, path):
    assert list(dynamic_imports(path.read_text())) == []


def test_feedback_needs_torch_alone():
    found = set(imports((ROOT / "clients" / "feedback" / "autograd.py").read_text()))
    assert not any(level for level, _ in found)


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
def test_the_reader_of_imports(source, expected):
    assert list(imports(source)) == expected


@pytest.mark.parametrize(
    "source",
    [
        "import importlib as i",
        "from importlib import import_module as i",
        "import importlib.util",
        "__import__('torch')",
        "exec('import torch')",
    ],
)
def test_the_reader_of_dynamic_imports(source):
    assert len(list(dynamic_imports(source))) == 1
