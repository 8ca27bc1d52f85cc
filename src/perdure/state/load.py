"""Fill live memory from saved packs: plan, read in parallel, verify every tile on the way.

Three steps. `transfers_of` says what comes from where, once and for all. For each pack `plan_reads` turns that into
reads, by the header of the nearest copy. A crew of threads carries the reads out. What does not verify, or cannot be
read, is planned again by the header of the next copy, for the tiles that it is about alone, and the reader is told.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from perdure.state.bases import Bases
from perdure.state.crew import Buffers, work_off
from perdure.state.filling import Filling, Job
from perdure.state.index import Catalog, StoredPiece
from perdure.state.match import Match, match
from perdure.state.reads import Limits
from perdure.state.source import LoadReport, PackSource
from perdure.state.transfers import Transfer, transfers_of

__all__ = ["LoadReport", "Match", "PackSource", "Prepared", "carry_out", "load", "match", "prepare"]

_MOST_THREADS = 8
_DIRECT_BYTES = 64 << 20
_STAGED_BYTES = 4 << 20
_SMALL_BYTES = 256 << 10


def load(
    catalog: Catalog,
    matches: Sequence[Match],
    sources: Callable[[str], Sequence[PackSource]],
    *,
    budget_bytes: int = 256 << 20,
    threads: int | None = None,
    on_bytes: Callable[[int], None] | None = None,
    nearer: Callable[[StoredPiece], tuple[PackSource, ...]] = lambda piece: (),
) -> LoadReport:
    """Fill every matched item. ``sources`` gives the copies of a pack, the nearest first.

    ``nearer`` gives sources that hold a piece, but not its whole pack, and come before those, the nearest first.

    ``budget_bytes`` bounds the staging memory, but a tile is always read whole. ``threads`` is as many as the process
    has cores, up to 8, by default. ``on_bytes`` is called, in any thread but never in two at a time, with the number of
    bytes that have come since the last call.

    After an error, and after Ctrl-C, no thread is left and live memory may be half written: the caller loads another
    step or gives up.

    Raises:
        IntegrityError, StorageError: that of the last copy, when a tile is bad in all of them.
        NotCovered: a part of what is wanted was not saved.
    """
    prepared = prepare(catalog, matches, sources, budget_bytes=budget_bytes, threads=threads, nearer=nearer)
    return carry_out(prepared, on_bytes=on_bytes)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A load of which nothing is read yet but the headers of packs. ``wanted_nbytes`` are in no memory of this node."""

    filling: Filling
    jobs: list[Job]
    threads: int
    budget_bytes: int
    wanted_nbytes: int


def prepare(
    catalog: Catalog,
    matches: Sequence[Match],
    sources: Callable[[str], Sequence[PackSource]],
    *,
    budget_bytes: int = 256 << 20,
    threads: int | None = None,
    nearer: Callable[[StoredPiece], tuple[PackSource, ...]] = lambda piece: (),
    opened: Callable[[int], None] = lambda pack: None,
) -> Prepared:
    """The first half of `load`: what is read from where. ``opened`` is called, in any thread, for every pack."""
    crew = threads if threads is not None else min(_MOST_THREADS, len(os.sched_getaffinity(0)))
    limits = Limits(_DIRECT_BYTES, min(_STAGED_BYTES, budget_bytes // max(crew, 1)), _SMALL_BYTES)
    by_pack: dict[tuple[str, tuple[PackSource, ...]], list[Transfer]] = {}
    for transfer in transfers_of(catalog, matches):
        by_pack.setdefault((transfer.piece.pack, nearer(transfer.piece)), []).append(transfer)
    filling = Filling(limits, Buffers(budget_bytes), Bases(catalog.base_of, sources))
    jobs: list[list[Job]] = [[] for _ in by_pack]
    wanted = 0

    def open_pack(number: int, transfers: list[Transfer], copies: tuple[PackSource, ...]) -> None:
        jobs[number] = filling.plan(transfers, copies, 0)
        opened(number)

    opening = []
    for number, ((pack, first), transfers) in enumerate(by_pack.items()):
        copies = (*first, *sources(pack))
        opening.append(partial(open_pack, number, transfers, copies))
        if copies and not copies[0].mapped:
            wanted += sum(transfer.nbytes for transfer in transfers)
    work_off(opening, threads=min(crew, len(opening)))
    return Prepared(filling, [job for each in jobs for job in each], crew, budget_bytes, wanted)


def carry_out(
    prepared: Prepared,
    *,
    on_bytes: Callable[[int], None] | None = None,
    work: Sequence[Callable[[], None]] | None = None,
) -> LoadReport:
    """The second half of `load`: read, verify, fill. ``work`` does what the jobs would do, in another way."""
    filling = prepared.filling
    filling.on_bytes = on_bytes
    reading = [partial(filling.carry_out, job) for job in prepared.jobs] if work is None else work
    work_off(reading, threads=min(prepared.threads, len(reading)))
    report = filling.report
    report.notes = [*dict.fromkeys(report.notes), *_told(report.lossy)]
    return report


def _told(lossy: Mapping[str, float]) -> list[str]:
    """One sentence for all lossy tensors, which names the worst, or none."""
    if not lossy:
        return []
    worst = max(lossy, key=lossy.__getitem__)
    others = f" and {len(lossy) - 1} other tensors are" if len(lossy) > 2 else " and another tensor are"
    return [f"{worst}{others if len(lossy) > 1 else ' is'} lossy: relative error up to {lossy[worst]:.2g}"]
