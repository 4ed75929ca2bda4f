"""Files that are complete or unchanged, and locks that a killed process releases."""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flfa_app.files import (
    append_line,
    exclusive_lock,
    list_round_files,
    write_atomically,
    write_json,
)


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """No file can grow beyond it: like a full disk, but without being root."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("concurrent", [False, True])
def test_a_file_is_replaced_completely_or_not_at_all(
    concurrent: bool, tmp_path: Path
) -> None:
    file = tmp_path / "x"
    write_atomically(file, b"old", concurrent=concurrent)
    with file_size_limit(50), pytest.raises(OSError, match="File too large"):
        write_atomically(file, bytes(100), concurrent=concurrent)
    assert file.read_bytes() == b"old"
    write_atomically(file, bytes(100), concurrent=concurrent)
    assert file.read_bytes() == bytes(100)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_content_and_name_are_flushed_before_and_after_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The content under its temporary name first, then the folder with the new name."""
    flushed = []

    def note(descriptor: int) -> None:
        target = Path(f"/proc/self/fd/{descriptor}").readlink()
        flushed.append((target.name, (tmp_path / "x").exists()))

    monkeypatch.setattr(os, "fsync", note)
    write_atomically(tmp_path / "x", b"content")
    assert flushed == [(".x.unfinished", False), (tmp_path.name, True)]


def test_concurrent_writers_have_their_own_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second writer starts while the first one flushes."""
    file = tmp_path / "x"
    flush = os.fsync

    def interrupt(descriptor: int) -> None:
        monkeypatch.setattr(os, "fsync", flush)
        write_atomically(file, b"second", concurrent=True)
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", interrupt)
    write_atomically(file, b"first", concurrent=True)
    assert file.read_bytes() == b"first"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_json_has_null_for_what_is_not_finite(tmp_path: Path) -> None:
    write_json(tmp_path / "x", {"b": [math.nan, 1.5], "a": {"c": -math.inf}})
    text = (tmp_path / "x").read_text()
    content = {"b": [None, 1.5], "a": {"c": None}}
    assert text == json.dumps(content, indent=2) + "\n"


@pytest.mark.parametrize("length", [100, 20_000])
def test_a_line_is_appended_completely_or_not_at_all(
    length: int, tmp_path: Path
) -> None:
    """Both shorter and longer than Python's buffer of 8 KiB; the first and the next."""
    file, line, content = tmp_path / "x", "x" * length + "\n", ""
    for _ in range(2):
        limit = file_size_limit(len(content) + length // 2)
        with limit, pytest.raises(OSError, match="File too large"):
            append_line(file, line)
        assert file.read_text() == content
        append_line(file, line)
        content += line
        assert file.read_text() == content


def test_files_of_rounds_are_found_by_their_exact_names(tmp_path: Path) -> None:
    """Six digits, more only if they are needed; copies are somebody else's."""
    others = ["round-000002 (copy)", "round-2", "round-0000002", "round-x", "round-"]
    names = ["round-000012", "round-999999", "round-1000000", *others]
    for name in names:
        (tmp_path / f"{name}.json").touch()
    (tmp_path / "round-000013.jsonl").touch()
    assert list_round_files(tmp_path / "absent", ".json") == {}
    assert list_round_files(tmp_path, ".json") == {
        number: tmp_path / f"round-{number:06d}.json"
        for number in (12, 999_999, 1_000_000)
    }


def test_a_lock_excludes_others_until_its_process_ends(tmp_path: Path) -> None:
    """Released by the block, or by the operating system for a killed process."""

    def assert_locked() -> None:
        for _ in range(2):  # a failed attempt does not release it
            with (
                pytest.raises(RuntimeError, match="busy"),
                exclusive_lock(tmp_path, "busy"),
            ):
                pass

    with exclusive_lock(tmp_path, "busy"):
        assert_locked()
    script = (
        "import sys, time, pathlib\n"
        "from flfa_app.files import exclusive_lock\n"
        "with exclusive_lock(pathlib.Path(sys.argv[1]), 'busy'):\n"
        "    print('locked', flush=True)\n"
        "    time.sleep(60)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        assert_locked()
        process.send_signal(signal.SIGKILL)
    with exclusive_lock(tmp_path, "busy"):
        pass
