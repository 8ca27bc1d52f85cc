"""What every byte of a blob must hash to, as stretches; and the check of a blob against them.

A part is its record and its leaves, a pack is its header, its tensors tile by tile, and the zeros between them. Whoever
verifies asks which stretches are bad; whoever repairs looks for each of them elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import xxhash

from perdure.codec import tile_digests
from perdure.errors import IntegrityError, StorageError
from perdure.store import PackIndex, PackRef, Part, PartRef, Store, read_digested

__all__ = ["SPAN_BYTES", "Bad", "Stretch", "bad_tiles", "leaves_of", "room_for", "tensors_of", "top_of"]

SPAN_BYTES = 32 << 20  # of one read
_SMALL_BYTES = 1 << 20  # smaller stretches are read together
_ZEROS = [xxhash.xxh3_128_digest(bytes(n)) for n in range(64)]


class Stretch(msgspec.Struct, frozen=True, gc=False):
    """``nbytes`` of a blob from ``start`` on: 16 bytes of digest for each ``tile_bytes`` of them.

    ``what`` is for people; ``tensor`` is the key of a tensor. ``pad``: no reader wants these bytes.
    """

    what: str
    start: int
    nbytes: int
    tile_bytes: int
    digests: bytes
    tensor: str | None = None
    pad: bool = False

    @property
    def n_tiles(self) -> int:
        """How many tiles it has."""
        return len(self.digests) // 16

    def tile(self, number: int) -> Stretch:
        """One tile of it."""
        start = number * self.tile_bytes
        nbytes = min(self.tile_bytes, self.nbytes - start)
        digests = self.digests[16 * number : 16 * number + 16]
        return Stretch(self.what, self.start + start, nbytes, self.tile_bytes, digests, self.tensor, self.pad)


@dataclass(frozen=True, slots=True)
class Bad:
    """A tile of a stretch that is not what was written, and why: a phrase."""

    stretch: Stretch
    tile: int
    why: str


def top_of(ref: PartRef | PackRef) -> Stretch:
    """The record of a part, or the header of a pack."""
    nbytes, digest, what = (
        (ref.top_nbytes, ref.digest, "its record")
        if isinstance(ref, PartRef)
        else (ref.header_nbytes, ref.header_digest, "its header")
    )
    return Stretch(what, 0, nbytes, max(nbytes, 1), bytes.fromhex(digest))


def leaves_of(ref: PartRef, part: Part) -> list[Stretch]:
    """The leaves of a part."""
    return [
        Stretch(
            f"its index of {leaf.kind} from {leaf.first!r} to {leaf.last!r}",
            ref.top_nbytes + leaf.start,
            leaf.nbytes,
            leaf.nbytes,
            bytes.fromhex(leaf.digest),
        )
        for leaf in part.leaves
    ]


def tensors_of(index: PackIndex) -> list[Stretch]:
    """All of a pack behind its header."""
    found: list[Stretch] = []
    cursor = index.header_nbytes
    for entry in index.entries:
        gap = entry.start - cursor
        if gap:
            found.append(Stretch("the zeros between tensors", cursor, gap, gap, _ZEROS[gap], pad=True))
        cursor = entry.start + entry.nbytes
        if entry.nbytes:
            digests = index.digests[16 * entry.first_tile : 16 * (entry.first_tile + entry.n_tiles)]
            what = f"tensor {entry.key!r}"
            found.append(Stretch(what, entry.start, entry.nbytes, index.tile_bytes, digests, entry.key))
    return found


def room_for(stretches: Sequence[Stretch]) -> memoryview:
    """A buffer that `bad_tiles` can read these stretches with: as small as they are, and bounded."""
    total = sum(each.nbytes for each in stretches)
    tile = max((min(each.tile_bytes, each.nbytes) for each in stretches), default=1)
    return np.empty(max(min(total, SPAN_BYTES), tile, 1), np.uint8).data


def bad_tiles(
    store: Store,
    name: str,
    stretches: Sequence[Stretch],
    *,
    room: memoryview,
    on_bytes: Callable[[int], None] = lambda nbytes: None,
) -> Iterator[Bad]:
    """Read the stretches of blob ``name``, in rising order, and give every tile that is not what it must be.

    A tile that cannot be read (a hole of the disk, a file that was cut) is bad like any other. ``on_bytes`` is called
    with the bytes that were looked at since the last call. Raises `TryAgain` of the store.
    """
    for group, whole, first in _groups(stretches, room.nbytes):
        for bad in _bad_in(store, name, group, room):
            yield bad if whole is None else Bad(whole, first + bad.tile, bad.why)
        on_bytes(sum(each.nbytes for each in group))


def _groups(stretches: Sequence[Stretch], room_nbytes: int) -> Iterator[tuple[list[Stretch], Stretch | None, int]]:
    """Small neighbours together; large stretches in spans of whole tiles, each with the whole and its first tile."""
    near: list[Stretch] = []
    nbytes = 0
    for each in stretches:
        small = each.nbytes <= _SMALL_BYTES
        if near and not (
            small
            and near[-1].start + near[-1].nbytes == each.start
            and nbytes + each.nbytes <= min(room_nbytes, SPAN_BYTES // 4)
        ):
            yield near, None, 0
            near, nbytes = [], 0
        if small:
            near.append(each)
            nbytes += each.nbytes
            continue
        step = max(room_nbytes // each.tile_bytes, 1)
        for tile in range(0, each.n_tiles, step):
            yield [_span(each, tile, min(tile + step, each.n_tiles))], each, tile
    if near:
        yield near, None, 0


def _span(stretch: Stretch, first: int, last: int) -> Stretch:
    if (first, last) == (0, stretch.n_tiles):
        return stretch
    lo, hi = first * stretch.tile_bytes, min(last * stretch.tile_bytes, stretch.nbytes)
    digests = stretch.digests[16 * first : 16 * last]
    return Stretch(stretch.what, stretch.start + lo, hi - lo, stretch.tile_bytes, digests, stretch.tensor, stretch.pad)


def _bad_in(store: Store, name: str, group: list[Stretch], room: memoryview) -> Iterator[Bad]:
    start, end = group[0].start, group[-1].start + group[-1].nbytes
    try:
        if len(group) == 1:
            (one,) = group
            found = read_digested(
                store, name, start=start, nbytes=one.nbytes, into=room, tile_bytes=max(one.tile_bytes, 1)
            )
            yield from _compared(one, found)
            return
        store.read(name, start=start, nbytes=end - start, into=room[: end - start])
    except (IntegrityError, StorageError) as error:
        if len(group) == 1 and group[0].n_tiles == 1:
            yield Bad(group[0], 0, f"cannot be read ({error})")
            return
        for each in group:  # which of them it is
            for tile in range(each.n_tiles):
                for bad in _bad_in(store, name, [each.tile(tile)], room):
                    yield Bad(each, tile, bad.why)
        return
    for each in group:
        lo = each.start - start
        inside = room[lo : lo + each.nbytes]
        if each.n_tiles == 1:
            if xxhash.xxh3_128_digest(inside) != each.digests:
                yield Bad(each, 0, "does not hash to its digest")
        else:
            yield from _compared(each, tile_digests(inside, each.tile_bytes))


def _compared(stretch: Stretch, found: bytes) -> Iterator[Bad]:
    if found == stretch.digests:
        return
    for tile in range(stretch.n_tiles):
        if found[16 * tile : 16 * tile + 16] != stretch.digests[16 * tile : 16 * tile + 16]:
            yield Bad(stretch, tile, "does not hash to its digest")
