"""Load with the other ranks of the node: what several of them want is read by one, and handed to the others.

A rank plans its reads as if it were alone, tells the others which tiles they bring (`wants_of`), and learns from all
who reads what (`perdure.state.shares`). Its reads are then cut where that changes (`arrange`): what it reads for
others too goes into a bay of its relay as soon as it is verified and decoded; what another rank reads is one more
copy, before those that it knows of itself, compared with the same digests, and passed over for the next where it does
not come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import msgspec
import numpy as np

from perdure.codec.digest import digest_bytes
from perdure.codec.stage import Bytes
from perdure.errors import PerdureError
from perdure.state.disk_pack import DiskPack
from perdure.state.filling import Filling, Job
from perdure.state.given import Given
from perdure.state.reads import Limits, Read, TileRange, grouped, narrowed
from perdure.state.relay import Relay, Unit
from perdure.state.shares import WANT, Rows, SharedTiles, Shares
from perdure.store.pack import PackIndex

__all__ = ["arrange", "at_hand", "stored_nbytes", "wants_of"]

_LOOKS = 16
_Pair = tuple[TileRange, bool]


class _Share(NamedTuple):
    """Tiles of a unit as a rank would read them, whether where they go, and where in the unit they begin."""

    job: Job
    tiles: TileRange
    direct: bool
    begin: int


def stored_nbytes(jobs: Iterable[Job]) -> int:
    """The bytes, decoded, that ``jobs`` bring from elsewhere than this node's own memory."""
    return sum(tiles.hi - tiles.lo for job in jobs if not job.source.mapped for tiles in job.read.ranges)


