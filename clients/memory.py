"""Memory that is freed and needed again in the next step."""

from __future__ import annotations

import ctypes
import sys
from functools import cache

__all__ = ["keep_freed_memory"]

# From malloc.h.
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
LARGEST_INT = 2**31 - 1


@cache
def keep_freed_memory() -> bool:
    """Let this process keep the memory it frees; return whether it could be arranged.

    Every step frees the activations and asks for the same memory again. The GNU C
    library returns large blocks to the system, which hands them out as new, empty pages
    one by one, which takes a good part of a step on a CPU. The peak stays the same,
    what lies below it is not given back before the process ends. Results do not change.

    Elsewhere (musl, macOS, Windows) nothing is done.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # All blocks from the heap, and the heap never shrinks.
    return bool(mallopt(M_MMAP_MAX, 0) and mallopt(M_TRIM_THRESHOLD, LARGEST_INT))
