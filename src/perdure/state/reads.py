"""Plan the reads of one pack: whole tiles, each once, neighbours together, as much as possible into final memory.

Pure: transfers and what the pack's header says in, `Read`s out; `perdure.state.load` carries them out.

A digest is of a whole tile, so the bytes that boxes want are widened to tiles. A tile whose bytes all go to one strip
of live memory is read right there (a *direct* read, with the neighbours that go there too); if others want some of its
bytes as well, they are copied from there. Every other tile goes through a staging buffer. So do small tensors, even
whole ones: many of them come in one read, with the pads between them, where each alone would cost a call. Coded tiles
are staged and decoded. What a plan reads and what was wanted are two sums, so that the difference is a number that
tests look at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from perdure.codec import FrameInfo
from perdure.codec.stage import Bytes
from perdure.state.transfers import Transfer, spans
from perdure.store.pack import ALIGN_BYTES, PackEntry

__all__ = ["Framed", "Limits", "Read", "ReadPlan", "TileRange", "Wanted", "grouped", "narrowed", "plan_reads"]


@dataclass(frozen=True, slots=True)
class Limits:
    """How large reads are, in bytes; a tile that is larger is still read whole.

    ``direct_bytes`` of a read into final memory, ``staged_bytes`` of one into a buffer (coded and decoded bytes
    together); fewer than ``small_bytes`` go through a buffer even if they could go into final memory.
    """

    direct_bytes: int
    staged_bytes: int
    small_bytes: int


@dataclass(frozen=True, slots=True)
class Framed:
    """The header of a frame, and where each coded tile begins, counted from the first; the last is the end.

    ``base`` computes bytes ``lo <= i < hi`` of the base, if there is one.
    """

    info: FrameInfo
    starts: tuple[int, ...]
    base: Callable[[int, int], Bytes] | None = None


class Wanted(msgspec.Struct, frozen=True, gc=False):
    """An entry of the pack and all transfers out of it; ``framed`` if it is a frame."""

    entry: PackEntry
    transfers: tuple[Transfer, ...]
    framed: Framed | None = None


class TileRange(msgspec.Struct, frozen=True, gc=False):
    """Tiles ``first <= i < last`` of an entry, counted in the entry, and the transfers that want bytes of them.

    They are the bytes ``lo <= i < hi`` of the piece, and ``nbytes`` bytes from ``start`` on in the file.
    """

    entry: PackEntry
    first: int
    last: int
    lo: int
    hi: int
    start: int
    nbytes: int
    transfers: tuple[Transfer, ...]
    framed: Framed | None = None


class Read(msgspec.Struct, frozen=True, gc=False):
    """``nbytes`` bytes from ``start`` on, in one go. They hold ``ranges``, in order, and at most pads between them.

    A direct read has one range, and goes to where the strip of its first transfer lies; the others need
    ``staging_nbytes`` of buffer, unless the source is mapped and nothing is decoded.
    """

    start: int
    nbytes: int
    ranges: tuple[TileRange, ...]
    direct: bool
    staging_nbytes: int


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """All reads out of one pack, in the order of the file."""

    reads: tuple[Read, ...]
    wanted_nbytes: int

    @property
    def read_nbytes(self) -> int:
        """Bytes of tiles that are read."""
        return sum(tiles.nbytes for read in self.reads for tiles in read.ranges)

    @property
    def pad_nbytes(self) -> int:
        """Bytes that are read because they lie between small tensors."""
        return sum(read.nbytes for read in self.reads) - self.read_nbytes


def plan_reads(wanted: Sequence[Wanted], *, tile_bytes: int, limits: Limits) -> ReadPlan:
    """Plan the reads that bring all that is ``wanted`` out of a pack with tiles of ``tile_bytes``.

    Every tile that holds a wanted byte is in exactly one range of one read; no other tile is read.
    """
    every = sorted(wanted, key=lambda each: each.entry.start)
    reads = grouped((pair for each in every for pair in _ranges(each, tile_bytes, limits)), limits)
    return ReadPlan(tuple(reads), sum(transfer.nbytes for each in wanted for transfer in each.transfers))


def grouped(ranges: Iterable[tuple[TileRange, bool]], limits: Limits) -> list[Read]:
    """Reads of ``ranges``, which rise in the file, each with whether all of it goes to the strip of its first transfer.

    Neighbours that go through a buffer are read together.
    """
    reads: list[Read] = []
    near: list[TileRange] = []  # what the staged read in the making holds

    def flush() -> None:
        if near:
            start, end = near[0].start, near[-1].start + near[-1].nbytes
            reads.append(Read(start, end - start, tuple(near), False, end - start))
            near.clear()

    for tiles, direct in ranges:
        if tiles.framed is not None:
            decoded = 0 if direct else min(tiles.framed.info.tile_bytes, tiles.hi - tiles.lo)
            reads.append(Read(tiles.start, tiles.nbytes, (tiles,), False, tiles.nbytes + decoded))
        elif direct:
            reads.append(Read(tiles.start, tiles.nbytes, (tiles,), True, 0))
        else:
            if near and not (
                0 <= tiles.start - near[-1].start - near[-1].nbytes < ALIGN_BYTES
                and tiles.start + tiles.nbytes - near[0].start <= limits.staged_bytes
            ):
                flush()
            near.append(tiles)
    flush()
    reads.sort(key=lambda read: read.start)
    return reads


def narrowed(tiles: TileRange, first: int, last: int, *, tile_bytes: int, small_bytes: int) -> tuple[TileRange, bool]:
    """Tiles ``first <= i < last`` of ``tiles``, which have ``tile_bytes``, and whether they are read where they go."""
    entry, framed = tiles.entry, tiles.framed
    whole = entry.nbytes if framed is None else framed.info.nbytes
    lo, hi = first * tile_bytes, min(last * tile_bytes, whole)
    start, end = entry.start + lo, entry.start + hi
    if framed is not None:
        begin = entry.start + framed.info.header_nbytes
        start, end = begin + framed.starts[first], begin + framed.starts[last]
    found = msgspec.structs.replace(tiles, first=first, last=last, lo=lo, hi=hi, start=start, nbytes=end - start)
    strip = tiles.transfers[0].strip
    fills = strip is not None and strip.lo <= lo and strip.hi >= hi
    return found, fills and (framed is not None or hi - lo >= small_bytes)


def _ranges(wanted: Wanted, tile_bytes: int, limits: Limits) -> Iterator[tuple[TileRange, bool]]:
    """Ranges of tiles of an entry, and whether all bytes of a range go to the strip of its first transfer."""
    entry, framed = wanted.entry, wanted.framed
    nbytes = entry.nbytes
    if framed is not None:
        tile_bytes, nbytes = framed.info.tile_bytes, framed.info.nbytes
    for first, last, transfers, direct in _stretches(wanted.transfers, nbytes, tile_bytes):
        lo, hi = first * tile_bytes, min(last * tile_bytes, nbytes)
        if framed is not None:
            yield from _coded(entry, framed, first, last, transfers, direct, limits)
            continue
        direct = direct and hi - lo >= limits.small_bytes
        most = limits.direct_bytes if direct else limits.staged_bytes
        if hi - lo <= most:
            yield TileRange(entry, first, last, lo, hi, entry.start + lo, hi - lo, transfers), direct
            continue
        step = max(most // tile_bytes, 1)
        for tile in range(first, last, step):
            lo, hi = tile * tile_bytes, min((tile + step) * tile_bytes, last * tile_bytes, nbytes)
            end = min(tile + step, last)
            yield TileRange(entry, tile, end, lo, hi, entry.start + lo, hi - lo, transfers), direct


def _coded(
    entry: PackEntry,
    framed: Framed,
    first: int,
    last: int,
    transfers: tuple[Transfer, ...],
    direct: bool,
    limits: Limits,
) -> Iterator[tuple[TileRange, bool]]:
    info, starts = framed.info, framed.starts
    room = max(limits.staged_bytes - (0 if direct else info.tile_bytes), 0)
    while first < last:
        end = first + 1
        while end < last and starts[end + 1] - starts[first] <= room:
            end += 1
        lo, hi = first * info.tile_bytes, min(end * info.tile_bytes, info.nbytes)
        start = entry.start + info.header_nbytes + starts[first]
        yield TileRange(entry, first, end, lo, hi, start, starts[end] - starts[first], transfers, framed), direct
        first = end


def _stretches(
    transfers: tuple[Transfer, ...], nbytes: int, tile_bytes: int
) -> Iterator[tuple[int, int, tuple[Transfer, ...], bool]]:
    """Tiles ``first`` to ``last`` that the same transfers want, in order, the direct one of them first if there is one.

    Tiles that nobody wants are in no stretch.
    """
    n_tiles = -(-nbytes // tile_bytes)
    if (
        len(transfers) == 1
        and transfers[0].strip is not None
        and transfers[0].strip.hi - transfers[0].strip.lo == nbytes
    ):
        yield 0, n_tiles, transfers, True
        return
    begins: dict[int, list[int]] = {}
    ends: dict[int, list[int]] = {}
    edges: set[int] = set()
    for number, transfer in enumerate(transfers):
        strip = transfer.strip
        if strip is not None:  # between its first and its last tile it may fill whole ones
            touched = [(strip.lo, strip.hi)]
            whole = (-(-strip.lo // tile_bytes), n_tiles if strip.hi == nbytes else strip.hi // tile_bytes)
            edges.update(whole if whole[0] < whole[1] else ())
        else:
            touched = spans(transfer.box, transfer.piece.box, transfer.width, bridge_bytes=tile_bytes)
        for lo, hi in touched:
            begins.setdefault(lo // tile_bytes, []).append(number)
            ends.setdefault(-(-hi // tile_bytes), []).append(number)
    active: dict[int, None] = {}
    before = 0
    for edge in sorted(edges.union(begins, ends)):
        if active:
            lo, hi = before * tile_bytes, min(edge * tile_bytes, nbytes)
            order = [transfers[number] for number in active]
            filling = [each for each in order if each.strip is not None and each.strip.lo <= lo and each.strip.hi >= hi]
            if filling:
                order.remove(filling[0])
                order.insert(0, filling[0])
            yield before, edge, tuple(order), bool(filling)
        for number in ends.get(edge, ()):
            del active[number]
        for number in begins.get(edge, ()):
            active[number] = None
        before = edge
