from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.federation import ROOT


def test_packages_of_the_same_name_elsewhere_are_not_imported(tmp_path: Path) -> None:
    """Flower's workers have the SuperLink's folder first on their path."""
    for name in ("clients", "strategies"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    code = (
        f"import sys; sys.path[:0] = ['', {str(ROOT)!r}]; import flfa_app\n"
        "from importlib.util import find_spec\n"
        "print(find_spec('clients').origin, find_spec('strategies').origin)"
    )
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    expected = [str(ROOT / x / "__init__.py") for x in ("clients", "strategies")]
    assert done.stdout.split() == expected
