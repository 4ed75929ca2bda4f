"""Safe reader of the pickled batches of CIFAR.

torchvision's reader does not replace it. It calls ``pickle.load`` after comparing the
md5 sums of the official files. Measured with version 0.29: without the comparison a
hostile batch executed its code; with it, subsets, rewritten batches and the unopened
archive are refused, and no error names the file.
"""

from __future__ import annotations

import io
import math
import pickle
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

# A truncated or overwritten pickle is a program that can fail anywhere.
_UNPICKLING_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    struct.error,
)


class PickledType:
    """Replaces NumPy's ``dtype``, which may crash at an invalid state."""

    def __init__(self, code: Any = None, *flags: Any) -> None:
        self.code = code

    def __setstate__(self, state: Any) -> None:
        """Ignore byte order and flags, which have no meaning for bytes."""


class PickledArray:
    """Replaces ``ndarray``: the array is built after its description is checked."""

    def __init__(self, *prototype: Any) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        """Store version, shape, type, whether the order is Fortran's, and content."""
        self.state = state

    def array(self) -> NDArray[np.uint8]:
        """Return the array; raise ValueError unless its bytes fit its shape."""
        if not isinstance(self.state, tuple) or len(self.state) != 5:
            raise ValueError("an array in it has no shape, type and content")
        _, shape, dtype, is_fortran, content = self.state
        if not isinstance(dtype, PickledType) or dtype.code not in ("u1", b"u1"):
            raise ValueError("an array in it is not of bytes (uint8)")
        if isinstance(content, str):  # bytes written by Python 2
            content = content.encode("latin1")
        if not isinstance(content, bytes):
            raise ValueError(f"the content of an array in it is {type(content)}")
        if not isinstance(shape, tuple) or not all(
            isinstance(length, int) and length >= 0 for length in shape
        ):
            raise ValueError(f"the shape of an array in it is {shape!r:.80}")
        if len(content) != math.prod(shape):
            raise ValueError(
                f"an array in it has {len(content):,} bytes for the shape {shape}"
            )
        flat = np.frombuffer(content, np.uint8)
        return flat.reshape(shape, order="F" if is_fortran else "C")


def _encode_latin1(text: Any, encoding: Any) -> bytes:
    """Replace ``codecs.encode``, with which Python 3 writes bytes below protocol 3."""
    if not isinstance(text, str) or encoding != "latin1":
        raise pickle.UnpicklingError(
            f"it asks for {encoding!r} of a {type(text).__name__}, not latin1 of a text"
        )
    return text.encode("latin1")


_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): PickledArray,
    ("numpy", "ndarray"): PickledArray,
    ("numpy", "dtype"): PickledType,
    ("_codecs", "encode"): _encode_latin1,
}


# The unpickler in C would allocate any size that an overwritten byte asks for.
class _BatchUnpickler(pickle._Unpickler):
    """Unpickler that can call nothing but what bytes and NumPy's arrays need."""

    # A bytearray, which no batch contains, would be allocated in any size.
    dispatch = {  # noqa: RUF012 (a ClassVar of the base class)
        code: load
        for code, load in pickle._Unpickler.dispatch.items()
        if code != pickle.BYTEARRAY8[0]
    }

    def find_class(self, module: str, name: str) -> Any:
        """Return the replacement of an allowed function; raise for all others."""
        module = module.replace("numpy._core.", "numpy.core.")  # since NumPy 2
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(
                f"it asks for {module}.{name}, which a batch of CIFAR does not need"
            )
        return _ALLOWED[module, name]


def read_batch(content: bytes) -> dict[str, Any]:
    """Return a batch, in which each array is a :class:`PickledArray`.

    A damaged one raises one of :data:`~flfa_app.data.validation.DAMAGE_ERRORS`.
    """
    try:
        # The official batches have byte strings of Python 2.
        batch = _BatchUnpickler(io.BytesIO(content), encoding="latin1").load()
    except _UNPICKLING_ERRORS as problem:
        raise ValueError(f"{type(problem).__name__}: {problem}") from problem
    if not isinstance(batch, dict):
        raise ValueError(f"it holds a {type(batch).__name__}, not a batch")
    return batch


def image_rows(batch: dict[str, Any]) -> NDArray[np.uint8]:
    """Return the images of a batch, one per row: red, then green, then blue."""
    problem = "it has no data of 3x32x32 bytes"
    data = batch.get("data")
    if not isinstance(data, PickledArray):
        raise ValueError(problem)
    try:
        rows = data.array()
    except ValueError as detail:
        raise ValueError(f"{problem}: {detail}") from detail
    if rows.shape[1:] != (3072,) or len(rows) == 0:
        raise ValueError(problem)
    return rows
