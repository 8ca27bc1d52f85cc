"""Bytes and their digests in one go: what a verified load reads.

A store that can do both in one pass (`perdure.store.api.DigestedReads`) does; any other is read and then digested.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.errors import CallError
from perdure.store.api import DigestedReads, Store
from perdure.store.spans import tile_digests

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["read_digested"]


def read_digested(store: Store, name: str, *, start: int, nbytes: int, into: Buffer, tile_bytes: int) -> bytes:
    """Read ``nbytes`` bytes of the blob from ``start`` on into the front of ``into``; return the digest of each tile.

    16 bytes for every ``tile_bytes`` of the span, the last of which may be shorter. Nothing is compared: the caller
    knows what the digests must be. Releases the interpreter's lock; any thread may call it.

    Raises what `Store.read` raises; ``into`` may then hold anything.

    >>> from perdure.store.ram import Ram
    >>> ram, buffer = Ram(), bytearray(7)
    >>> ram.put("a", [b"a perdure"])
    >>> read_digested(ram, "a", start=2, nbytes=7, into=buffer, tile_bytes=4096).hex(), bytes(buffer)
    ('b8bdbcdabf21f2579cb77346c1a53647', b'perdure')
    """
    if tile_bytes < 1:
        raise CallError(f"there are no tiles of {tile_bytes} bytes", name=name)
    if isinstance(store, DigestedReads):
        return store.read_digested(name, start=start, nbytes=nbytes, into=into, tile_bytes=tile_bytes)
    return tile_digests(store.read(name, start=start, nbytes=nbytes, into=into), tile_bytes)
