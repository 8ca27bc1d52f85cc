"""Copy many blocks of memory in one call: the snapshot of a model's tensors."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from perdure.errors import CallError
from perdure.shm import twin

try:
    from perdure import _native
except ImportError:  # not built for this platform: the twin does the same, slower, and `NATIVE` says so
    _native = None  # type: ignore[assignment]

__all__ = ["NATIVE", "copy_many"]

NATIVE: Final[bool] = _native is not None
"""Whether the C++ kernel is in use; `perdure doctor` shows it."""

_copy_many = _native.copy_many if NATIVE else twin.copy_many


def copy_many(src: npt.ArrayLike, dst: npt.ArrayLike, nbytes: npt.ArrayLike, *, threads: int = 1) -> None:
    """Copy ``nbytes[i]`` bytes from address ``src[i]`` to address ``dst[i]``, for every i.

    The three are uint64[n] or anything that converts without loss. The caller vouches for the addresses: each block
    must stay readable (writable) for the whole call, and no destination may overlap another block; that a block does
    not overlap its own copy is checked. The interpreter's lock is released meanwhile, so other Python threads run.
    Large blocks go around the cache. Any thread may call this; ``threads`` (1 to 1024) share out the bytes of one call.

    Raises: `CallError` before anything is copied, if lengths differ or a block cannot be.

    >>> source, copy = np.arange(10.0), np.zeros(10)
    >>> copy_many([source.ctypes.data], [copy.ctypes.data], [80])
    >>> bool((copy == source).all())
    True
    """
    try:
        _copy_many(_words(src), _words(dst), _words(nbytes), threads)
    except (TypeError, ValueError, OverflowError) as error:
        raise CallError(f"these blocks cannot be copied: {error}") from error


def _words(values: npt.ArrayLike) -> npt.NDArray[np.uint64]:
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError("addresses and sizes are integers in one dimension")
    if array.dtype.kind == "i" and array.size and array.min() < 0:
        raise ValueError("addresses and sizes are not negative")
    return np.ascontiguousarray(array, dtype=np.uint64)
