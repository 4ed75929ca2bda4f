"""Tests that start system programs, and how tests are shared among the workers.

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
    missing = {name for programs in skipped for name in programs.split(", ")}
    for programs, number in sorted(skipped.items()):
        reporter.line(f"SKIPPED {number} tests: {programs} not installed", yellow=True)
    command = " ".join(install_command(name for name in PACKAGES if name in missing))
    reporter.line(f"To run them: sudo {command}", yellow=True)
