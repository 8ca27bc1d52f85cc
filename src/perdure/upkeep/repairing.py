"""Repair a run with good copies from other stores that hold the same run: plan, then carry out.

Theory. A blob is stretches, each with its digest (`perdure.upkeep.blueprints`), so it need not be whole anywhere: a
pack that is damaged in two places in two mirrors is put together from the good tiles of both, and of what is damaged
itself. What a blob must hash to is told by what names it: commits name parts, parts name packs. So the plan works its
way down, with the good copy of each record, wherever that is. A record says what other blobs must be, so it is taken
only from a copy that is of the history of the run here (`perdure.upkeep.histories`), never from one that was trained on
apart; and what any record here says is whole is never replaced, whatever another one says.

The plan reads and compares everything; what verifies is in no plan. The one executor writes the mended blob beside the
damaged one, under ``repairs/``, hashes it in full, deletes the damaged one and puts the mended one in its place. A
crash at any moment leaves the damaged blob, or none and the mended one under ``repairs/``, which the next repair puts
in place. Blobs are never replaced but here, and only ones that could not be used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import xxhash

from perdure.errors import BlobCorrupt, CallError, IntegrityError, StorageError
from perdure.store import Commit, Epoch, Marker, PackRef, Part, PartRef, Pruned, Store, parse_header
from perdure.store.places import EPOCHS, MARKER, PRUNED, SLOTS, epoch_name, number_of, slot_name
from perdure.store.records import decode, encode, read_record
from perdure.upkeep.blueprints import Stretch, bad_tiles, leaves_of, room_for, tensors_of, top_of
from perdure.upkeep.histories import Parting, has_top, parting_of, parts_here
from perdure.upkeep.ledger import read_ledger
from perdure.upkeep.verifying import REPAIRS

__all__ = ["Fix", "Lost", "RepairPlan", "Take", "carry_out", "plan_repair"]

Record: TypeAlias = Marker | Epoch | Commit | Pruned
_ORDER = ("packs", "parts", "pruned", "slots", "epochs", MARKER)  # what is named comes before what names it


@dataclass(frozen=True, slots=True)
class Take:
    """Bytes out of store number ``source`` (0: the blob that is there now, 1: the first other), and their digests."""

    source: int
    stretch: Stretch


@dataclass(frozen=True, slots=True)
class Fix:
    """One blob to put in place, whole: its takes, in order. ``why`` says what is wrong with it now.

    ``present``: a damaged one is there, to be deleted. ``staged``: a repair that was cut has left the mended one.
    """

    name: str
    nbytes: int
    why: str
    takes: tuple[Take, ...]
    present: bool
    staged: bool = False

    @property
    def copied_bytes(self) -> dict[int, int]:
        """Bytes from other stores, by their number."""
        found: dict[int, int] = {}
        for take in self.takes:
            if take.source and not take.stretch.pad:
                found[take.source] = found.get(take.source, 0) + take.stretch.nbytes
        return found


@dataclass(frozen=True, slots=True)
class Lost:
    """A blob that cannot be mended, and why: a sentence."""

    name: str
    message: str


@dataclass(slots=True)
class RepairPlan:
    """What to do, decided before anything is touched."""

    fixes: list[Fix] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def plan_repair(store: Store, others: Sequence[Store], *, step: int | None = None) -> RepairPlan:
    """Plan the repair of the run in ``store`` from ``others``: of its records, and all commits that were not pruned.

    With ``step`` of that step alone, which may be one whose slot is gone here. Reads all that is to be good, writes
    nothing. Raises `CallError` if another store holds another run, `BlobMissing` if one holds none.
    """
    return _Planning(store, others).plan(step)


def carry_out(
    store: Store, others: Sequence[Store], plan: RepairPlan, *, on_fix: Callable[[Fix], None] = lambda fix: None
) -> None:
    """Put every fix of ``plan`` in place. After a failure plan again: what is in place is in no plan any more.

    Raises `BlobCorrupt` if a copy is no longer what the plan saw, or the store does not keep what it is given; the
    damaged blob is then still there.
    """
    stores = (store, *others)
    for fix in plan.fixes:
        on_fix(fix)
        staged = REPAIRS + fix.name
        if not fix.staged:
            store.delete(staged)  # of a repair that was cut; it was no good
            store.put(staged, _mended(stores, fix))
        stretches = [take.stretch for take in fix.takes]
        if any(bad_tiles(store, staged, stretches, room=room_for(stretches))) or store.size(staged) != fix.nbytes:
            store.delete(staged)
            raise BlobCorrupt(f"{staged} is not what was written to it a moment ago; look at the disk", file=staged)
        if fix.present:
            store.delete(fix.name)
        store.put(fix.name, (data for stretch in stretches for data in _tiles(store, staged, stretch)))
        store.delete(staged)


def _mended(stores: Sequence[Store], fix: Fix) -> Iterator[bytes]:
    for take in fix.takes:
        yield from _tiles(stores[take.source], fix.name, take.stretch)


def _tiles(store: Store, name: str, stretch: Stretch) -> Iterator[bytes]:
    """The bytes of a stretch, each tile verified before it is handed on."""
    if stretch.pad:
        yield bytes(stretch.nbytes)
        return
    for number in range(stretch.n_tiles):
        tile = stretch.tile(number)
        data = bytes(store.read(name, start=tile.start, nbytes=tile.nbytes))
        if xxhash.xxh3_128_digest(data) != tile.digests:
            raise BlobCorrupt(f"{name} in {store} has changed since the repair was planned; begin again", file=name)
        yield data


class _Planning:
    def __init__(self, store: Store, others: Sequence[Store]) -> None:
        self._stores = (store, *others)
        self._ledger = read_ledger(store)
        self._others = [read_ledger(other) for other in others]
        self._plan = RepairPlan()
        self._done: set[str] = set()
        self._known: dict[str, list[PartRef | PackRef]] | None = None
        mine = self._ledger.run
        if not mine:
            raise CallError(f"not one record in {store} can be read, so nobody knows which run it was: copy it anew")
        for other in self._others:
            if other.run != mine:
                raise CallError(
                    f"{other.store} holds the run {other.run[:8] or '?'}, not {mine[:8]}: "
                    "only copies of the same run can mend it"
                )
        self._partings = [parting_of(self._ledger, other) for other in self._others]
        for other, parting in zip(self._others, self._partings, strict=True):
            if parting is not None:
                self._plan.notes.append(
                    f"{other.store} was trained on apart from this run: from epoch {parting.epoch} on it is another "
                    f"training ({parting.file} is whole here and not what it says), of which nothing is taken"
                )

    def plan(self, step: int | None) -> RepairPlan:
        for unread in self._ledger.unread:
            self._record(unread.file, unread.message)
        for unread in self._ledger.done_without:
            self._record(unread.file, unread.message, needed=False)
        self._newer(step)
        commits = self._ledger.live() if step is None else [self._ledger.of(step)]
        for commit in commits:
            for ref in commit.parts:
                self._part(ref)
        self._plan.fixes.sort(key=lambda fix: (_ORDER.index(fix.name.split("/")[0]), fix.name))
        return self._plan

    # --- records -----------------------------------------------------------------------------------------------------

    def _record(self, name: str, why: str, *, needed: bool = True) -> None:
        """Find the record ``name`` in the copies that are of our history; all that have it must have the same."""
        found: dict[bytes, tuple[int, Record]] = {}
        foreign: Parting | None = None
        for number, other in enumerate(self._others, 1):
            try:
                record: Record = read_record(other.store, name, _kind_of(name))
            except (IntegrityError, StorageError):
                continue
            parting = self._partings[number - 1]
            if parting is not None and self._epoch_of(record) >= parting.epoch:
                foreign = parting
            elif record.run == self._ledger.run and self._fits(name, record):
                found.setdefault(encode(record), (number, record))
        if len(found) != 1:
            if not needed:
                return
            reason = "no copy has a good one" if not found else "the copies do not agree on it"
            if foreign is not None and not found:
                reason = (
                    f"the copy's is of another training ({foreign.file} is whole here and not what the copy says), and "
                    "is not taken"
                )
            self._plan.lost.append(Lost(name, f"{why}; {reason}"))
            return
        ((data, (number, record)),) = found.items()
        stretch = Stretch("its record", 0, len(data), len(data), xxhash.xxh3_128_digest(data))
        self._mend(name, len(data), [stretch], why)
        if isinstance(record, Commit):
            self._ledger.commits[record.slot] = record
            self._ledger.highest = max(self._ledger.highest, record.slot)

    def _fits(self, name: str, record: Record) -> bool:
        """Whether a copy of a record can be the one that was here."""
        number = number_of(name)
        if isinstance(record, Commit):
            known = self._ledger.commits
            below = max((c.epoch for c in known.values() if c.slot < record.slot), default=0)
            above = min((c.epoch for c in known.values() if c.slot > record.slot), default=record.epoch)
            return record.slot == number and below <= record.epoch <= above
        if isinstance(record, Epoch):
            return record.epoch == number
        return isinstance(record, Marker) or record.slot == number

    def _epoch_of(self, record: Record) -> int:
        """The epoch that a record belongs to; 0 for one that every training of the run has."""
        return record.epoch if isinstance(record, Epoch | Commit) else 0

    def _newer(self, step: int | None) -> None:
        """Commits above our newest that other stores have: taken if one is of the ``step`` that is asked for."""
        highest = self._ledger.highest
        there = {
            slot: commit
            for other, parting in zip(self._others, self._partings, strict=True)
            for slot, commit in other.commits.items()
            if slot > highest and (parting is None or commit.epoch < parting.epoch)
        }
        if not there:
            return
        have = any(commit.step == step for commit in self._ledger.branch())
        wanted = [slot for slot, commit in there.items() if commit.step == step]
        if step is None or have or not wanted:
            steps = ", ".join(str(there[slot].step) for slot in sorted(there)[:5])
            self._plan.notes.append(
                f"other stores have {len(there)} newer commits (steps {steps}) that are not here; "
                "--step N takes those up to step N"
            )
            return
        for slot in range(highest + 1, max(wanted) + 1):
            name = slot_name(slot)
            self._record(name, f"{name} is not there")
        for epoch in sorted({there[slot].epoch for slot in there if slot <= max(wanted)} - self._ledger.epochs.keys()):
            name = epoch_name(epoch)
            if _size(self._stores[0], name) is None:
                self._record(name, f"{name} is not there")

    # --- parts and packs ---------------------------------------------------------------------------------------------

    def _part(self, ref: PartRef) -> None:
        if ref.name in self._done:
            return
        self._done.add(ref.name)
        raw = self._top(ref)
        if raw is None:
            return
        part = decode(raw, Part, file=ref.name)
        self._mend(ref.name, ref.nbytes, [top_of(ref), *leaves_of(ref, part)], "it is not what was written")
        for pack in part.packs:
            self._pack(pack)

    def _pack(self, ref: PackRef) -> None:
        if ref.name in self._done:
            return
        self._done.add(ref.name)
        raw = self._top(ref)
        if raw is not None:
            index = parse_header(lambda start, nbytes: raw[start : start + nbytes], ref.nbytes, file=ref.name)
            self._mend(ref.name, ref.nbytes, [top_of(ref), *tensors_of(index)], "it is not what was written")

    def _top(self, ref: PartRef | PackRef) -> bytes | None:
        """The record or header, from whichever copy has a good one; None if the blob here is to stay as it is."""
        top = top_of(ref)
        if not has_top(self._stores[0], ref) and any(has_top(self._stores[0], each) for each in self._said_here(ref)):
            message = f"{ref.name} is whole as one record here says, and not as another one says: it stays as it is"
            self._plan.lost.append(Lost(ref.name, message))
            return None
        for name in (ref.name, REPAIRS + ref.name):
            for store in self._stores:
                try:
                    raw = bytes(store.read(name, nbytes=top.nbytes))
                except (IntegrityError, StorageError):
                    continue
                if xxhash.xxh3_128_digest(raw) == top.digests:
                    return raw
        self._plan.lost.append(Lost(ref.name, f"{top.what} of {ref.name} is good nowhere"))
        return None

    def _said_here(self, ref: PartRef | PackRef) -> list[PartRef | PackRef]:
        """What else records here say of the blob of ``ref``."""
        if self._known is None:
            self._known = {}
            refs: list[PartRef | PackRef] = [part for commit in self._ledger.commits.values() for part in commit.parts]
            refs += [pack for part in parts_here(self._ledger).values() for pack in part.packs]
            for each in refs:
                self._known.setdefault(each.name, []).append(each)
        return [each for each in self._known.get(ref.name, ()) if each != ref]

    def _mend(self, name: str, nbytes: int, stretches: Sequence[Stretch], why: str) -> None:
        """Plan the fix of a blob if it is not whole."""
        mine = self._stores[0]
        size = _size(mine, name)
        room = room_for(stretches)
        wanted = [(number, tile) for number, each in enumerate(stretches) for tile in range(each.n_tiles)]
        if size is None:
            why, bad = "it is not there", wanted
        else:
            bad = _bad(mine, name, stretches, room)
            if not bad and size == nbytes:
                return
            why = f"it has {size} bytes, not {nbytes}" if size != nbytes else _said(stretches, bad)
            why = "it is no plain file" if size < 0 else why
        staged = REPAIRS + name
        if _size(mine, staged) == nbytes and not _bad(mine, staged, stretches, room):
            takes = tuple(Take(0, each) for each in stretches)
            self._plan.fixes.append(Fix(name, nbytes, why, takes, size is not None, staged=True))
            return
        source = dict.fromkeys(wanted, 0)
        left = [each for each in bad if not stretches[each[0]].pad]
        for number, other in enumerate(self._stores[1:], 1):
            if not left or _size(other, name) is None:
                continue
            tiles = [stretches[at].tile(tile) for at, tile in left]
            worse = {at for at, _ in _bad(other, name, tiles, room)}
            source.update({left[at]: number for at in range(len(left)) if at not in worse})
            left = [each for at, each in enumerate(left) if at in worse]
        if left:
            self._plan.lost.append(Lost(name, f"{name}: {_said(stretches, left)}, and no copy has it good"))
            return
        self._plan.fixes.append(Fix(name, nbytes, why, tuple(_takes(stretches, source)), size is not None))


def _size(store: Store, name: str) -> int | None:
    """The bytes of a blob; -1 for what is no plain file, which is there and is to go."""
    try:
        return store.size(name)
    except BlobCorrupt:
        return -1


def _bad(store: Store, name: str, stretches: Sequence[Stretch], room: memoryview) -> list[tuple[int, int]]:
    """The bad tiles, as number of stretch and number in it."""
    number = {each.start: at for at, each in enumerate(stretches)}
    return [(number[bad.stretch.start], bad.tile) for bad in bad_tiles(store, name, stretches, room=room)]


def _takes(stretches: Sequence[Stretch], source: dict[tuple[int, int], int]) -> Iterator[Take]:
    for at, stretch in enumerate(stretches):
        of_tiles = [source[at, tile] for tile in range(stretch.n_tiles)]
        if len(set(of_tiles)) == 1:
            yield Take(of_tiles[0], stretch)
        else:
            for tile, number in enumerate(of_tiles):
                yield Take(number, stretch.tile(tile))


def _said(stretches: Sequence[Stretch], bad: Sequence[tuple[int, int]]) -> str:
    at, tile = bad[0]
    stretch = stretches[at]
    what = f"tile {tile} of {stretch.what}" if stretch.tensor is not None else stretch.what
    return f"{what} is damaged" + (f", and {len(bad) - 1} more" if len(bad) > 1 else "")


def _kind_of(name: str) -> type[Any]:
    kinds: dict[str, type[Any]] = {EPOCHS: Epoch, SLOTS: Commit, PRUNED: Pruned}
    return next((kind for folder, kind in kinds.items() if name.startswith(folder)), Marker)
