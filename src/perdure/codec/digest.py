"""Digests: how perdure knows that bytes are the bytes that were saved.

XXH3-128 (seed 0): as fast as memory, and as good as any against accidents. It is no seal against somebody who forges
data. Large tensors are digested tile by tile, so that one damaged tile is found, named and fetched again alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from perdure.codec import twin
from perdure.errors import CallError

try:
    from perdure import _native
except ImportError:  # not built for this platform: the twins do the same, slower, and `NATIVE` says so
    _native = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "NATIVE",
    "TILE_BYTES",
    "BytesLike",
    "as_bytes",
    "copy_and_digest",
    "digest",
    "digest_bytes",
    "n_tiles",
    "tile_digests",
]

BytesLike: TypeAlias = "Buffer | npt.NDArray[Any]"
"""A contiguous buffer; NumPy's arrays are named since before Python 3.12 their types do not say that they are one."""

NATIVE: Final[bool] = _native is not None
"""Whether the C++ kernels are in use; `perdure doctor` shows it."""

TILE_BYTES: Final = 4 << 20
"""Size of a tile where nobody asks for another."""

_digest = _native.digest if NATIVE else twin.digest
_digest_tiles = _native.digest_tiles if NATIVE else twin.digest_tiles
_copy_digest = _native.copy_digest if NATIVE else twin.copy_digest


def digest(data: BytesLike) -> str:
    """The digest of all of ``data`` (any contiguous buffer or array), as 32 hexadecimal digits.

    Raises: `CallError` if ``data`` has no contiguous bytes.

    >>> digest(b"perdure")
    'b8bdbcdabf21f2579cb77346c1a53647'
    """
    return _digest(as_bytes(data)).hex()


def digest_bytes(data: Buffer) -> bytes:
    """The 16 bytes of the digest of a contiguous buffer; for callers with very many small ones, it checks nothing."""
    return _digest(data)


def n_tiles(nbytes: int, tile_bytes: int = TILE_BYTES) -> int:
    """How many tiles ``nbytes`` bytes make; the last may be shorter, and no bytes make no tile.

    >>> n_tiles(0), n_tiles(10, 5), n_tiles(11, 5)
    (0, 2, 3)
    """
    if nbytes < 0 or tile_bytes < 1:
        raise CallError(f"there are no tiles of {tile_bytes} bytes in {nbytes} bytes")
    return -(-nbytes // tile_bytes)


def tile_digests(data: BytesLike, tile_bytes: int = TILE_BYTES, *, threads: int = 1) -> bytes:
    """The digests of the tiles of ``data``, 16 bytes each, one after another.

    Releases the interpreter's lock; ``threads`` (1 to 1024) share the tiles.

    Raises: `CallError` if ``data`` has no contiguous bytes, or for sizes and counts out of bounds.

    >>> tile_digests(b"perdure", 4).hex()[:32] == digest(b"perd")
    True
    """
    source = as_bytes(data)
    out = np.empty((n_tiles(source.size, tile_bytes), 16), np.uint8)
    try:
        _digest_tiles(source, tile_bytes, out, threads)
    except ValueError as error:
        raise CallError(f"these tiles cannot be digested: {error}") from error
    return out.tobytes()


def copy_and_digest(src: BytesLike, dst: BytesLike, tile_bytes: int = TILE_BYTES) -> bytes:
    """Copy ``src`` into ``dst`` (writable, of the same size, elsewhere) and return the tile digests of the copy.

    One pass over memory. The digests are those of what now lies in ``dst``, even if somebody wrote to ``src``
    meanwhile. Fastest where ``dst`` starts at a multiple of 64 bytes. Releases the interpreter's lock.

    Raises: `CallError`, before anything is copied, if the two do not fit or overlap.

    >>> copy = bytearray(7)
    >>> copy_and_digest(b"perdure", copy).hex() == digest(b"perdure"), bytes(copy)
    (True, b'perdure')
    """
    source, target = as_bytes(src), as_bytes(dst)
    if source.size != target.size or not target.flags.writeable:
        raise CallError(
            f"cannot copy {source.size} bytes into {target.size} bytes "
            f"that are {'writable' if target.flags.writeable else 'read-only'}"
        )
    out = np.empty((n_tiles(source.size, tile_bytes), 16), np.uint8)
    try:
        _copy_digest(_address(source), _address(target), source.size, tile_bytes, out)
    except ValueError as error:
        raise CallError(f"these bytes cannot be copied: {error}") from error
    return out.tobytes()


def as_bytes(data: BytesLike) -> npt.NDArray[np.uint8]:
    """The bytes of a contiguous buffer or array, uint8[nbytes], without a copy; writable if ``data`` is.

    Raises: `CallError` if ``data`` is no buffer, or not contiguous in C order.
    """
    if isinstance(data, np.ndarray):
        array: npt.NDArray[Any] = data
        if not array.flags.c_contiguous or array.dtype.hasobject:
            raise CallError("an array's bytes are needed in one piece: pass numpy.ascontiguousarray of it")
        flat: npt.NDArray[np.uint8] = array.reshape(-1).view(np.uint8)
        return flat
    try:
        return np.frombuffer(memoryview(data), np.uint8)
    except (TypeError, ValueError, BufferError) as error:
        raise CallError(f"no contiguous bytes in this {type(data).__name__}: {error}") from error


def _address(array: npt.NDArray[np.uint8]) -> int:
    return int(array.__array_interface__["data"][0])
