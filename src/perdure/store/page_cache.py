"""Ask the kernel what of a file it holds in memory, without making it read any."""

from __future__ import annotations

import ctypes
import mmap
import os

import numpy as np

__all__ = ["is_cached"]

_libc = ctypes.CDLL(None)
_mincore = getattr(_libc, "mincore", None)  # None where the system has none
if _mincore is not None:
    _mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)


def is_cached(fd: int, at: int) -> bool:
    """Whether byte ``at`` of an open file is in the page cache; of a file that is not this user's, always.

    False where that cannot be known.
    """
    if _mincore is None or not 0 <= at < os.fstat(fd).st_size:
        return False
    start = at // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    length = at - start + 1
    try:
        mapped = mmap.mmap(fd, length, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ, offset=start)
    except (OSError, ValueError):
        return False
    with mapped:
        found = ctypes.create_string_buffer(-(-length // mmap.PAGESIZE))
        view = np.frombuffer(mapped, np.uint8)
        code = _mincore(view.ctypes.data, length, found)
        del view
    return code == 0 and bool(found.raw[-1] & 1)
