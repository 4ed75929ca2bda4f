"""Hostile and damaged batches are refused; nothing in them is executed."""

from __future__ import annotations

import codecs
import pickle
import random
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flfa_app.data.formats.cifar_pickle import PickledArray, read_batch
from flfa_app.data.validation import report_damage
from tests.unit.flfa_app.data import write
from tests.unit.flfa_app.data.write import COLOUR

ROWS = write.rows(COLOUR["train_images"][:2])


def batch(**content: Any) -> bytes:
    return pickle.dumps({"data": ROWS, "labels": [3, 4]} | content, protocol=2)


def read(content: bytes) -> dict[str, Any]:
    with report_damage("a batch", "cure"):
        return read_batch(content)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
def test_batches_of_python_3(protocol: int) -> None:
    content = pickle.dumps({"data": ROWS, "labels": [3, 4]}, protocol)
    assert read(content)["labels"] == [3, 4]
    np.testing.assert_array_equal(read(content)["data"].array(), ROWS)


def test_batches_of_python_2() -> None:
    content = write.python2({"data": ROWS, "labels": [3, 4]})
    np.testing.assert_array_equal(read(content)["data"].array(), ROWS)


def test_flags_of_a_type_are_ignored() -> None:
    """NumPy would fail with them, or take the content for objects."""
    before = b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK"
    content = batch()
    assert content.count(before + b"\x00") == 1
    content = content.replace(before + b"\x00", before + b"\x3f")
    np.testing.assert_array_equal(read(content)["data"].array(), ROWS)


@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_either_order(order: str) -> None:
    array = np.array([[0, 1, 2], [3, 4, 5]], np.uint8, order=order)
    assert read(batch(data=array))["data"].array().tolist() == array.tolist()


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (None, "no shape, type and content"),
        ((1, (2,), np.dtype("u1"), False), "no shape, type and content"),
        ((1, (2,), "u1", False, b"ab"), "not of bytes"),
        ((1, (2,), np.dtype("O"), False, [None, None]), "not of bytes"),
        ((1, (2,), np.dtype("u1"), False, ["a", "b"]), "content of an array"),
        ((1, (-1, -2), np.dtype("u1"), False, b"ab"), r"shape .* is \(-1, -2\)"),
        ((1, 2, np.dtype("u1"), False, b"ab"), "shape of an array in it is 2"),
        ((1, (2**40, 3072), np.dtype("u1"), False, b"ab"), "has 2 bytes for the shape"),
    ],
)
def test_invalid_arrays(state: Any, message: str) -> None:
    class Array:
        def __reduce__(self) -> tuple[Any, ...]:
            empty = np.empty(0).__reduce__()
            return (*empty[:2], state) if state else empty[:2]

    array = read(batch(data=Array()))["data"]
    with pytest.raises(ValueError, match=message):
        array.array()


class Calls:
    """Calls a function if it is unpickled."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def test_no_function_is_called(tmp_path: Path) -> None:
    content = batch(data=Calls(Path.touch, tmp_path / "executed"))
    with pytest.raises(ValueError, match=r"a batch is damaged: it asks for .*; cure"):
        read(content)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    "arguments", [("x", "rot13"), (b"x", "latin1"), ("x" * 9, "zlib"), ("x",)]
)
def test_no_other_codec_is_called(arguments: tuple[Any, ...]) -> None:
    """Below protocol 3, Python 3 writes bytes as text that is encoded in latin1."""
    with pytest.raises(ValueError, match=r"damaged: (it asks for|TypeError: .*latin1)"):
        read(batch(data=Calls(codecs.encode, *arguments)))


def test_no_memory_is_allocated_on_request() -> None:
    """A bytearray of 2**40 bytes; and an entry 2**32 - 1 of the memo.

    The second is harmless because the memo is a dict.
    """
    length = pickle.BYTEARRAY8 + struct.pack("<Q", 2**40)
    with pytest.raises(ValueError, match="a batch is damaged"):
        read(pickle.PROTO + b"\x05" + length)
    entry = pickle.LONG_BINPUT + struct.pack("<I", 2**32 - 1)
    assert read(b"\x80\x02}" + entry + b".") == {}


def test_something_else_than_a_dict() -> None:
    with pytest.raises(ValueError, match="damaged: it holds a list, not a batch; cure"):
        read(pickle.dumps([]))


@pytest.mark.parametrize("seed", range(3))
def test_overwritten_bytes_raise_nothing_but_value_error(seed: int) -> None:
    """Nor do they crash Python, or ask for memory.

    The overwritten bytes are before and after the pixels, where the program is.
    """
    draw = random.Random(seed)
    content = batch()
    program = [*range(250), *range(len(content) - 80, len(content))]
    for _ in range(1_000):
        changed = bytearray(content)
        for place in draw.choices(program, k=draw.randint(1, 3)):
            changed[place] = draw.randrange(256)
        with suppress(ValueError):
            data = read(bytes(changed)).get("data")
            if isinstance(data, PickledArray):
                data.array()
