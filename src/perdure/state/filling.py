"""Carry out the reads of a load: verify, copy, and take what is bad from the next copy.

Every method runs on any thread of the crew. A read goes into final memory or into a buffer; there its tiles are
compared with their digests, and what verified is copied to where it belongs. What did not is planned again by the
header of the next copy, whose tiles may be others, for the bytes that it is about alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from perdure.codec import decode_tile, tile_digests
from perdure.codec.digest import digest_bytes
from perdure.codec.stage import Bytes
from perdure.errors import BlobCorrupt, BlobMissing, IntegrityError, StorageError, fault_in
from perdure.shm import copy_many
from perdure.state.bases import Bases
from perdure.state.crew import Buffers
from perdure.state.framed import read_header
from perdure.state.geometry import stored_as
from perdure.state.given import Given
from perdure.state.reads import Framed, Limits, Read, TileRange, Wanted, plan_reads
from perdure.state.source import LoadReport, PackSource
from perdure.state.transfers import Transfer, put
from perdure.store.pack import PackIndex

__all__ = ["Filling", "Job", "Passed"]

Passed: TypeAlias = Callable[[str, int, Bytes], None]
"""Is told of verified bytes of a piece: its key, from which byte on, and the bytes (decoded)."""


@dataclass(frozen=True, slots=True)
class Job:
    """A read from copy number ``at`` of ``copies``, whose header is ``index``."""

    read: Read
    index: PackIndex
    copies: tuple[PackSource, ...]
    at: int

    @property
    def source(self) -> PackSource:
        return self.copies[self.at]


@dataclass(frozen=True, slots=True)
class Bad:
    """Bytes ``lo <= i < hi`` of a piece could not be had from a copy."""

    transfers: tuple[Transfer, ...]
    lo: int
    hi: int
    error: IntegrityError | StorageError


class Filling:
    """One load, as its threads see it."""

    def __init__(self, limits: Limits, buffers: Buffers, bases: Bases) -> None:
        self.report = LoadReport()
        self.on_bytes: Callable[[int], None] | None = None
        self.limits = limits
        self.buffers = buffers
        self._bases = bases
        self._lock = threading.Lock()

    def plan(self, transfers: Sequence[Transfer], copies: tuple[PackSource, ...], at: int) -> list[Job]:
        """The reads that make ``transfers``, all out of one pack, from copy ``at``, or a later one where it is bad."""
        if not copies:
            first = transfers[0]
            raise BlobMissing(
                f"no copy of {first.piece.pack}, which holds {first.name}, can be reached",
                tensor=first.name,
                file=first.piece.pack,
            )
        try:
            index = copies[at].index()
        except (IntegrityError, StorageError) as error:
            return self._elsewhere(error, transfers, copies, at)
        by_key: dict[str, list[Transfer]] = {}
        for transfer in transfers:
            by_key.setdefault(transfer.piece.key, []).append(transfer)
        jobs: list[Job] = []
        wanted: list[Wanted] = []
        for key, each in by_key.items():
            try:
                wanted.append(self._wanted(key, tuple(each), index, copies[at]))
            except (IntegrityError, StorageError) as error:
                jobs += self._elsewhere(error, each, copies, at)
        plan = plan_reads(wanted, tile_bytes=index.tile_bytes, limits=self.limits)
        return [*(Job(read, index, copies, at) for read in plan.reads), *jobs]

    def carry_out(self, job: Job, passed: Passed | None = None) -> None:
        """Make the read and fill what it is for; what is bad comes from the next copy.

        ``passed`` is told of all that verified in this very copy.
        """
        read = job.read
        try:
            done, verified, bad = self._direct(job, passed) if read.direct else self._staged(job, passed)
        except (IntegrityError, StorageError) as error:
            done, verified, bad = 0, 0, [Bad(tiles.transfers, tiles.lo, tiles.hi, error) for tiles in read.ranges]
        self._tell(job, done, verified)
        for each in bad:
            rest = [some for transfer in each.transfers for some in transfer.within(each.lo, each.hi)]
            for again in self._elsewhere(each.error, rest, job.copies, job.at):
                self.carry_out(again)

    def _elsewhere(
        self,
        error: IntegrityError | StorageError,
        transfers: Sequence[Transfer],
        copies: tuple[PackSource, ...],
        at: int,
    ) -> list[Job]:
        if at + 1 == len(copies):
            raise error
        with self._lock:
            self.report.notes.append(f"{error}; took the copy on {copies[at + 1].tier}")
        return self.plan(transfers, copies, at + 1)

    def _wanted(self, key: str, transfers: tuple[Transfer, ...], index: PackIndex, source: PackSource) -> Wanted:
        entry = index.entry(key)
        first = transfers[0]
        if first.piece.coded and not source.raw:
            shape = first.piece.box.shape
            info, starts, head_nbytes = read_header(source, entry, name=first.name, dtype=first.dtype, shape=shape)
            base = None if info.base is None else self._bases.of(key, first.dtype, shape, file=source.file)
            framed = Framed(info, starts, base)
            with self._lock:
                self.report.read_nbytes += head_nbytes
                if framed.info.error is not None:
                    error = max(framed.info.error.max_relative, self.report.lossy.get(first.name, 0.0))
                    self.report.lossy[first.name] = error
            return Wanted(entry, transfers, framed)
        if (entry.dtype, entry.shape) != stored_as(first.dtype, first.piece.box.shape):
            raise BlobCorrupt(
                f"{key} in {source.file} is {entry.dtype}{list(entry.shape)}, not those of its box; use another copy",
                tensor=first.name,
                file=source.file,
            )
        return Wanted(entry, transfers)

    def _tell(self, job: Job, done: int, verified: int) -> None:
        tiles_nbytes = sum(tiles.nbytes for tiles in job.read.ranges)
        report, tier = self.report, job.source.tier
        with self._lock:
            if isinstance(job.source, Given):
                report.shared_nbytes += done
            else:
                report.read_nbytes += tiles_nbytes
                report.pad_nbytes += job.read.nbytes - tiles_nbytes
            report.verified_tiles += verified
            report.wanted_nbytes += done
            if done:
                report.tier_nbytes[tier] = report.tier_nbytes.get(tier, 0) + done
                if self.on_bytes is not None:
                    self.on_bytes(done)

    def _direct(self, job: Job, passed: Passed | None) -> tuple[int, int, list[Bad]]:
        read, (tiles,) = job.read, job.read.ranges
        target = _place(tiles.transfers[0], tiles.lo, tiles.hi)
        assert target is not None
        digests = job.source.read_digested(read.start, read.nbytes, target, job.index.tile_bytes)
        good, bad = _compared(job, tiles, digests)
        data = np.frombuffer(target, np.uint8)
        done = 0
        for lo, hi in good:
            sound = data[lo - tiles.lo : hi - tiles.lo]
            done += hi - lo + sum(put(transfer, sound, lo) for transfer in tiles.transfers[1:])
            if passed is not None:
                passed(tiles.entry.key, lo, sound)
        return done, tiles.last - tiles.first - len(bad), bad

    def _staged(self, job: Job, passed: Passed | None) -> tuple[int, int, list[Bad]]:
        read, source = job.read, job.source
        framed = read.ranges[0].framed is not None
        if source.mapped:
            data = source.fetch(read.start, read.nbytes)
            if not framed:
                return _settled(job, data, None, passed)
            with self.buffers.take(read.staging_nbytes - read.nbytes) as room:
                return _decoded(job, data, room, passed)
        with self.buffers.take(read.staging_nbytes) as buffer:
            data, digests = buffer[: read.nbytes], None
            if framed or len(read.ranges) > 1:
                source.fetch(read.start, read.nbytes, data)
            else:
                digests = source.read_digested(read.start, read.nbytes, data, job.index.tile_bytes)
            if framed:
                return _decoded(job, data, buffer[read.nbytes :], passed)
            return _settled(job, data, digests, passed)


def _settled(job: Job, data: memoryview, digests: bytes | None, passed: Passed | None) -> tuple[int, int, list[Bad]]:
    """Verify the tiles that lie in ``data``, and copy them to where they belong."""
    read, index = job.read, job.index
    array = np.frombuffer(data, np.uint8)
    base = int(array.__array_interface__["data"][0])
    bad: list[Bad] = []
    from_, to, sizes = [], [], []
    done = verified = 0
    for tiles in read.ranges:
        at = tiles.start - read.start
        inside = data[at : at + tiles.nbytes]
        one = tiles.last - tiles.first == 1
        found = digests or (digest_bytes(inside) if one else tile_digests(inside, index.tile_bytes))
        good, wrong = _compared(job, tiles, found)
        bad += wrong
        verified += tiles.last - tiles.first - len(wrong)
        for lo, hi in good:
            here = at + lo - tiles.lo
            if passed is not None:
                passed(tiles.entry.key, lo, array[here : here + hi - lo])
            for transfer in tiles.transfers:
                strip = transfer.strip
                if strip is None:
                    done += put(transfer, array[here : here + hi - lo], lo)
                    continue
                first, last = max(strip.lo, lo), min(strip.hi, hi)
                if first < last:
                    from_.append(base + here + first - lo)
                    to.append(transfer.memory.address + strip.at + first - strip.lo)
                    sizes.append(last - first)
    copy_many(from_, to, sizes)
    return done + sum(sizes), verified, bad


def _decoded(job: Job, data: memoryview, room: memoryview, passed: Passed | None) -> tuple[int, int, list[Bad]]:
    """Decode the coded tiles that lie in ``data`` to where they belong, over ``room`` where that is in many places."""
    (tiles,) = job.read.ranges
    assert tiles.framed is not None
    info, starts = tiles.framed.info, tiles.framed.starts
    bad: list[Bad] = []
    done = verified = 0
    for tile in range(tiles.first, tiles.last):
        coded = data[starts[tile] - starts[tiles.first] : starts[tile + 1] - starts[tiles.first]]
        lo, hi = tile * info.tile_bytes, min((tile + 1) * info.tile_bytes, info.nbytes)
        final = _place(tiles.transfers[0], lo, hi)
        target = room[: hi - lo] if final is None else final
        try:
            below = tiles.framed.base(lo, hi) if tiles.framed.base is not None and len(coded) < hi - lo else None
            decode_tile(info, tile, coded, target, base=below)
        except IntegrityError as error:
            bad.append(
                Bad(tiles.transfers, lo, hi, _corrupt(job, tiles, tile, f"cannot be decoded: {fault_in(error)}"))
            )
            continue
        verified += 1
        array = np.frombuffer(target, np.uint8)
        if passed is not None:
            passed(tiles.entry.key, lo, array)
        done += 0 if final is None else hi - lo
        done += sum(put(transfer, array, lo) for transfer in tiles.transfers[0 if final is None else 1 :])
    return done, verified, bad


def _place(transfer: Transfer, lo: int, hi: int) -> memoryview | None:
    """The live memory of bytes ``lo <= i < hi`` of the piece, if it is in one place."""
    strip = transfer.strip
    if strip is None or not strip.lo <= lo <= hi <= strip.hi:
        return None
    at = strip.at + lo - strip.lo
    return transfer.memory.view()[at : at + hi - lo]


def _compared(job: Job, tiles: TileRange, digests: bytes) -> tuple[list[tuple[int, int]], list[Bad]]:
    """Which bytes of the piece have the ``digests`` of their tiles, as ``(lo, hi)``, and which tiles have not."""
    at = 16 * (tiles.entry.first_tile + tiles.first)
    want = job.index.digests[at : at + 16 * (tiles.last - tiles.first)]
    if digests == want:
        return [(tiles.lo, tiles.hi)], []
    good: list[tuple[int, int]] = []
    bad: list[Bad] = []
    for number, tile in enumerate(range(tiles.first, tiles.last)):
        lo, hi = tile * job.index.tile_bytes, min((tile + 1) * job.index.tile_bytes, tiles.hi)
        if digests[16 * number : 16 * number + 16] == want[16 * number : 16 * number + 16]:
            good.append((lo, hi))
        else:
            bad.append(Bad(tiles.transfers, lo, hi, _corrupt(job, tiles, tile, "does not hash to its digest")))
    return good, bad


def _corrupt(job: Job, tiles: TileRange, tile: int, why: str) -> BlobCorrupt:
    name, source = tiles.transfers[0].name, job.source
    return BlobCorrupt(
        f"{name} is corrupt in {source.file} ({source.tier}): tile {tile} {why}; use another copy or an older step",
        tensor=name,
        file=source.file,
        tile=tile,
        tier=source.tier,
    )
