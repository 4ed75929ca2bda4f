from __future__ import annotations

import argparse
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from flfa_app.errors import ConfigError
from flfa_app.launch import cli, compare
from flfa_app.launch.superlink import RunOutcome
from tests.federation import ROOT


def test_files_and_texts_are_read_in_order() -> None:
    texts = [str(ROOT / "configs" / "smoke.toml"), "seed=3 flfa='auto'", "seed=4"]
    assert cli.read_overrides(texts) == {
        "num-server-rounds": 2,
        "local-epochs": 1,
        "seed": 4,
        "flfa": "auto",
    }
    assert cli.read_overrides([]) == {}


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
def test_invalid_overrides_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        cli.read_overrides([text], nodes=20)


def test_a_file_that_is_not_toml_is_named(tmp_path: Path) -> None:
    """Flower's parser raises another exception than the standard library's."""
    file = tmp_path / "broken.toml"
    file.write_text("seed = [1\n")
    with pytest.raises(ConfigError, match=r"broken\.toml.*Unclosed array"):
        cli.read_overrides([str(file)])


@pytest.mark.parametrize("module", [cli, compare])
def test_an_invalid_config_is_exit_1_before_any_process_starts(
    module: object, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "local_superlink", None)  # calling it is a TypeError
    assert module.main(["--run-config", "seed=-1"]) == 1  # type: ignore[attr-defined]
    assert "seed is -1; it must be a whole number, 0 or more" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--nodes", "--workers"])
def test_nodes_and_workers_are_positive(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main([option, "0"])
    assert f"argument {option}: 0 is not 1 or more" in capsys.readouterr().err


class FakeSuperLink:
    """A SuperLink whose runs log one line and end with a given outcome."""

    def __init__(self, outcome: RunOutcome) -> None:
        self.outcome = outcome

    def run(self, **options: object) -> RunOutcome:
        self.options = options
        options["on_log_line"]("the last line")  # type: ignore[operator]
        return self.outcome


def launch(
    outcome: RunOutcome,
    folder: Path | None,
    save_log: bool = True,
    **overrides: object,
) -> object:
    """The ``output_dir`` that the SuperLink is given."""
    superlink = FakeSuperLink(outcome)
    options = argparse.Namespace(
        nodes=2, workers=1, gpus_per_client=0.0, output_dir=folder, verbose=False
    )
    keys = {key.replace("_", "-"): value for key, value in overrides.items()}
    results = cli.launch(superlink, options, keys, save_log)  # type: ignore[arg-type]
    assert results == outcome.results
    return superlink.options["output_dir"]


@pytest.mark.parametrize(
    ("option", "key", "resume", "expected"),
    [
        (Path("here"), "", "", Path.cwd() / "here"),
        (None, "there", "auto", Path.cwd() / "there"),
        (Path("here"), "there", "", Path.cwd() / "here"),
        (None, "", "", ROOT / "runs"),
        (Path("here"), "", "other/run", Path.cwd() / "other"),
    ],
)
def test_the_folder_of_the_results_is_absolute(
    option: Path | None, key: str, resume: str, expected: Path
) -> None:
    """Flower's processes run in another folder; a resumed run keeps its folder."""
    outcome = RunOutcome(completed=True, details="", results=Path("results"))
    assert launch(outcome, option, output_dir=key, resume=resume) == expected


FAILED = RunOutcome(
    completed=False,
    details="finished:failed No space left\nThe last checkpoint is /x/round-2.json",
    results=None,
)


def test_a_failed_run_leaves_its_log(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError) as failed:
        launch(FAILED, tmp_path / "new")
    file = tmp_path / "new" / "failed-run.log"
    assert str(failed.value) == (
        f"the run has failed: {FAILED.details}\nEverything Flower logged: {file}"
    )
    assert file.read_text() == "the last line"
    with pytest.raises(RuntimeError, match=r"/x/round-2\.json$"):
        launch(FAILED, tmp_path / "demo", save_log=False)
    assert not (tmp_path / "demo").exists()


def test_a_log_that_cannot_be_written_does_not_hide_the_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RuntimeError) as failed:
        launch(FAILED, tmp_path / "file" / "x")
    file = tmp_path / "file" / "x" / "failed-run.log"
    assert FAILED.details in str(failed.value)
    assert f"could not be written to {file} (Not a directory)" in str(failed.value)


@pytest.fixture
def _signal_handlers() -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGHUP)
    handlers = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, handlers, strict=True):
        signal.signal(number, handler)


@pytest.mark.usefixtures("_signal_handlers")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_through_all_context_managers(number: signal.Signals) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.run_command(lambda: signal.raise_signal(number))
    assert exit_.value.code == 128 + number


@pytest.mark.usefixtures("_signal_handlers")
def test_ctrl_c_is_exit_130(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run_command(lambda: signal.default_int_handler(2, None)) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_an_error_of_the_system_is_a_message_and_exit_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "no such file"
    assert cli.run_command(file.unlink) == 1
    printed = capsys.readouterr().err
    assert f"No such file or directory: '{file}'" in printed
    assert "Traceback" not in printed
