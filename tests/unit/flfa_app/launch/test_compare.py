from __future__ import annotations

import pytest

from flfa_app.launch import compare


def test_a_comparison_needs_a_rule(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare.main(["--run-config", "flfa='none'"]) == 1
    assert "a comparison needs a rule" in capsys.readouterr().err


def summary(score: float, drift: float, sent: int, seconds: float) -> dict[str, float]:
    return {
        "score": score,
        "final-accuracy": score,
        "mean-drift": drift,
        "bytes-sent": sent,
        "seconds": seconds,
    }


def test_both_scores_and_the_difference(capsys: pytest.CaptureFixture[str]) -> None:
    """97.50 - 98.00 = -0.50 points, 0.75 - 0.50 = +0.25, 1,120 - 1,000 = +120."""
    bp, flfa = summary(0.98, 0.5, 1000, 60), summary(0.975, 0.75, 1120, 61)
    compare.print_table({"BP": bp, "FLFA": flfa})
    printed = capsys.readouterr().out
    for text in ("98.00 %", "97.50 %", "-0.50 %p", "+0.250", "+120", "1,120"):
        assert text in printed
