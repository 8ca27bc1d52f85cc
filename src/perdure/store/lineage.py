"""A run in a store: who may commit, what was committed, and which commit training is on.

Theory. Committing is creating slot *highest + 1* if it is absent; everything else about a save was made durable before,
under names of its own. Three rules make that safe without locks or clocks:

* A writer holds an *epoch*, claimed once at start. It looks for newer epochs before it commits, and never commits
  above a slot of a newer epoch. Hence **epochs never fall as slots rise**: slot N+1 is created by a writer that read
  slot N (never rewritten) and found no newer epoch in it. A late writer of an older epoch (a zombie) can at most fill
  the slot that the new one is about to take, before the new one's first commit.
* That hurts nobody, because a commit names its *parent*: the slot its training went on from. What the zombie committed
  is a dead branch, like the steps after a rollback. "Newest" is the highest slot and its parents, never the highest
  step nor the youngest file.
* A response that is lost is asked for again: `create` on the same name with the same bytes. If the slot holds exactly
  our bytes (each commit carries a random token), the commit is ours.

What a person should know but need not act on (a damaged slot that was passed over) goes to ``tell``; by default it is a
Python warning.
"""

from __future__ import annotations

import itertools
import secrets
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.clock import SYSTEM, Clock
from perdure.errors import BlobCorrupt, BlobMissing, CallError, FormatRefused, Superseded, TryAgain
from perdure.store.api import Store, as_bytes
from perdure.store.counted import Counted
from perdure.store.pack import HEADER_LIMIT_BYTES, PackIndex, parse_header
from perdure.store.places import (
    EPOCHS,
    MARKER,
    PRUNED,
    SLOTS,
    epoch_name,
    number_of,
    pack_name,
    part_name,
    pruned_name,
    slot_name,
)
from perdure.store.records import (
    PART_LIMIT_BYTES,
    Commit,
    Epoch,
    LeafRef,
    Marker,
    PackRef,
    Part,
    PartRef,
    Pruned,
    decode,
    digest_of,
    encode,
    read_record,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Note", "Run"]

_TRIES = 3  # of a write whose response is lost, one after the other; waiting is for a store that retries
_SAVED = ("epoch", "claim", "parent", "step", "session", "seq", "parts", "meta", "metric", "pinned")
_LATE = 8  # slots below one that is listed that may be there though they are not
_LAST = 9_999_999_999  # slot or epoch
_RACES = 1000  # slots lost to older writers before we give up: far more than there can be


@dataclass(frozen=True, slots=True)
class Note:
    """Something that a person should know: ``message`` is a sentence, ``file`` what it is about."""

    message: str
    file: str


def warn(note: Note) -> None:
    """Tell a `Note` as a Python warning."""
    warnings.warn(note.message, RuntimeWarning, stacklevel=3)


@dataclass(frozen=True, slots=True)
class Run:
    """The run in ``store``. Holds no state of its own: every method asks the store; safe in any thread and process."""

    store: Store
    marker: Marker
    tell: Callable[[Note], None] = warn
    clock: Clock = SYSTEM

    @classmethod
    def open(
        cls,
        store: Store,
        *,
        create: bool,
        created_by: str = "perdure",
        tell: Callable[[Note], None] = warn,
        clock: Clock = SYSTEM,
    ) -> Run:
        """Open the run in ``store``; with ``create`` begin one if there is none.

        Raises `BlobMissing` if there is none (or one without its marker: a copy that is not whole), `FormatRefused` if
        a later release wrote it.
        """
        if store.size(MARKER) is None:
            if not create:
                raise BlobMissing(f"there is no run in {store}: {MARKER} is not there; check the place", file=MARKER)
            if store.names(SLOTS) or store.names(EPOCHS):
                raise BlobMissing(
                    f"{store} holds commits but no {MARKER}: a copy that is not whole; copy {MARKER} too", file=MARKER
                )
            made = Marker(run=secrets.token_hex(16), created_by=created_by, created=clock.wall())
            _settle(store, MARKER, encode(made))  # False: somebody else has begun it, which is as good
        return cls(store, read_record(store, MARKER, Marker), tell, clock)

    def claim_epoch(self, owner: str) -> int:
        """Claim the next free epoch for ``owner`` (text for people). From now on older writers are refused."""
        head = self.head()  # in case the copy of a run lost its epochs
        first = self._next(EPOCHS, epoch_name, least=head.epoch if head else 0)
        for epoch in range(first, first + _RACES):
            claim = Epoch(
                run=self.marker.run, epoch=epoch, owner=owner, created=self.clock.wall(), token=secrets.token_hex(16)
            )
            if _settle(self.store, epoch_name(epoch), encode(claim)):
                return epoch
        raise Superseded(f"{_RACES} others claimed an epoch before us; stop the other writers", epoch=first)

    def token_of(self, epoch: int) -> str | None:
        """The token of the claim of ``epoch``; None if nobody has claimed it here."""
        try:
            return read_record(self.store, epoch_name(epoch), Epoch).token
        except BlobMissing:
            return None

    def newest_epoch(self) -> int:
        """The newest epoch that was claimed; 0 if none was."""
        return self._highest(EPOCHS, epoch_name)

    def write_pack(
        self, chunks: Iterable[Buffer], *, epoch: int, step: int, seq: int, writer: str, number: int = 0
    ) -> PackRef:
        """Store a pack as a blob of its own. The first chunk begins with the whole header (it may be the whole file).

        Chunks whose every ``iter()`` starts anew with the same bytes (a list) are written again by a store that tries
        again. After a `TryAgain` the pack may or may not be there: write it under another ``number`` or ``seq``.
        """
        name = pack_name(epoch=epoch, step=step, seq=seq, writer=writer, number=number)
        pieces = iter(chunks)
        first = as_bytes(next(pieces, b""))
        header_nbytes = 8 + int.from_bytes(first[:8], "little")
        if first.nbytes < header_nbytes:
            raise CallError(f"the first chunk of {name} must hold its header of {header_nbytes} bytes", file=name)
        # Digested before it is handed out: the buffer is the caller's.
        header_digest = digest_of(first[:header_nbytes])
        once = pieces is chunks  # then its first chunk is gone, and nobody can read it again
        counted = Counted(itertools.chain([first], pieces) if once else chunks)
        self.store.put(name, iter(counted) if once else counted)
        return PackRef(name=name, nbytes=counted.nbytes, header_nbytes=header_nbytes, header_digest=header_digest)

    def open_pack(self, ref: PackRef) -> PackIndex:
        """Read and check the header of a pack; its tiles are checked by who reads them (`PackIndex.digest`)."""
        found = self.store.size(ref.name)
        if found is None:
            raise BlobMissing(f"{ref.name} is not there; use another copy or an older step", file=ref.name)
        # No header is longer, so no more is read, whatever the part says and however large the file is.
        header = self.store.read(ref.name, nbytes=min(ref.header_nbytes, found, HEADER_LIMIT_BYTES))
        if found != ref.nbytes or digest_of(header) != ref.header_digest:
            raise BlobCorrupt(
                f"{ref.name} ({found} bytes) is not the pack that was saved ({ref.nbytes} bytes); "
                "use another copy or an older step",
                file=ref.name,
            )
        return parse_header(lambda start, nbytes: header[start : start + nbytes], found, file=ref.name)

    def write_part(self, part: Part, leaves: Sequence[Buffer] = ()) -> PartRef:
        """Store ``part`` with its ``leaves``; its packs must be there. Writing the same part again is no error."""
        for pack in part.packs:
            self._check_there(pack.name, pack.nbytes)
        name = part_name(epoch=part.epoch, step=part.step, seq=part.seq, writer=part.writer)
        top = encode(part)
        data = b"".join([top, *leaves])
        if len(data) != len(top) + part.leaves_nbytes:
            raise CallError(f"{name} has {len(data)} bytes, its record says {len(top) + part.leaves_nbytes}", file=name)
        if not _settle(self.store, name, data):
            raise CallError(f"{name} exists with other content; count `seq` up for every attempt", file=name)
        return PartRef(name=name, nbytes=len(data), top_nbytes=len(top), digest=digest_of(top))

    def part_ref(self, name: str) -> PartRef | None:
        """The reference to the part that another writer stored as ``name``; None if it is not there yet.

        Raises `BlobCorrupt` or `FormatRefused` as `read_part`.
        """
        nbytes = self.store.size(name)
        if nbytes is None:
            return None
        top_nbytes = _top_nbytes(self.store, name, nbytes)
        top = self.store.read(name, nbytes=top_nbytes)
        ref = PartRef(name=name, nbytes=nbytes, top_nbytes=top_nbytes, digest=digest_of(top))
        self.read_part(ref)
        return ref

    def read_part(self, ref: PartRef) -> Part:
        """Read the record of a part; raises `BlobMissing`, `BlobCorrupt` or `FormatRefused` as any record."""
        found = self.store.size(ref.name)
        if found is None:
            raise BlobMissing(f"{ref.name} is not there; use another copy or an older step", file=ref.name)
        top = self.store.read(ref.name, nbytes=min(ref.top_nbytes, found, PART_LIMIT_BYTES))
        if found != ref.nbytes or digest_of(top) != ref.digest:
            raise BlobCorrupt(
                f"{ref.name} is not the part that was committed; use another copy or an older step", file=ref.name
            )
        part = decode(top, Part, file=ref.name)
        if part.run != self.marker.run or ref.top_nbytes + part.leaves_nbytes != ref.nbytes:
            raise FormatRefused(
                f"{ref.name} is of another run, or has leaves that it does not name; use another copy or an older step",
                file=ref.name,
            )
        if ref.name != part_name(epoch=part.epoch, step=part.step, seq=part.seq, writer=part.writer):
            raise FormatRefused(
                f"{ref.name} is the part of another save; use another copy or an older step", file=ref.name
            )
        return part

    def read_leaf(self, ref: PartRef, leaf: LeafRef) -> memoryview:
        """The bytes of a leaf of the part ``ref``; raises `BlobCorrupt` if they are not those that were written."""
        data = self.store.read(ref.name, start=ref.top_nbytes + leaf.start, nbytes=leaf.nbytes)
        if digest_of(data) != leaf.digest:
            raise BlobCorrupt(
                f"{ref.name} is corrupt: its index from {leaf.first!r} to {leaf.last!r} does not hash to its digest; "
                "use another copy or an older step",
                file=ref.name,
            )
        return data

    def make_durable(self, commit: Commit) -> None:
        """Make sure that ``commit``, which was read, is durable: its writer may have died before it was."""
        self.store.create(slot_name(commit.slot), encode(commit))

    def give_up(self, commit: Commit) -> None:
        """Say that ``commit`` is pruned; done before anything that it names is deleted. Again is no error."""
        self.give_up_slot(commit.slot, step=commit.step)

    def give_up_slot(self, slot: int, *, step: int | None) -> None:
        """The same of the commit in ``slot``; ``step`` is for people, None if the commit cannot be read."""
        made = Pruned(run=self.marker.run, slot=slot, step=step, created=self.clock.wall())
        _settle(self.store, pruned_name(slot), encode(made))

    def pruned(self) -> frozenset[int]:
        """The slots of the commits that were given up."""
        return frozenset(number for name in self.store.names(PRUNED) if (number := number_of(name)) is not None)

    def is_pruned(self, slot: int) -> bool:
        """Whether the commit of ``slot`` was given up."""
        return self.store.size(pruned_name(slot)) is not None

    def commit(
        self,
        *,
        epoch: int,
        parent: int | None,
        step: int,
        parts: Sequence[PartRef],
        meta: Mapping[str, Any],
        metric: float | None = None,
        pinned: bool = False,
        session: str = "",
        seq: int = 0,
        claim: str | None = None,
    ) -> Commit:
        """Make ``parts`` a step of the run, as the child of slot ``parent`` (None: training began from scratch).

        Durable on return. Committing the same again, after any error, gives the same commit. ``claim`` is what
        `token_of` said of the epoch when it was claimed: if another claim lies there now, somebody has put another copy
        of the run in the place of this one, and this writer must stop.

        Raises `Superseded` (facts ``epoch``, ``newer``, ``slot``) when a newer writer owns the run or another one uses
        this epoch: stop. `BlobMissing` when a part is not in the store. After `TryAgain` it may be committed or not.
        """
        if parent is not None and self.store.size(slot_name(parent)) is None:
            raise CallError(f"the parent slot {parent} is not there; give the slot that training went on from")
        for part in parts:
            self._check_there(part.name, part.nbytes)
        token = self.token_of(epoch)
        if claim is not None and token != claim:
            raise Superseded(
                f"epoch {epoch} of this run is not this writer's any more: another copy of the run was put in its "
                "place; this writer must stop",
                epoch=epoch,
                newer=None,
                slot=None,
            )
        wanted = Commit(
            run=self.marker.run,
            slot=(parent or 0) + 1,
            epoch=epoch,
            claim=token,
            parent=parent,
            step=step,
            session=session,
            seq=seq,
            parts=tuple(parts),
            meta=dict(meta),
            metric=None if metric is None else float(metric),  # a reader reads 1 as 1.0, which is another spelling
            pinned=pinned,
            created=self.clock.wall(),
            token=secrets.token_hex(16),
        )
        return self._take_slot(wanted)

    def head(self) -> Commit | None:
        """The newest commit that can be read; None if there is none. A damaged one is passed over, and told.

        Raises `FormatRefused` rather than pass over what a later release wrote.
        """
        return self._newest_readable(self.slots())

    def slot_below(self, slot: int) -> int | None:
        """The next lower slot that there is, or may be; None if there is none."""
        return next((number for number in self.slots() if number < slot), None)

    def chain(self, *, start: int | None = None) -> Iterator[Commit]:
        """The branch that training is on, newest first: the head (or slot ``start``) and its parents, read one by one.

        Raises, on reaching it, `BlobCorrupt` or `BlobMissing` that names a slot file that cannot be read (fact
        ``slot``).
        The caller may go on with ``chain(start=slot - 1)``, which may be on another branch.
        """
        commit = self.head() if start is None else self.read_slot(start)
        while commit is not None:
            yield commit
            commit = None if commit.parent is None else self.read_slot(commit.parent)

    def find(self, step: int) -> Commit | None:
        """The newest commit of ``step`` on the branch that training is on; None if there is none."""
        return next((commit for commit in self.chain() if commit.step == step), None)

    def read_slot(self, slot: int) -> Commit:
        """The commit in ``slot``, on whichever branch it is."""
        name = slot_name(slot)
        try:
            commit = read_record(self.store, name, Commit)
        except (BlobCorrupt, BlobMissing) as error:
            error.facts["slot"] = slot
            raise
        if commit.slot != slot or commit.run != self.marker.run:
            raise FormatRefused(
                f"{name} holds slot {commit.slot} of run {commit.run}; it was copied from elsewhere: remove the copy",
                file=name,
                slot=slot,
            )
        return commit

    def _take_slot(self, wanted: Commit) -> Commit:
        free = self._next(SLOTS, slot_name)
        top = self._newest_readable(self.slots())
        # After the slots were listed: so a slot that cannot be read has no newer epoch either.
        self._check_newest(wanted.epoch, top)
        mine = top is not None and _same_save(top, wanted) and not self.is_pruned(top.slot)
        if top is not None and mine and not self.store.create(slot_name(top.slot), encode(top)):
            return top  # ours, of a try before; `create` has made sure that it is durable
        if top is not None and top.epoch < wanted.epoch:
            self.make_durable(top)  # else a power cut may leave our slot and a gap below it
        for slot in range(free, free + _RACES):
            commit = msgspec.structs.replace(wanted, slot=slot)
            if _settle(self.store, slot_name(slot), encode(commit)):
                if self.is_pruned(slot):  # before it was taken, by a carry that was cut off: so it is no step
                    continue
                return commit
            other = self._newest_readable([slot])
            self._check_newest(wanted.epoch, other)
            if other is not None and other.epoch == wanted.epoch:
                raise Superseded(
                    f"another writer used epoch {other.epoch} for slot {slot}; stop it, or claim an epoch of your own",
                    epoch=wanted.epoch,
                    newer=other.epoch,
                    slot=slot,
                )
        raise Superseded(f"{_RACES} slots were lost to other writers; stop them", epoch=wanted.epoch, newer=None)

    def _check_newest(self, epoch: int, met: Commit | None) -> None:
        newer = max(self.newest_epoch(), met.epoch if met else 0)
        if newer > epoch:
            raise Superseded(
                f"epoch {newer} owns this run now; this writer of epoch {epoch} must stop",
                epoch=epoch,
                newer=newer,
                slot=met.slot if met else None,
            )

    def _newest_readable(self, slots: Iterable[int]) -> Commit | None:
        for number in slots:
            try:
                return self.read_slot(number)
            except (BlobCorrupt, BlobMissing) as error:
                self.tell(Note(f"commit {number} is passed over: {error}", slot_name(number)))
        return None

    def slots(self) -> Iterator[int]:
        """The slots that there may be, highest first: those that are listed, and below each a few that may be late.

        Not all numbers: a file that somebody planted far above the others must not cost a read for each between.
        """
        listed = {number_of(name) or 0 for name in self.store.names(SLOTS)}
        there = sorted((listed | {self._beyond(listed, slot_name)}) - {0}, reverse=True)
        for number, below in zip(there, [*there, 0][1:], strict=True):
            yield from range(number, max(below, number - _LATE), -1)

    def _highest(self, folder: str, name_of: Callable[[int], str]) -> int:
        """The highest number in ``folder``; 0 if there is none."""
        return self._beyond({number_of(name) or 0 for name in self.store.names(folder)}, name_of)

    def _beyond(self, listed: Collection[int], name_of: Callable[[int], str]) -> int:
        """The highest number that is there, at least that of ``listed``; a network file system may list late."""
        highest = max(listed, default=0)
        while highest < _LAST and self.store.size(name_of(highest + 1)) is not None:
            highest += 1
        return highest

    def _next(self, folder: str, name_of: Callable[[int], str], *, least: int = 0) -> int:
        """The number after the highest in ``folder``, and after ``least``."""
        highest = max(self._highest(folder, name_of), least)
        if highest >= _LAST:
            raise FormatRefused(
                f"{name_of(highest)} leaves no number for a newer one, and no run has come so far: remove it",
                file=name_of(highest),
            )
        return highest + 1

    def _check_there(self, name: str, nbytes: int) -> None:
        found = self.store.size(name)
        if found != nbytes:
            raise BlobMissing(
                f"{name} must be in the store with {nbytes} bytes before it is named; it has {found}", file=name
            )


def _settle(store: Store, name: str, data: bytes) -> bool:
    """Create ``name``, asking again when a response is lost: whether ``name`` now holds exactly ``data``, durably."""
    for left in reversed(range(_TRIES)):
        try:
            if store.create(name, data):
                return True
            return store.size(name) == len(data) and store.read(name) == data
        except TryAgain:
            if not left:
                raise
    raise AssertionError("unreachable")


def _top_nbytes(store: Store, name: str, nbytes: int) -> int:
    """The bytes of the record at the front of a part: up to its first line feed."""
    ahead = 64 << 10
    while True:
        ahead = min(ahead, nbytes, PART_LIMIT_BYTES)
        at = bytes(store.read(name, nbytes=ahead)).find(b"\n")
        if at >= 0:
            return at + 1
        if ahead == min(nbytes, PART_LIMIT_BYTES):
            raise BlobCorrupt(f"{name} is corrupt: its record has no end; use another copy or an older step", file=name)
        ahead *= 8


def _same_save(one: Commit, other: Commit) -> bool:
    """Whether two commits differ in slot, time and token alone."""
    return all(getattr(one, name) == getattr(other, name) for name in _SAVED)
