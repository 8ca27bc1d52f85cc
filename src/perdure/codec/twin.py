"""The digest kernels without C++: their oracle in the tests, their fallback where they are not built.

XXH3 comes from the xxhash library here.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import xxhash

if TYPE_CHECKING:
    from perdure.codec.digest import BytesLike

__all__ = ["copy_digest", "digest", "digest_pair", "digest_tiles"]

_Digests = npt.NDArray[np.uint8]


def digest(data: BytesLike) -> bytes:
    """The XXH3-128 of ``data``, canonical byte order."""
    return xxhash.xxh3_128_digest(_view(data))


def digest_tiles(data: BytesLike, tile_bytes: int, out: _Digests, threads: int = 1) -> None:
    """Write the XXH3-128 of each tile of ``data`` to a row of ``out``, uint8[n_tiles, 16]; on one thread.

    Raises: ValueError under the same conditions as the kernel.
    """
    if not 1 <= threads <= 1024:
        raise ValueError("threads must be from 1 to 1024")
    view = _view(data)
    _check(view.nbytes, tile_bytes, out)
    for row, start in enumerate(range(0, view.nbytes, tile_bytes)):
        out[row] = np.frombuffer(xxhash.xxh3_128_digest(view[start : start + tile_bytes]), np.uint8)


def copy_digest(src: int, dst: int, nbytes: int, tile_bytes: int, out: _Digests) -> None:
    """Copy ``nbytes`` bytes from address ``src`` to ``dst`` and write the digest of each tile of the copy to ``out``.

    Raises: ValueError under the same conditions as the kernel.
    """
    _check(nbytes, tile_bytes, out)
    if nbytes == 0:
        return
    if src == 0 or dst == 0:
        raise ValueError("a block of bytes cannot lie at address 0")
    if src < dst + nbytes and dst < src + nbytes:
        raise ValueError("source and destination overlap")
    ctypes.memmove(dst, src, nbytes)
    digest_tiles((ctypes.c_ubyte * nbytes).from_address(dst), tile_bytes, out)


def digest_pair(tile: BytesLike, base: BytesLike, out: _Digests | None) -> None:
    """Write the digests of a tile and its base to ``out``, uint8[2, 16], if there is one."""
    if out is not None:
        out[0], out[1] = (np.frombuffer(digest(data), np.uint8) for data in (tile, base))


def _view(data: BytesLike) -> memoryview:
    view = memoryview(data)  # type: ignore[arg-type]  # an array is a buffer; its type says so from Python 3.12 on
    return view.cast("B") if view.nbytes else memoryview(b"")


def _check(nbytes: int, tile_bytes: int, out: _Digests) -> None:
    if tile_bytes < 1:
        raise ValueError("tile_bytes must be positive")
    if out.shape != (-(-nbytes // tile_bytes), 16):
        raise ValueError("out must be uint8[n_tiles, 16]: one row for each tile")
