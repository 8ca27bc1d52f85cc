"""`copy_many` without the C++ kernels: its oracle in the tests, its fallback where they are not built."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt

__all__ = ["copy_many"]

_Words = npt.NDArray[np.uint64]


def copy_many(src: _Words, dst: _Words, nbytes: _Words, threads: int = 1) -> None:
    """Copy ``nbytes[i]`` bytes from address ``src[i]`` to address ``dst[i]``, on one thread whatever ``threads`` says.

    Raises: ValueError under the same conditions as the kernel, before anything is copied.
    """
    if not len(src) == len(dst) == len(nbytes):
        raise ValueError("src, dst and nbytes must have one length")
    if not 1 <= threads <= 1024:
        raise ValueError("threads must be from 1 to 1024")
    blocks = [(int(a), int(b), int(n)) for a, b, n in zip(src, dst, nbytes, strict=True) if n]
    for a, b, n in blocks:
        if a == 0 or b == 0:
            raise ValueError("a block of bytes cannot lie at address 0")
        if max(a, b) + n >= 1 << 64:
            raise ValueError("a block runs past the end of memory")
        if a < b + n and b < a + n:
            raise ValueError("source and destination overlap")
    for a, b, n in blocks:
        ctypes.memmove(b, a, n)
