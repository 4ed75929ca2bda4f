"""The pickles of CIFAR's batches, read without trust in what they ask for."""

from __future__ import annotations

import io
import math
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flfa_app.data.validation import reading

__all__ = ["PickledArray", "read_batch"]

# A cut or overwritten pickle is a program that goes wrong anywhere.
_GONE_WRONG = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    struct.error,
)


class PickledType:
    """Stands for NumPy's ``dtype``, which may crash at a state that is not its own."""

    def __init__(self, code: Any = None, *flags: Any) -> None:
        self.code = code

    def __setstate__(self, state: Any) -> None:
        """Pass over byte order and flags: bytes have none."""


class PickledArray:
    """Stands for an array: what the pickle says of it, looked at before it is built."""

    def __init__(self, *prototype: Any) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        """Keep version, shape, type, whether columns come first, and the content."""
        self.state = state

    def array(self) -> NDArray[np.uint8]:
        """Return the array.

        Raises
        ------
        ValueError
            If it is not of bytes, or of more or fewer than its shape says.
        """
        if not isinstance(self.state, tuple) or len(self.state) != 5:
            raise ValueError("an array in it has no shape, type and content")
        _, shape, kind, by_column, content = self.state
        if not isinstance(kind, PickledType) or kind.code not in ("u1", b"u1"):
            raise ValueError("an array in it is not of bytes (uint8)")
        if isinstance(content, str):  # Python 2's bytes
            content = content.encode("latin1")
        if not isinstance(content, bytes):
            raise ValueError(f"the content of an array in it is {type(content)}")
        if not isinstance(shape, tuple) or not all(map(_is_length, shape)):
            raise ValueError(f"the shape of an array in it is {shape!r:.80}")
        if len(content) != math.prod(shape):
            raise ValueError(
                f"an array in it has {len(content):,} bytes for the shape {shape}"
            )
        flat = np.frombuffer(content, np.uint8)
        # Columns first: the array of the other order, its dimensions turned around.
        return flat.reshape(shape[::-1]).T if by_column else flat.reshape(shape)


def _is_length(number: Any) -> bool:
    return isinstance(number, int) and number >= 0


def _latin1(text: Any, encoding: Any) -> bytes:
    """Return the bytes that Python 3 writes as a text, below protocol 3."""
    if not isinstance(text, str) or encoding != "latin1":
        raise pickle.UnpicklingError(
            f"it asks for {encoding!r} of a {type(text).__name__}, not latin1 of a text"
        )
    return text.encode("latin1")


_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): PickledArray,
    ("numpy", "ndarray"): PickledArray,
    ("numpy", "dtype"): PickledType,
    ("_codecs", "encode"): _latin1,
}


# The one in C makes room for whatever number an overwritten byte asks for.
class _ArraysOnly(pickle._Unpickler):
    """A pickle may call anything; these batches need bytes and NumPy's arrays."""

    # This one would make room for a bytearray of any length; no batch has one.
    dispatch = {  # noqa: RUF012 (a ClassVar of the base class)
        code: load
        for code, load in pickle._Unpickler.dispatch.items()
        if code != pickle.BYTEARRAY8[0]
    }

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for what a batch may call; raise otherwise."""
        # NumPy has moved it.
        module = module.replace("numpy._core.", "numpy.core.")
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(
                f"it asks for {module}.{name}, which a batch of CIFAR has no use for"
            )
        return _ALLOWED[module, name]


def read_batch(place: Path | str, content: bytes, cure: str) -> dict[str, Any]:
    """Return a batch; its arrays are :class:`PickledArray`.

    Raises
    ------
    ValueError
        With the place, what is wrong, and the cure.
    """
    with reading(place, cure):
        try:
            # Python 2 wrote them: its texts are bytes.
            batch = _ArraysOnly(io.BytesIO(content), encoding="latin1").load()
        except _GONE_WRONG as problem:
            raise ValueError(f"{type(problem).__name__}: {problem}") from problem
        if not isinstance(batch, dict):
            raise ValueError(f"it holds a {type(batch).__name__}, not a batch")
        return batch
