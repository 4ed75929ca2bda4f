"""``make quick``: style, types, and the unit tests of what has changed.

Changed is what differs from the commit where the branch left ``main``, committed or
not. Without a change a representative set of fast tests runs. Tests that have not begun
after the time limit are skipped and counted; ``make unit`` runs all of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 75.0  # for tests to begin; the rest of the 90 seconds is for them to end
DEADLINE = "FLFA_QUICK_DEADLINE"
PACKAGES = ("flfa_app", "strategies", "clients", "benchmarks")
FAST_TESTS = ("tests/unit/strategies", "tests/contract/test_imports.py")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what begins after the time limit; ``main`` loads this file as a plugin."""
    if time.time() > float(os.environ[DEADLINE]):
        pytest.skip(f"not begun after {SECONDS:.0f} seconds; make unit runs all tests")


def main() -> int:
    """Run the checks; return the exit status."""
    deadline = time.time() + SECONDS
    tests = tests_of(changed_files()) or list(FAST_TESTS)
    sys.stdout.write("".join(f"{test}\n" for test in tests))
    sys.stdout.flush()
    mypy = subprocess.Popen(
        [sys.executable, "-m", "mypy"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "tests.quick"]
    statuses = [
        _run(sys.executable, "-m", "ruff", "check", "-q", "."),
        _run(sys.executable, "-m", "ruff", "format", "-q", "--check", "."),
        _run(*command, *tests, **{DEADLINE: str(deadline)}),
    ]
    output, _ = mypy.communicate()
    sys.stdout.write(output)
    return int(any([*statuses, mypy.returncode]))


def changed_files() -> list[Path]:
    """Return the files that differ from where the branch left ``main``."""
    base = _git("merge-base", "HEAD", "main") or ["HEAD"]
    new = _git("ls-files", "--others", "--exclude-standard")
    return [Path(name) for name in (*_git("diff", "--name-only", base[0]), *new)]


def tests_of(changed: Iterable[Path]) -> list[str]:
    """Return the unit and contract tests of files: the mirrored and the importing."""
    found = set()
    sources = {
        file.relative_to(ROOT): file.read_text()
        for folder in ("unit", "contract")
        for file in (ROOT / "tests" / folder).rglob("test_*.py")
    }
    for path in changed:
        if path in sources:
            found.add(path)
        if path.parts[0] in PACKAGES and path.suffix == ".py":
            module = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
            mirrored = Path("tests/unit", path.parent, f"test_{path.name}")
            found |= {
                test
                for test, text in sources.items()
                if test == mirrored or f"from {module} import" in text
            }
    return sorted(map(str, found))


def _git(*command: str) -> list[str]:
    done = subprocess.run(
        ["git", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.splitlines()


def _run(*command: str, **variables: str) -> int:
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **variables}, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
