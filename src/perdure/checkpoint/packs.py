"""Packs as sources of a load, and the two steps that make a pack of a filled segment: hash it, store it."""

from __future__ import annotations

from perdure.codec.digest import copy_and_digest, tile_digests
from perdure.state.index import RankIndex
from perdure.state.save import packs_of
from perdure.store import PackIndex, PackRef, Run, parse_header, read_digested

__all__ = ["DiskPack", "MemoryPack", "seal"]


class MemoryPack:
    """A sealed pack in a segment of the node's agent, mapped read-only."""

    tier = "memory"
    mapped = True

    def __init__(self, view: memoryview, *, file: str) -> None:
        self.file = file
        self._view = view
        self._index: PackIndex | None = None

    def index(self) -> PackIndex:
        """The header, read and checked once."""
        if self._index is None:
            view = self._view
            self._index = parse_header(lambda start, n: view[start : start + n], view.nbytes, file=self.file)
        return self._index

    def fetch(self, start: int, nbytes: int, into: memoryview | None = None) -> memoryview:
        """A view of the segment itself, or a copy of it in ``into``."""
        found = self._view[start : start + nbytes]
        if into is None:
            return found
        into[:nbytes] = found
        return into[:nbytes]

    def read_digested(self, start: int, nbytes: int, into: memoryview, tile_bytes: int) -> bytes:
        """Copy to ``into`` and hash the copy, in one pass over memory."""
        return copy_and_digest(self._view[start : start + nbytes], into, tile_bytes)


class DiskPack:
    """A pack in the store of the run."""

    tier = "disk"
    mapped = False

    def __init__(self, run: Run, ref: PackRef) -> None:
        self.file = ref.name
        self._run = run
        self._ref = ref
        self._index: PackIndex | None = None

    def index(self) -> PackIndex:
        """The header, read and checked once."""
        if self._index is None:
            self._index = self._run.open_pack(self._ref)
        return self._index

    def fetch(self, start: int, nbytes: int, into: memoryview | None = None) -> memoryview:
        """Read from the store."""
        return self._run.store.read(self._ref.name, start=start, nbytes=nbytes, into=into)

    def read_digested(self, start: int, nbytes: int, into: memoryview, tile_bytes: int) -> bytes:
        """Read into ``into`` and hash what has come."""
        store, name = self._run.store, self._ref.name
        return read_digested(store, name, start=start, nbytes=nbytes, into=into, tile_bytes=tile_bytes)


def seal(index: RankIndex, view: memoryview) -> int:
    """Hash the tiles of the tensors that ``index`` places in ``view`` and write the header of each pack before them.

    Returns the bytes of all packs; the front of ``view`` is valid packs afterwards. Releases the interpreter's lock.
    """
    packs = packs_of(index)
    for placed in packs:
        plan, pack = placed.plan, view[placed.start : placed.stop]
        digests = b"".join(tile_digests(pack[e.start : e.start + e.nbytes], plan.tile_bytes) for e in plan.entries)
        pack[: plan.header_nbytes] = plan.render_header(digests)
        for pad in plan.pads:
            pack[pad.start : pad.start + pad.nbytes] = bytes(pad.nbytes)
    return packs[-1].stop
