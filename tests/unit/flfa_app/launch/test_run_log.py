"""Which lines of Flower's log a user sees."""

from __future__ import annotations

import ast

import pytest

from flfa_app.launch.run_log import APP_PREFIXES, RunLog
from tests.federation import ROOT


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("\x1b[92mINFO \x1b[0m:      round  1/30  accuracy 21.17 %", "round  1/30"),
        ("\x1b[92mINFO \x1b[0m:      Results: /x", "Results: /x"),
        ("\x1b[92mINFO \x1b[0m:      Starting Flower Simulation", ""),
        ("\x1b[93mWARNING \x1b[0m:   round 3: a client is lost", "WARNING: round"),
        ("Traceback (most recent call last):", ""),
        ('  File "x.py", line 3, in f', ""),
        ("(ClientAppActor pid=7) WARNING : Manually terminating ClientAppActor", ""),
        ("", ""),
    ],
)
def test_progress_and_warnings_are_shown(
    line: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    log = RunLog(verbose=False)
    log.add(line)
    printed = capsys.readouterr().out
    assert printed.startswith(shown)
    assert bool(printed) == bool(shown)
    assert len(log.lines) == 1
    RunLog(verbose=True).add(line)
    printed = capsys.readouterr().out
    assert printed.strip() == log.lines[0].strip()
    assert "\x1b" not in printed


def test_the_same_warning_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    log = RunLog(verbose=False)
    for _ in range(3):
        log.add("WARNING :   the same for every client")
    assert capsys.readouterr().out.count("the same") == 1
    assert len(log.lines) == 3


def info_texts() -> list[str]:
    """The texts that the ServerApp logs at level INFO, from its source."""
    texts = []
    app = ROOT / "flfa_app"
    for file in (app / "server_app.py", *(app / "server").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "log":
                level, text = node.args[:2]
                if getattr(level, "id", "") == "INFO":
                    assert isinstance(text, ast.Constant), file
                    texts.append(text.value)
    return texts


def test_every_line_that_the_server_app_logs_is_recognised() -> None:
    # RoundRecord.describe gives the line of a round; the others are constants.
    texts = ["round 1/3" if text.startswith("%s") else text for text in info_texts()]
    for text in texts:
        assert text.startswith(APP_PREFIXES), text
    for prefix in APP_PREFIXES:
        assert any(text.startswith(prefix) for text in texts), prefix
