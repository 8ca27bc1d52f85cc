"""The packs in a node's checkpoint memory: sealed when their segment is full, and then one source of a load.

Keys are unique in a step, so all segments together answer for a key, whatever pack of the store the step's manifest
names for it (which may be one of an earlier step, if the tensor has not changed since).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial
from types import MappingProxyType

from msgspec.structs import replace

from perdure.codec.digest import copy_and_digest, digest, tile_digests
from perdure.errors import BlobCorrupt, FormatRefused
from perdure.state.index import RankIndex
from perdure.state.save import packs_of
from perdure.store import PackEntry, PackIndex, parse_header
from perdure.store.pack_header import TILE_BYTES

__all__ = ["APART", "MemoryPacks", "headers_digest", "merged_index", "seal", "verify"]

APART = 1 << 48  # between the segments' addresses in the one index; no segment is as long


class MemoryPacks:
    """Sealed segments, each with the index of the rank that filled it; mapped read-only."""

    tier = "memory"
    mapped = True
    raw = True

    def __init__(self, segments: Sequence[tuple[RankIndex, memoryview]], *, file: str) -> None:
        self.file = file
        self._segments = segments
        self._index: PackIndex | None = None

    def index(self) -> PackIndex:
        """The headers of all packs as one, read and checked once."""
        if self._index is None:
            segments = [(index, view.nbytes, partial(_slice, view)) for index, view in self._segments]
            self._index = merged_index(segments, file=self.file)
        return self._index

    def fetch(self, start: int, nbytes: int, into: memoryview | None = None) -> memoryview:
        """A view of the segment itself, or a copy of it in ``into``."""
        number, at = divmod(start, APART)
        found = self._segments[number][1][at : at + nbytes]
        if into is None:
            return found
        into[:nbytes] = found
        return into[:nbytes]

    def read_digested(self, start: int, nbytes: int, into: memoryview, tile_bytes: int) -> bytes:
        """Copy to ``into`` and hash the copy, in one pass over memory."""
        return copy_and_digest(self.fetch(start, nbytes), into, tile_bytes)


def merged_index(
    segments: Iterable[tuple[RankIndex, int, Callable[[int, int], memoryview]]], *, file: str
) -> PackIndex:
    """The headers of the packs in all ``segments`` as one: each with the index of its rank, its bytes, and how to read
    them.

    Byte ``i`` of segment ``n`` is byte ``n * APART + i`` of the whole.
    """
    entries: list[PackEntry] = []
    digests: list[bytes] = []
    n_tiles, tile_bytes, total = 0, TILE_BYTES, 0
    for number, (index, nbytes, read) in enumerate(segments):
        total += nbytes
        for placed in packs_of(index):
            if placed.stop > nbytes:
                raise BlobCorrupt(f"{file} is cut off: {nbytes} bytes of {placed.stop}", file=file)

            header = parse_header(partial(_shifted, read, placed.start), placed.stop - placed.start, file=file)
            moved = number * APART + placed.start
            entries += [
                replace(each, start=each.start + moved, first_tile=each.first_tile + n_tiles) for each in header.entries
            ]
            if digests and header.tile_bytes != tile_bytes:
                raise FormatRefused(f"{file} has packs of different tiles; use another copy", file=file)
            tile_bytes = header.tile_bytes
            digests.append(header.digests)
            n_tiles += len(header.digests) // 16
    return PackIndex(
        entries=tuple(entries),
        tile_bytes=tile_bytes,
        header_nbytes=0,
        total_nbytes=total,
        header_digest="",
        digests=b"".join(digests),
        file=file,
        _by_key=MappingProxyType({each.key: each for each in entries}),
    )


def headers_digest(index: RankIndex, view: memoryview) -> str:
    """The digest of the headers of the packs that ``index`` places in ``view``."""
    headers = [view[placed.start : placed.start + placed.plan.header_nbytes] for placed in packs_of(index)]
    return digest(b"".join(headers))


def verify(segments: Sequence[tuple[RankIndex, memoryview]], *, file: str, only: Container[str] | None = None) -> None:
    """Compare every tile of sealed segments (of the keys ``only``) with its digest.

    Raises `BlobCorrupt` for the first that differs.
    """
    packs = MemoryPacks(segments, file=file)
    index = packs.index()
    for entry in index.entries:
        if only is not None and entry.key not in only:
            continue
        digests = index.digests[16 * entry.first_tile : 16 * (entry.first_tile + entry.n_tiles)]
        if tile_digests(packs.fetch(entry.start, entry.nbytes), index.tile_bytes) != digests:
            raise BlobCorrupt(
                f"{entry.key} of {file} does not hash to its digest; another copy is needed",
                tensor=entry.key,
                file=file,
            )


def _slice(view: memoryview, start: int, nbytes: int) -> memoryview:
    return view[start : start + nbytes]


def _shifted(read: Callable[[int, int], memoryview], by: int, start: int, nbytes: int) -> memoryview:
    return read(by + start, nbytes)


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
