"""Which tensors of a save are stored already, so that they are referred to and not written again.

Theory. A writer remembers under which key, with which digests and in which pack lies what it last committed. What has
the same dtype, bytes and digests now is *unchanged*. Referring to it keeps its whole pack alive for as long as a commit
names it, so it is worth that only if much of the pack is still wanted: at least half. Else the unchanged tensors are
written once more, in a pack of their own, which from then on is wanted whole. So a frozen base model is written at
most twice, and a small buffer that never changes keeps no large pack alive.

After a restart the writer recalls from the store what the step that it went on from holds: headers, no data.

A reference is to the pack that holds the bytes, never to another reference: no chains.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from perdure.errors import IntegrityError, StorageError
from perdure.state.index import StoredPiece
from perdure.state.part_reader import PartReader
from perdure.store import PackEntry, PackIndex, PackRef, Run
from perdure.store.pack import ALIGN_BYTES

__all__ = ["Division", "Entry", "Lies", "Stored", "StoredTensor", "divide", "recall", "remember"]

APART_BYTES = 1 << 20  # unchanged tensors that are less in all are no pack of their own


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor of a sealed pack in memory."""

    index: PackIndex
    view: memoryview
    entry: PackEntry

    @property
    def digests(self) -> bytes:
        """Those of its tiles."""
        first, last = self.entry.first_tile, self.entry.first_tile + self.entry.n_tiles
        return self.index.digests[16 * first : 16 * last]

    @property
    def data(self) -> memoryview:
        """Its bytes."""
        return self.view[self.entry.start : self.entry.start + self.entry.nbytes]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies that was committed, and what it is."""

    pack: PackRef
    dtype: str
    shape: tuple[int, ...]
    digests: bytes
    nbytes: int
    """that it takes up in its pack"""
    coded: bool = False
    """whether it lies there as a frame"""


@dataclass(frozen=True, slots=True)
class Lies:
    """Where a tensor of a save lies: its pack, how many bytes it takes up there, and whether as a frame, on a base."""

    pack: PackRef
    nbytes: int
    coded: bool = False
    based: bool = False


@dataclass(frozen=True, slots=True)
class Stored:
    """What a writer last committed of a run: the slot of the commit, and each of its tensors by key."""

    run: str
    slot: int
    tensors: dict[str, StoredTensor] = field(repr=False)
    packs: frozenset[str] = field(default=frozenset(), repr=False)
    """all that its part names: as long as the commit stands, they do"""


@dataclass(frozen=True, slots=True)
class Division:
    """What becomes of each tensor of a save: written, written in a pack of its own, or referred to by key."""

    fresh: tuple[Entry, ...]
    apart: tuple[Entry, ...]
    referred: dict[str, StoredTensor]


def divide(entries: Sequence[Entry], stored: Stored | None, *, kept: Collection[str] = ()) -> Division:
    """Divide the tensors of a save by what was ``stored`` before it. Packs that are ``kept`` for the base of a delta
    cost nothing to refer to.
    """
    if stored is None:
        return Division(tuple(entries), (), {})
    same = [each for each in entries if _is_stored(each, stored)]
    wanted: dict[str, int] = {}
    for each in same:
        known = stored.tensors[each.entry.key]
        wanted[known.pack.name] = wanted.get(known.pack.name, 0) + _with_pad(known.nbytes)
    referred: dict[str, StoredTensor] = {}
    still: list[Entry] = []
    for each in same:
        known = stored.tensors[each.entry.key]
        half = 2 * wanted[known.pack.name] >= known.pack.nbytes - known.pack.header_nbytes
        if half or known.pack.name in kept:
            referred[each.entry.key] = known
        else:
            still.append(each)
    apart = tuple(still) if sum(each.entry.nbytes for each in still) >= APART_BYTES else ()
    held = referred.keys() | {each.entry.key for each in apart}
    return Division(tuple(each for each in entries if each.entry.key not in held), apart, referred)


def remember(
    run: str, slot: int, entries: Iterable[Entry], lies_in: Mapping[str, Lies], packs: Iterable[str]
) -> Stored:
    """What was committed in ``slot``, by where each key lies; ``packs`` are all that its part names.

    What has a base is written anew each time.
    """
    tensors: dict[str, StoredTensor] = {}
    for each in entries:
        at = lies_in[each.entry.key]
        if not at.based:
            tensors[each.entry.key] = StoredTensor(
                at.pack, each.entry.dtype, each.entry.shape, each.digests, at.nbytes, at.coded
            )
    return Stored(run, slot, tensors, frozenset(packs))


def recall(run: Run, slot: int | None) -> Stored | None:
    """What the commit in ``slot`` holds, from the store; None if it cannot be read, or is no step any more."""
    if slot is None:
        return None
    tensors: dict[str, StoredTensor] = {}
    named: set[str] = set()
    try:
        if run.is_pruned(slot):
            return None
        for ref in run.read_slot(slot).parts:
            part = run.read_part(ref)
            reader = PartReader.of(run, ref, part)
            packs = {pack.name: pack for pack in part.packs}
            named |= packs.keys()
            headers = {name: run.open_pack(pack) for name, pack in packs.items()}
            for tensor in (*reader.tensors(), *reader.locals()):
                for piece in tensor.pieces:
                    if not piece.coded:
                        tensors[piece.key] = _recalled(piece, packs[piece.pack], headers[piece.pack])
    except (IntegrityError, StorageError):
        return None  # then everything is written anew, and whoever restores hears of the damage
    return Stored(run.marker.run, slot, tensors, frozenset(named))


def _recalled(piece: StoredPiece, pack: PackRef, header: PackIndex) -> StoredTensor:
    entry = header.entry(piece.key)
    digests = header.digests[16 * entry.first_tile : 16 * (entry.first_tile + entry.n_tiles)]
    return StoredTensor(pack, entry.dtype, entry.shape, digests, entry.nbytes)


def _with_pad(nbytes: int) -> int:
    """What a tensor takes up in its pack."""
    return -(-nbytes // ALIGN_BYTES) * ALIGN_BYTES


def _is_stored(each: Entry, stored: Stored) -> bool:
    """Whether the very tensor is stored. One without bytes is written: it costs nothing and keeps nothing alive."""
    known = stored.tensors.get(each.entry.key)
    return (
        known is not None
        and each.entry.nbytes > 0
        and (known.dtype, known.shape, known.digests) == (each.entry.dtype, each.entry.shape, each.digests)
    )
