"""Check the arrays that a client sent, before NumPy decodes them and after.

Nothing here trusts a client: an array is decoded only after its size is known to be
that of the array that was sent, and nothing is evaluated or unpickled.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array

from .decoding import NUMPY

__all__ = [
    "count_non_finite",
    "encoding_problem",
    "metadata_problem",
    "quote_value",
    "squared_distance",
]

MAGIC = b"\x93NUMPY\x01\x00"  # format 1.0, in which NumPy saves the model's arrays
MAX_HEADER_LENGTH = 10_000  # bytes; NumPy refuses to read a longer header
BLOCK_SIZE = 2**16  # numbers
MAX_CHARACTERS = 80  # of a client's value in a message


def metadata_problem(
    array: Array, sent: Array, further_dtype: str | None
) -> str | None:
    """Return how the declared type or shape differs from the array that was sent.

    ``further_dtype`` is allowed besides the type in which the array was sent.
    """
    shape = tuple(sent.shape)
    if array.stype != NUMPY:
        return f"is of the kind {quote_value(array.stype)}, not {NUMPY!r}"
    if tuple(array.shape) != shape:
        return f"has the shape {quote_value(tuple(array.shape))}, not {shape}"
    if array.dtype not in (sent.dtype, further_dtype):
        return f"is of the type {quote_value(array.dtype)}, not {sent.dtype!r}"
    return None


def encoding_problem(array: Array, shape: tuple[int, ...]) -> str | None:
    """Return how the bytes of an array differ from what its metadata declares.

    NumPy evaluates the header of the bytes that it reads. Bytes pass this check only if
    their header is what NumPy writes for this type and shape, with any number of blanks
    before the newline at its end.
    """
    if not array.data.startswith(MAGIC):
        start = quote_value(array.data[: len(MAGIC)])
        return f"begins with {start}, not with NumPy's {MAGIC!r}"
    dtype = np.dtype(array.dtype)
    length = int.from_bytes(array.data[len(MAGIC) : len(MAGIC) + 2], "little")
    begin = len(MAGIC) + 2 + length
    # Blanks after the newline would make NumPy parse the header as Python 2's.
    header = array.data[len(MAGIC) + 2 : begin].removesuffix(b"\n").rstrip(b" ")
    allowed = [_numpy_header(dtype, shape, fortran) for fortran in (False, True)]
    if header not in allowed:
        return f"has the header {quote_value(header)}, not {allowed[0]!r}"
    size, expected = len(array.data) - begin, dtype.itemsize * math.prod(shape)
    if size != expected:
        return f"has {max(size, 0)} bytes of values, not {expected}"
    if length > MAX_HEADER_LENGTH:
        return f"has a header of {length} bytes, more than {MAX_HEADER_LENGTH}"
    return None


def count_non_finite(values: npt.NDArray[Any]) -> int:
    """Count the values that are not finite, without a mask of the whole array."""
    flat, count = values.ravel(order="K"), 0
    for i in range(0, flat.size, BLOCK_SIZE):
        finite = np.isfinite(flat[i : i + BLOCK_SIZE])
        count += finite.size - int(np.count_nonzero(finite))
    return count


def squared_distance(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> float:
    """Return the squared distance in double precision; inf if it is not finite.

    The difference is computed in blocks, without a temporary array of the full size.
    """
    wide = np.result_type(one, np.float64)
    one, other = np.ravel(one), np.ravel(other)
    square = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for i in range(0, one.size, BLOCK_SIZE):
            block = slice(i, i + BLOCK_SIZE)
            difference = np.subtract(one[block], other[block], dtype=wide)
            # Not BLAS, whose order of summation depends on the number of threads.
            square += float(np.einsum("n,n->", difference.conj(), difference).real)
    return square if math.isfinite(square) else math.inf


def quote_value(value: Any) -> str:
    """Return the beginning of a client's value on one line, safe to log."""
    if isinstance(value, str | bytes | list | tuple):
        value = value[:MAX_CHARACTERS]
    try:
        text = repr(value)
    except ValueError:  # Python refuses to format an int of more than 4300 digits
        return "a number of thousands of digits"
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}..."


def _numpy_header(
    dtype: np.dtype[Any], shape: tuple[int, ...], fortran_order: bool
) -> bytes:
    """Return the header that NumPy writes, without its padding."""
    descr = np.lib.format.dtype_to_descr(dtype)
    text = f"'descr': {descr!r}, 'fortran_order': {fortran_order}, 'shape': {shape}, "
    return f"{{{text}}}".encode("latin1")
