from __future__ import annotations

from pathlib import Path

import pytest

from flfa_app.errors import ConfigError
from flfa_app.launch import cli as launch
from flfa_app.launch import compare
from flfa_app.launch.cli import read_overrides
from flfa_app.launch.superlink import Outcome, absolute_paths
from tests.federation import ROOT


def test_files_and_texts_are_read_in_order() -> None:
    texts = [str(ROOT / "configs" / "smoke.toml"), "seed=3 flfa='auto'", "seed=4"]
    assert read_overrides(texts) == {
        "num-server-rounds": 2,
        "local-epochs": 1,
        "seed": 4,
        "flfa": "auto",
    }
    assert read_overrides([]) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("configs/no_such.toml", r"there is no file configs/no_such\.toml"),
        ("seed", r"'seed' is neither a .toml file nor key=value"),
        ("flfa=lowest", r"'flfa=lowest': .*invalid format"),
        ("sede=1", r"sede is not a key; did you mean seed\?"),
        ("num-fa-layers=9", r"num-fa-layers is 9; it must be at most 3"),
        ("min-partition-size=1000", r"min-partition-size is 1000: 20 clients"),
    ],
)
def test_what_a_run_could_not_use_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_overrides([text], nodes=20)


def test_a_file_that_is_not_toml_is_named(tmp_path: Path) -> None:
    """Flower's parser raises an error that is not the standard library's."""
    file = tmp_path / "broken.toml"
    file.write_text("seed = [1\n")
    with pytest.raises(ConfigError, match=r"broken\.toml.*Unclosed array"):
        read_overrides([str(file)])


@pytest.mark.parametrize("command", [launch.main, compare.main])
def test_a_wrong_config_is_exit_1_before_anything_starts(
    command: object, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "flfa_app.launch.superlink.SuperLink", None
    )  # would raise TypeError
    assert command(["--run-config", "seed=-1"]) == 1  # type: ignore[operator]
    assert "seed is -1; it must be a whole number, 0 or more" in capsys.readouterr().err


def test_nothing_to_compare(capsys: pytest.CaptureFixture[str]) -> None:
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
    compare._print_table({"BP": bp, "FLFA": flfa})
    printed = capsys.readouterr().out
    for text in ("98.00 %", "97.50 %", "-0.50 %p", "+0.250", "+120", "1,120"):
        assert text in printed


ROUND = "\x1b[92mINFO \x1b[0m:      round  1/30  accuracy 21.17 %"
LINES = [
    (ROUND, "round  1/30"),
    ("\x1b[92mINFO \x1b[0m:      Results: /x", "Results: /x"),
    ("\x1b[92mINFO \x1b[0m:      Starting Flower Simulation", ""),
    (
        "\x1b[93mWARNING \x1b[0m:   round 3 goes on without a client: x",
        "WARNING: round",
    ),
    ("Traceback (most recent call last):", ""),
    ('  File "x.py", line 3, in f', ""),
    ("(ClientAppActor pid=7) WARNING : Manually terminating ClientAppActor", ""),
    ("", ""),
]


@pytest.mark.parametrize(("line", "shown"), LINES)
def test_progress_and_trouble_are_shown_and_chatter_is_not(
    line: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    log: list[str] = []
    show = launch._printer(verbose=False, log=log)
    show(line)
    printed = capsys.readouterr().out
    assert printed.startswith(shown)
    assert bool(printed) == bool(shown)
    assert len(log) == 1
    launch._printer(verbose=True, log=log)(line)
    assert "\x1b" not in capsys.readouterr().out


def test_the_same_warning_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    show = launch._printer(verbose=False, log=[])
    for _ in range(3):
        show("WARNING :   the same for every client")
    assert capsys.readouterr().out.count("the same") == 1


@pytest.mark.parametrize("option", ["--nodes", "--workers"])
def test_at_least_one(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        launch.main([option, "0"])
    assert f"argument {option}: 0 is not 1 or more" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "key", "expected"),
    [
        (Path("here"), "", Path.cwd() / "here"),
        (None, "there", Path.cwd() / "there"),
        (Path("here"), "there", Path.cwd() / "here"),
        (None, "", ROOT / "runs"),
    ],
)
def test_where_the_results_go(option: Path | None, key: str, expected: Path) -> None:
    """Made absolute: Flower's processes run elsewhere."""

    class Recorder:
        def run(self, **keys: object) -> object:
            self.output_dir = keys["output_dir"]
            raise RuntimeError("enough")

    superlink = Recorder()
    options = launch.argparse.Namespace(
        nodes=2, workers=1, gpus_per_client=0.0, output_dir=option, verbose=False
    )
    with pytest.raises(RuntimeError, match="enough"):
        launch.launch(superlink, options, {"output-dir": key})  # type: ignore[arg-type]
    assert superlink.output_dir == expected


class FailedRun:
    """A SuperLink whose runs fail as one does on a full disk."""

    why = "finished:failed No space left\nThe last good checkpoint is /x/round-2.json"

    def run(self, **keys: object) -> Outcome:
        keys["show"]("the last words")  # type: ignore[operator]
        return Outcome(completed=False, details=self.why, results=None)


def failure_in(folder: Path) -> str:
    """What ``make run`` tells of a failed run."""
    options = launch.argparse.Namespace(
        nodes=2, workers=1, gpus_per_client=0.0, output_dir=folder, verbose=False
    )
    with pytest.raises(RuntimeError) as failed:
        launch.launch(FailedRun(), options, {})  # type: ignore[arg-type]
    assert f"the run has failed: {FailedRun.why}\n" in str(failed.value)
    return str(failed.value)


def test_a_failed_run_leaves_its_log(tmp_path: Path) -> None:
    told = failure_in(tmp_path / "new")
    assert f"Everything Flower logged: {tmp_path}/new/failed-run.log" in told
    assert (tmp_path / "new" / "failed-run.log").read_text() == "the last words"


def test_a_log_that_cannot_be_written_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    told = failure_in(tmp_path / "file" / "x")
    file = tmp_path / "file" / "x" / "failed-run.log"
    assert f"could not be written to {file} (Not a directory)" in told


def test_an_error_of_the_system_is_a_message_and_exit_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "is not there"
    assert launch.reporting_errors(file.unlink) == 1
    printed = capsys.readouterr().err
    assert f"No such file or directory: '{file}'" in printed
    assert "Traceback" not in printed


def test_paths_are_relative_to_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SuperLink runs in a folder of its own, which nobody knows."""
    monkeypatch.chdir(tmp_path)
    given = {"data-dir": "mine", "state-dir": "", "resume": "auto", "seed": 1}
    expected = given | {"data-dir": str(tmp_path / "mine")}
    assert absolute_paths(given) == expected