def at_hand(jobs: Sequence[Job]) -> bool:
    """Whether most of what ``jobs`` read of stores lies in this machine's memory already: copying that is cheaper.

    A few places are looked at.
    """
    stored = [job for job in jobs if not job.source.mapped]
    looked = stored[:: max(len(stored) // _LOOKS, 1)]
    found = 0
    for job in looked:
        if isinstance(job.source, DiskPack):
            with suppress(PerdureError):  # whoever reads it is told
                found += job.source.resident([job.read.start + job.read.nbytes // 2])
    return found > 0.75 * len(looked)


def wants_of(jobs: Sequence[Job]) -> Rows:
    """The tiles that ``jobs`` read of what is not in this node's own memory, for `share_out`."""
    packs: dict[str, int] = {}
    rows = []
    for job in jobs:
        if job.source.mapped:
            continue
        pack = packs.setdefault(job.source.file, _name(job.source.file))
        for tiles in job.read.ranges:
            tile_bytes, nbytes = _tile_bytes(job, tiles), _nbytes(tiles)
            rows.append((pack, tiles.entry.start, _name(tiles.entry.key), tile_bytes, nbytes, tiles.first, tiles.last))
    return np.array(rows, WANT)


def arrange(jobs: Sequence[Job], shares: Shares, *, relay: Relay, filling: Filling) -> list[Callable[[], None]]:
    """The work of one rank that brings what ``jobs`` would bring, in the order in which threads must begin it."""
    shared: dict[tuple[int, int], list[SharedTiles]] = {}
    for each in shares.tiles:
        shared.setdefault((each.key, each.tile_bytes), []).append(each)
    here: dict[int, list[_Share]] = {}
    rest: list[Job] = []
    for job in jobs:
        alone: list[_Pair] = []
        cut = False
        for tiles in () if job.source.mapped else job.read.ranges:
            tile_bytes = _tile_bytes(job, tiles)
            within = partial(narrowed, tiles, tile_bytes=tile_bytes, small_bytes=filling.limits.small_bytes)
            at = tiles.first
            for each in shared.get((_name(tiles.entry.key), tile_bytes), ()):
                first, last = max(each.first, tiles.first), min(each.last, tiles.last)
                if first < last:
                    cut = True
                    alone += [within(at, first)] if at < first else []
                    begin = each.at + (first - each.first) * tile_bytes
                    here.setdefault(each.unit, []).append(_Share(job, *within(first, last), begin))
                    at = last
            alone += [within(at, tiles.last)] if at < tiles.last else []
        rest += _jobs(job, alone, filling.limits) if cut else [job]
    together: list[Callable[[], None]] = []
    for number, unit in enumerate(shares.units):
        parts = here.get(number)
        if parts is None:
            continue
        if unit.reader == relay.rank:
            together.append(partial(_Giving(relay, number, unit, parts).carry_out, filling))
        else:
            together.append(partial(_take, relay, number, unit, parts, filling))
    return list(_mixed(together, [partial(filling.carry_out, job) for job in rest]))


@dataclass(slots=True)
class _Giving:
    """A unit that this rank reads."""

    relay: Relay
    number: int
    unit: Unit
    parts: Sequence[_Share]

    def carry_out(self, filling: Filling) -> None:
        room = self.relay.room(self.number)
        done = 0
        places: dict[str, list[tuple[int, int, int]]] = {}
        for _, tiles, _, begin in self.parts:
            places.setdefault(tiles.entry.key, []).append((tiles.lo, tiles.hi, begin))
        target = None if room is None else np.frombuffer(room, np.uint8)

        def passed(key: str, lo: int, data: Bytes) -> None:
            nonlocal done
            assert target is not None
            for low, high, begin in places[key]:
                first, last = max(lo, low), min(lo + data.size, high)
                if first < last:
                    target[begin + first - low : begin + last - low] = data[first - lo : last - lo]
                    done += last - first

        try:
            for job in _in_reads(self.parts, filling.limits):
                filling.carry_out(job, None if target is None else passed)
        except BaseException:
            self.relay.skipped(self.number)
            raise
        if done == sum(tiles.hi - tiles.lo for _, tiles, _, _ in self.parts):
            self.relay.filled(self.number)
        else:
            self.relay.skipped(self.number)


def _take(relay: Relay, number: int, unit: Unit, parts: Sequence[_Share], filling: Filling) -> None:
    """Fill from what another rank reads, or from where this rank would have read, if that does not come."""
    raw: dict[int, tuple[Job, list[_Pair]]] = {}
    jobs: list[Job] = []
    for job, tiles, direct, begin in parts:
        there = msgspec.structs.replace(tiles, start=begin, nbytes=tiles.hi - tiles.lo, framed=None)
        if tiles.framed is None:
            raw.setdefault(id(job), (job, []))[1].append((there, direct))
            continue
        there = msgspec.structs.replace(there, entry=msgspec.structs.replace(tiles.entry, first_tile=0))
        jobs += _given(relay, number, unit, job, _decoded_index(job, tiles), grouped([(there, direct)], filling.limits))
    for job, pairs in raw.values():
        jobs += _given(relay, number, unit, job, job.index, grouped(pairs, filling.limits))
    try:
        for each in jobs:
            filling.carry_out(each)
    finally:
        relay.taken(number)


def _given(relay: Relay, number: int, unit: Unit, job: Job, index: PackIndex, reads: Iterable[Read]) -> Iterator[Job]:
    """``reads`` of what another rank hands over, before the copies from which ``job`` would read."""
    given = Given(relay, number, reader=unit.reader, tier=job.source.tier)
    return (Job(read, index, (given, *job.copies[job.at :]), 0) for read in reads)


def _decoded_index(job: Job, tiles: TileRange) -> PackIndex:
    """The digests of the decoded tiles of a frame, as the header of a pack that had it raw would give them."""
    assert tiles.framed is not None
    info = tiles.framed.info
    return PackIndex((), info.tile_bytes, 0, info.nbytes, "", info.tile_digests, job.index.file, MappingProxyType({}))


def _in_reads(parts: Sequence[_Share], limits: Limits) -> Iterator[Job]:
    by_job: dict[int, tuple[Job, list[_Pair]]] = {}
    for job, tiles, direct, _ in parts:
        by_job.setdefault(id(job), (job, []))[1].append((tiles, direct))
    for job, pairs in by_job.values():
        yield from _jobs(job, pairs, limits)


def _jobs(job: Job, pairs: Iterable[_Pair], limits: Limits) -> list[Job]:
    return [Job(read, job.index, job.copies, job.at) for read in grouped(pairs, limits)]


def _mixed(together: Sequence[Callable[[], None]], alone: Sequence[Callable[[], None]]) -> Iterator[Callable[[], None]]:
    """Both, each in its order, evenly among one another: who waits for others has something to do meanwhile."""
    done = 0
    for number, each in enumerate(together, 1):
        yield each
        upto = len(alone) * number // len(together)
        yield from alone[done:upto]
        done = upto
    yield from alone[done:]


def _tile_bytes(job: Job, tiles: TileRange) -> int:
    return job.index.tile_bytes if tiles.framed is None else tiles.framed.info.tile_bytes


def _nbytes(tiles: TileRange) -> int:
    return tiles.entry.nbytes if tiles.framed is None else tiles.framed.info.nbytes


def _name(text: str) -> int:
    return int.from_bytes(digest_bytes(text.encode())[:8], "little")
