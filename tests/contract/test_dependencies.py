"""Every package that the source imports is declared in ``pyproject.toml``."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions

import pytest

from tests.federation import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PROVIDERS = packages_distributions()
OWN = {"flfa_app", "strategies", "clients", "flfa", "benchmarks", "docs", "tests"}
# Projects with dependencies of their own, installed where they are measured.
ELSEWHERE = ("benchmarks/peers/quickstart", "benchmarks/peers/pfl_training.py")
LIBRARIES = ("flfa_app", "strategies", "clients")
TOOLS = ("benchmarks", "tests")


def distribution(requirement: str) -> str:
    """The normalised name in a requirement."""
    name = re.match(r"[\w.-]+", requirement)
    assert name is not None
    return re.sub(r"[-_.]+", "-", name[0]).lower()


def declared(*, dev: bool) -> set[str]:
    extra = PROJECT["optional-dependencies"]["dev"] if dev else []
    return {distribution(text) for text in (*PROJECT["dependencies"], *extra)}


def imported_packages(source: str) -> set[str]:
    """The top-level packages that a module imports, in functions too."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(str(node.module))
    roots = {name.partition(".")[0] for name in names}
    return roots - OWN - sys.stdlib_module_names


def undeclared(source: str, names: set[str]) -> set[str]:
    """The imported packages that none of the distributions provides."""

    return {
        package
        for package in imported_packages(source)
        if not {distribution(name) for name in PROVIDERS.get(package, ())} & names
    }


@pytest.mark.parametrize(("folders", "dev"), [(LIBRARIES, False), (TOOLS, True)])
def test_every_imported_package_is_declared(
    folders: tuple[str, ...], dev: bool
) -> None:
    names = declared(dev=dev)
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    assert len(files) > 50
    for file in files:
        path = file.relative_to(ROOT).as_posix()
        if not path.startswith(ELSEWHERE):
            assert undeclared(file.read_text(), names) == set(), path


def test_an_undeclared_import_is_noticed() -> None:
    source = "import json, pytest\ndef f():\n    from sklearn.svm import SVC\n"
    assert imported_packages(source) == {"pytest", "sklearn"}
    assert undeclared(source, {"scikit-learn"}) == {"pytest"}
    assert undeclared("import no_such_package", declared(dev=True))


def test_libraries_with_private_parts_have_an_upper_bound() -> None:
    for name in ("flwr", "torch"):
        (text,) = (x for x in PROJECT["dependencies"] if distribution(x) == name)
        assert re.search(r"<\d+\.\d+$", text), text


def test_the_reader_of_requirements() -> None:
    assert distribution("flwr[simulation]>=1.41,<1.42") == "flwr"
    assert distribution("huggingface_hub>=0.24") == "huggingface-hub"
