from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.federation import ROOT


def test_a_rival_in_the_working_directory_is_not_imported(tmp_path: Path) -> None:
    """Flower's workers have the SuperLink's folder first on their path."""
    for name in ("clients", "strategies"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('a rival')")
    code = f"import sys; sys.path[:0] = ['', {str(ROOT)!r}]; import flfa_app.client_app"
    command = [sys.executable, "-P", "-W", "ignore", "-c", code]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
