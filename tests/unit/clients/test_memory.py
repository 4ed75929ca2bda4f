"""Keeping freed memory: with the GNU C library, and only there."""

import ctypes
import platform
import sys
from typing import Any

import pytest

from clients import keep_freed_memory

keep = keep_freed_memory.__wrapped__


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="not the GNU C library")
def test_the_gnu_c_library_keeps_freed_memory() -> None:
    assert keep() is True
    assert keep_freed_memory() is True


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_on_other_systems_no_library_is_opened(
    monkeypatch: pytest.MonkeyPatch, system: str
) -> None:
    def refused(name: Any) -> None:
        raise AssertionError("no library is to be opened")

    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(ctypes, "CDLL", refused)
    assert keep() is False


def test_a_library_without_mallopt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux with musl: an object without the function, as such a library is."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert keep() is False


@pytest.mark.parametrize("answers", [(0, 1), (1, 0), (0, 0), (1, 1)])
def test_the_result_says_whether_both_settings_were_accepted(
    monkeypatch: pytest.MonkeyPatch, answers: tuple[int, int]
) -> None:
    """The numbers of malloc.h: M_TRIM_THRESHOLD is -1, M_MMAP_MAX is -4."""
    asked = []

    class Library:
        def mallopt(self, parameter: int, value: int) -> int:
            asked.append((parameter, value))
            return answers[0] if parameter == -4 else answers[1]

    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library())
    assert keep() is (answers == (1, 1))
    assert set(asked) <= {(-4, 0), (-1, 2**31 - 1)}
    assert answers != (1, 1) or len(asked) == 2


def test_the_settings_are_made_once() -> None:
    keep_freed_memory()
    asked = keep_freed_memory.cache_info().misses
    keep_freed_memory()
    assert keep_freed_memory.cache_info().misses == asked
