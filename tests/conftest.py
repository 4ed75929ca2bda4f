"""Tests that start system programs, and how tests are shared among the workers.

``pytest.mark.needs("nginx", ...)`` names the programs that a test starts. Without them
it is skipped, and the last lines of the session name the command that installs them.
With ``CI=true`` a missing program is a failure.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.system_packages import PACKAGES, install_command, missing_programs

REASON = "missing program: "
# Groups and folders of tests that take longest, in the order in which they start.
LONG_GROUPS = ("killed nodes", "simulation", "deployment", "grid", "reuse")
LONG_FOLDERS = ("e2e", "faults", "integration", "browser")


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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Group tests by file for ``--dist loadgroup``, the longest groups first.

    Tests of one file share its fixtures, so one worker runs all of them. The tests that
    run Flower wait for processes most of the time and start beside the others.
    """
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.location[0]))
    items.sort(key=_start_order)


def _start_order(item: pytest.Item) -> tuple[int, int]:
    group = item.get_closest_marker("xdist_group")
    assert group is not None
    folder = Path(item.location[0]).parts[1]
    return (
        LONG_GROUPS.index(group.args[0])
        if group.args[0] in LONG_GROUPS
        else len(LONG_GROUPS),
        LONG_FOLDERS.index(folder) if folder in LONG_FOLDERS else len(LONG_FOLDERS),
    )


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
