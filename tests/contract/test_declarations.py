"""Keys, methods and the files generated from them agree with the code they describe."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from clients import LocalTrainer
from clients.methods import fedrs, fedsol
from docs import generate
from flfa_app.config import KEYS
from flfa_app.methods import ALGORITHMS
from strategies import LayerSelection
from strategies.methods.fedrs import FedRS
from strategies.methods.fedsol import FedSOL
from strategies.options import OneOf
from tests.federation import ROOT

CONFIGURATION = ROOT / "docs" / "configuration.md"


def test_generated_files_are_current() -> None:
    """Run ``make docs`` if this fails."""
    expected = generate.generated_files()
    assert set(expected) == {ROOT / "pyproject.toml", CONFIGURATION}
    for path, text in expected.items():
        assert path.read_text("utf-8") == text, f"{path.name}: run make docs"


def test_another_default_comment_heading_or_table_is_corrected(tmp_path: Path) -> None:
    good = {path: path.read_text("utf-8") for path in generate.generated_files()}
    (tmp_path / "docs").mkdir()
    for wrong in ("seed = 0 ", "# number of rounds", "\n# The data\n", "| `seed` |"):
        assert any(wrong in text for text in good.values())
        for path, text in good.items():
            changed = text.replace(wrong, wrong.replace("0", "7").upper())
            (tmp_path / path.relative_to(ROOT)).write_text(changed, "utf-8")
        generate.main(tmp_path)
        for path, text in good.items():
            assert (tmp_path / path.relative_to(ROOT)).read_text("utf-8") == text


def test_the_page_has_every_key_with_its_default() -> None:
    """Read back from the tables, without the code that has written them."""
    lines = CONFIGURATION.read_text("utf-8").splitlines()
    cells = [line.split(" | ") for line in lines if line.startswith("| `")]
    rows = {key.strip("|`↻ "): default.strip("`") for key, default, *_ in cells}
    values = {key: tomllib.loads(f"x = {text}")["x"] for key, text in rows.items()}
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert values == pyproject["tool"]["flwr"]["app"]["config"]
    assert max(map(len, lines)) <= 100


def test_declared_keys_and_methods() -> None:
    """Keys of methods begin with the method's name."""
    for key in KEYS.values():
        assert key.values.accepts(key.default), key
        assert type(key.default) is key.values.python_type, key
        assert key.meaning, key
        assert not key.meaning.endswith("."), key
        assert not key.note or key.note.endswith("."), key
        if isinstance(key.values, OneOf):
            assert set(key.values.explanations) <= set(key.values.names), key
    for name, method in ALGORITHMS.items():
        assert method.display_name.lower() == name
        assert issubclass(method.strategy, LayerSelection)
        assert issubclass(method.trainer, LocalTrainer)
        for option in method.options:
            assert option.key.startswith(f"{name}-")
            assert option.fedavg is None or option.values.accepts(option.fedavg)


def test_what_a_key_is_used_for() -> None:
    """The keys with a property, written out: each is a decision."""

    def having(name: str, value: bool = True) -> set[str]:
        return {key for key in KEYS if getattr(KEYS[key], name) is value}

    assert having("is_path") == {"output-dir", "data-dir", "state-dir", "resume"}
    not_in_results = {"output-dir", "data-dir", "state-dir"}
    not_in_results |= {"round-timeout", "pictures"}
    assert having("changes_results", False) == not_in_results
    flfa = {"flfa", "num-fa-layers", "fixed-fa-layers", "candidates", "feedback"}
    assert having("flfa_only") == flfa | {"scaling", "diagnostics"}
    may_change = not_in_results | {"num-server-rounds", "diagnostics", "device"}
    may_change |= {"report-label-counts", "min-available-nodes", "evaluate-every"}
    may_change |= {"threads-per-client", "min-replies", "round-attempts", "resume"}
    may_change |= {"max-examples", "max-update-norm", "patience", "target-accuracy"}
    may_change |= {"checkpoint-every", "keep-checkpoints"}
    assert having("may_change_on_resume") == may_change


@pytest.mark.parametrize(
    ("option", "names"),
    [
        (FedSOL.variant, fedsol.VARIANTS),
        (FedSOL.part, fedsol.PARTS),
        (FedRS.variant, fedrs.VARIANTS),
    ],
)
def test_server_and_clients_know_the_same_names(option: Any, names: Any) -> None:
    """The libraries do not import each other: each has the names of what is sent."""
    assert option.values.names == tuple(names)


COMMANDS = ["flfa_app.config", "flfa_app.launch.cli", "flfa_app.experiments.__main__"]


@pytest.mark.parametrize("module", COMMANDS)
def test_a_command_starts_without_slow_imports(module: str) -> None:
    """torch, scipy and matplotlib are imported when there is work for them."""
    code = f"import sys, {module}; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    imported = set(done.stdout.split())
    assert {"numpy", module} <= imported
    assert not imported & {"torch", "scipy", "matplotlib", "ray", "sklearn"}
