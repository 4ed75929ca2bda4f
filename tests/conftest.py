"""Tests that start system programs, and the order of tests for parallel workers.

``pytest.mark.needs("nginx", ...)`` names the programs that a test starts. Without them
it is skipped, and the last lines of the session name the command that installs them.
With ``CI=true`` a missing program is a failure.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator

import pytest

from tests.system_packages import PACKAGES, install_command, missing_programs

REASON = "missing program: "
# The files with tests that run Flower: first the one that waits longest.
FLOWER_FILES = (
    "tests/faults/test_killed_nodes.py",
    "tests/e2e/test_deployment.py",
    "tests/faults/test_kills.py",
    "tests/e2e/test_experiments.py",
    "tests/e2e/test_flwr_run.py",
    "tests/e2e/test_reuse.py",
    "tests/e2e/test_real_nodes.py",
)
FILES_BETWEEN = 4
FOLDERS = ("faults", "integration", "browser", "contract")  # the longest tests first


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "needs(*programs): system programs that the test starts"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose programs are missing, before any fixture is set up."""
    programs = [name for mark in item.iter_markers("needs") for name in mark.args]
    if missing := missing_programs(programs):
        reason = REASON + ", ".join(missing)
        if os.environ.get("CI") == "true":
            pytest.fail(f"{reason}; with CI=true every test has to run", pytrace=False)
        pytest.skip(reason)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the files of tests for ``--dist loadfile --no-loadscope-reorder``.

    Tests that run Flower wait for processes most of the time, and take longest. They
    start early, but not all at once: tests that compute run beside them.
    """
    files = list(dict.fromkeys(_file(item) for item in items))
    flower = [name for name in FLOWER_FILES if name in files]
    others = [name for name in files if name not in flower]
    others.sort(key=_folder_rank)
    order = []
    while flower or others:
        order += flower[:1] + others[:FILES_BETWEEN]
        flower, others = flower[1:], others[FILES_BETWEEN:]
    items.sort(key=lambda item: order.index(_file(item)))


def _file(item: pytest.Item) -> str:
    return item.location[0]


def _folder_rank(name: str) -> int:
    folder = name.split("/")[1]
    return FOLDERS.index(folder) if folder in FOLDERS else len(FOLDERS)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None]:
    """After everything else, say which tests a missing program has skipped."""
    yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(session.config, "workerinput"):
        return
    skipped: Counter[str] = Counter()
    for report in reporter.stats.get("skipped", ()):
        _, _, reason = report.longrepr
        _, found, programs = reason.partition(REASON)
        if found:
            skipped[programs] += 1
    if not skipped:
        return
    total = sum(skipped.values())
    reporter.line(f"{total} tests skipped for lack of system programs:", yellow=True)
    for programs, number in skipped.most_common():
        reporter.line(f"  {number:3} need {programs}", yellow=True)
    missing = {name for programs in skipped for name in programs.split(", ")}
    command = " ".join(install_command(name for name in PACKAGES if name in missing))
    reporter.line(f"To run them: sudo {command} && make test", yellow=True)
