"""Read a span of an open file into memory, with the digests of its tiles if wanted.

What the page cache holds is copied and digested piece by piece while it is in the processor's cache. What it does not
hold is read past it, many pieces at once, so that the disk is never idle. Small spans are one plain call.
"""

from __future__ import annotations

import os
from typing import Final

import numpy as np
import xxhash

from perdure.errors import CallError
from perdure.store.io_choice import NATIVE

if NATIVE:
    from perdure import _native

__all__ = ["LARGE_BYTES", "FileCut", "read_span", "read_tiles", "tile_digests"]

LARGE_BYTES: Final = 1 << 20
"""A span from here on is read by several threads, and past the page cache if it is not in there."""

_THREADS: Final = min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
_DEPTH: Final = 8  # tiles in flight from a disk: with tiles of 4 MiB more gain nothing
_PIECE_BYTES: Final = 4 << 20  # what a thread reads at a time where there are no tiles
_READ_BYTES: Final = 1 << 30  # the kernel reads less than 2 GiB a call; signals are seen between two
_CUT: Final = -1


class FileCut(Exception):
    """The file ends before the wanted bytes: a fact for `Disk`, which knows the error to raise."""


def read_span(fd: int, direct_fd: int, start: int, into: memoryview) -> None:
    """Fill ``into`` with the bytes of ``fd`` from ``start`` on. ``direct_fd``: the same file opened direct, or -1.

    Raises: `OSError`; `FileCut` if the file is too short.
    """
    if NATIVE and into.nbytes >= LARGE_BYTES:
        _native_read(fd, direct_fd, start, into, _PIECE_BYTES, digested=False)
        return
    done = 0
    while done < into.nbytes:
        got = os.preadv(fd, [into[done : done + _READ_BYTES]], start + done)
        if got == 0:
            raise FileCut
        done += got


def read_tiles(fd: int, direct_fd: int, start: int, into: memoryview, tile_bytes: int) -> bytes:
    """Like `read_span`; return the XXH3-128 of each ``tile_bytes`` of what now lies in ``into``, 16 bytes a tile."""
    if tile_bytes < 1:
        raise CallError(f"there are no tiles of {tile_bytes} bytes")
    if NATIVE:
        return _native_read(fd, direct_fd, start, into, tile_bytes, digested=True)
    digests = []
    for at in range(0, into.nbytes, tile_bytes):
        tile = into[at : at + tile_bytes]
        read_span(fd, direct_fd, start + at, tile)
        digests.append(xxhash.xxh3_128_digest(tile))
    return b"".join(digests)


def tile_digests(data: memoryview, tile_bytes: int) -> bytes:
    """The XXH3-128 of each tile of ``data``, 16 bytes each, one after another."""
    if not NATIVE:
        return b"".join(xxhash.xxh3_128_digest(data[at : at + tile_bytes]) for at in range(0, data.nbytes, tile_bytes))
    out = np.empty((-(-data.nbytes // tile_bytes), 16), np.uint8)
    _native.digest_tiles(np.frombuffer(data, np.uint8), tile_bytes, out, _THREADS)
    return out.tobytes()


def _native_read(fd: int, direct_fd: int, start: int, into: memoryview, tile_bytes: int, *, digested: bool) -> bytes:
    """By the kernel `read_tiles`, in calls of whole tiles between which signals are seen."""
    call_bytes = max(1, _READ_BYTES // tile_bytes) * tile_bytes
    address = int(np.frombuffer(into, np.uint8).__array_interface__["data"][0]) if into.nbytes else 0
    digests = []
    for at in range(0, into.nbytes, call_bytes):
        nbytes = min(call_bytes, into.nbytes - at)
        out = np.empty((-(-nbytes // tile_bytes), 16), np.uint8) if digested else None
        code = _native.read_tiles(fd, direct_fd, start + at, nbytes, address + at, tile_bytes, out, _THREADS, _DEPTH)
        if code == _CUT:
            raise FileCut
        if code != 0:
            raise OSError(code, os.strerror(code))
        if out is not None:
            digests.append(out.tobytes())
    return b"".join(digests)
