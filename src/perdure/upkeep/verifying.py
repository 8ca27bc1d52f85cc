"""Verify a run: every record, every index, every byte; go on after each damage, and say what it costs.

Three passes, each over what the one before has found whole. The records (marker, epochs, slots) say what there is. The
index of each commit is proved (`perdure.state.coverage`): all leaves hash, all tensors are covered, every block claims
an entry that the header of its pack has. Then the data of the packs is hashed, each pack once, on several threads
with a buffer each. Nothing is kept of a commit but what its packs must hold, so memory does not grow with the bytes.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from perdure.errors import IntegrityError, StorageError
from perdure.state.coverage import Claims, Proving, claim_of, named, prove
from perdure.state.crew import work_off
from perdure.state.part_reader import PartReader
from perdure.store import Commit, PackIndex, PackRef, PartRef, Run, Store, parse_header
from perdure.store.places import EPOCHS, MARKER, PACKS, PARTS, PRUNED, SLOTS, number_of, slot_name, written_by
from perdure.store.records import digest_of
from perdure.upkeep.blueprints import Bad, bad_tiles, leaves_of, room_for, tensors_of
from perdure.upkeep.ledger import Ledger, read_ledger

__all__ = ["REPAIRS", "Damage", "Report", "verify"]

REPAIRS = "repairs/"
"""Where a repair keeps what it is about to put in place."""

_THREADS = 4
_KEPT_HEADERS = 4 << 20  # entries of packs whose claims are remembered, for packs that many commits name


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that is not as it was written: in which file, a sentence, and what it costs.

    ``tensor`` and ``tile`` say where in a pack. ``steps`` are those that cannot be restored whole for it.
    """

    file: str
    message: str
    costs: str
    steps: tuple[int, ...] = ()
    tensor: str | None = None
    tile: int | None = None


@dataclass(slots=True)
class Report:
    """What was verified, and what was found. ``notes`` are no damage."""

    damages: list[Damage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    n_tensors: int = 0
    n_pieces: int = 0
    n_packs: int = 0
    hashed_bytes: int = 0


def verify(
    store: Store,
    *,
    step: int | None = None,
    slot: int | None = None,
    every: bool = False,
    data: bool = True,
    on_bytes: Callable[[int, int], None] = lambda done, total: None,
) -> Report:
    """Verify the newest commit of the run in ``store``, that of ``step`` or in ``slot``, or ``every`` one not pruned.

    Records are verified in any case, all of them. Without ``data`` everything but the bytes of tensors is: that they
    are covered, that their packs are there, of the right size and with the right header. ``on_bytes`` is told how many
    bytes of how many were hashed; in any thread, never in two at a time.

    Raises `BlobMissing` if there is no run, no such step; `TryAgain` and the like of the store. A damage is no error.
    """
    ledger = read_ledger(store)
    work = _Verifying(ledger, on_bytes)
    for each in ledger.unread:
        work.tell(Damage(each.file, each.message, each.costs))
    for each in ledger.done_without:
        work.report.notes.append(f"{each.file} cannot be read and was given up: nothing is lost by it any more")
    if not ledger.commits:
        work.report.notes.append("there is no commit that can be read")
        return work.report
    commits = ledger.live() if every else [ledger.of(step, slot)]
    for commit in commits:
        work.commit(commit)
        work.report.steps.append(commit.step)
    if data:
        work.data()
    work.others(every=every)
    work.count_costs({commit.slot for commit in commits})
    return work.report


class _Verifying:
    """One verification, as its threads see it."""

    def __init__(self, ledger: Ledger, on_bytes: Callable[[int, int], None]) -> None:
        self.report = Report()
        self._ledger = ledger
        self._run: Run = ledger.opened()
        self._store = ledger.store
        self._on_bytes = on_bytes
        self._lock = threading.Lock()
        self._packs: dict[str, PackRef] = {}  # all that the commits name
        self._users: dict[str, set[int]] = {}  # by file, the slots whose commits need it
        self._whole: set[str] = set()  # packs whose header is good
        self._parts_done: set[str] = set()
        self._kept: dict[str, array[int]] = {}
        self._n_kept = 0
        self._total_bytes = self._done_bytes = 0

    def tell(self, damage: Damage) -> None:
        with self._lock:
            self.report.damages.append(damage)

    def commit(self, commit: Commit) -> None:
        """Prove the index of a commit, and the headers of its packs."""
        parts: list[Proving] = []
        for ref in commit.parts:
            self._users.setdefault(ref.name, set()).add(commit.slot)
            proving = self._part(ref)
            if proving is not None:
                parts.append(proving)
        if not commit.parts:
            self.tell(Damage(slot_name(commit.slot), f"{slot_name(commit.slot)} names no part", "", (commit.step,)))
        proof = prove(parts, whole=len(parts) == len(commit.parts))
        self.report.n_tensors += proof.n_tensors
        self.report.n_pieces += proof.n_pieces
        for fault in proof.faults:
            self.tell(Damage(fault.file, fault.message, "", (commit.step,), fault.tensor))
        wrong: dict[str, set[int]] = {}
        for each in parts:
            for pack in each.part.packs:
                self._users.setdefault(pack.name, set()).add(commit.slot)
                unmet = self._pack(pack, proof.claims.get(pack.name, Claims()))
                if unmet:
                    wrong[pack.name] = unmet
        if wrong:
            for each in parts:
                for name, key, pack_name in named(each, wrong):
                    why = f"{pack_name} does not hold {key!r} of tensor {name!r} with the dtype and shape of its block"
                    self.tell(Damage(pack_name, why, "", (commit.step,), name))

    def data(self) -> None:
        """Hash the data of all packs."""
        refs = [self._packs[name] for name in sorted(self._whole)]
        self._total_bytes = sum(ref.nbytes for ref in refs)
        self._on_bytes(0, self._total_bytes)
        work_off([partial(self._hash, ref) for ref in refs], threads=min(_THREADS, max(len(refs), 1)))

    def others(self, *, every: bool) -> None:
        """Notes on what lies there and is not of the run, or of no commit that was verified."""
        strange, unused, late, unused_bytes, left = [], 0, 0, 0, 0
        newest = max((commit.epoch for commit in self._ledger.commits.values()), default=0)
        for name in self._store.names(""):
            if name.startswith(REPAIRS):
                left += 1
            elif written_by(name) is not None and name.startswith((PACKS, PARTS)):
                if name not in self._users:
                    unused += 1
                    late += (written_by(name) or 0) >= newest
                    unused_bytes += self._size(name) if every else 0
            elif name != MARKER and (number_of(name) is None or not name.startswith((EPOCHS, SLOTS, PRUNED))):
                strange.append(name)
        notes = self.report.notes
        if unused and every:
            notes.append(f"{unused} packs and parts ({unused_bytes} bytes) are {self._whose(unused, late)}")
        if strange:
            shown = ", ".join(strange[:3]) + (", ..." if len(strange) > 3 else "")
            notes.append(f"{len(strange)} files are not perdure's and were left alone: {shown}")
        if left:
            notes.append(f"{left} blobs are left under {REPAIRS} by a repair that did not end: run the repair again")

    def count_costs(self, seen: set[int]) -> None:
        """Say of each damage of a pack or part which steps it costs, those of commits that were not verified too."""
        files = {damage.file for damage in self.report.damages}
        if files.intersection(self._users):
            for commit in self._ledger.live():
                if commit.slot not in seen:
                    self._note_users(commit, files)
        told = []
        gone = self._run.pruned()  # also what was pruned while we read
        for damage in self.report.damages:
            users = self._users.get(damage.file)
            if users and users <= gone:
                self.report.notes.append(f"{damage.file} was pruned while it was verified")
                continue
            steps = {self._ledger.commits[slot].step for slot in self._users.get(damage.file, ())}
            lost = tuple(sorted({*damage.steps, *steps})) if damage.costs != _NOTHING else ()
            costs = damage.costs or f"{_counted(lost)} cannot be restored whole from here"
            told.append(Damage(damage.file, damage.message, costs, lost, damage.tensor, damage.tile))
        self.report.damages = sorted(told, key=lambda each: (each.file, each.tensor or "", each.tile or 0))

    def _whose(self, unused: int, late: int) -> str:
        """What packs and parts are that no commit names which can be read, and when they go."""
        if self._ledger.lost:
            slots = ", ".join(map(str, self._ledger.lost[:5]))
            return f"of no commit that can be read, but may be of slot {slots}, which cannot be: leave them there"
        told = "of no commit: a save under way, or left over from one that failed; "
        goes = "when a later session has committed a step" if late else ""
        if late < unused:
            goes = f"{late} of them {goes}, the others now" if late else "now"
        return f"{told}`perdure checkpoint prune` removes {'them ' if late in (0, unused) else ''}{goes}"

    def _size(self, name: str) -> int:
        try:
            return self._store.size(name) or 0
        except IntegrityError as error:  # no plain file
            self.tell(Damage(name, str(error), "nothing: no commit that was verified names it"))
            return 0

    # --- inside ------------------------------------------------------------------------------------------------------

    def _note_users(self, commit: Commit, files: set[str]) -> None:
        for ref in commit.parts:
            if ref.name in files:
                self._users.setdefault(ref.name, set()).add(commit.slot)
            try:
                named_packs = [pack.name for pack in self._run.read_part(ref).packs]
            except (IntegrityError, StorageError):
                continue  # nobody asked for that commit
            for name in files.intersection(named_packs):
                self._users.setdefault(name, set()).add(commit.slot)

    def _part(self, ref: PartRef) -> Proving | None:
        """The part, its leaves hashed; None if it cannot be read at all."""
        first_time = ref.name not in self._parts_done
        self._parts_done.add(ref.name)
        try:
            part = self._run.read_part(ref)
            read = partial(self._run.read_leaf, ref)
            reader = PartReader(part, read, file=ref.name)
        except (IntegrityError, StorageError) as error:
            if first_time:
                self.tell(Damage(ref.name, str(error), ""))
            return None
        leaves = leaves_of(ref, part)
        found = list(bad_tiles(self._store, ref.name, leaves, room=room_for(leaves)))
        if first_time:
            for bad in found:
                self._tell_bad(ref.name, bad)
        by_start = {bad.stretch.start - ref.top_nbytes for bad in found}
        gone = [(leaf.first, leaf.last) for leaf in part.leaves if leaf.start in by_start]
        return Proving(
            part,
            reader,
            damaged=lambda first, last: (first, last) in gone,
            doubtful=lambda name: any(first <= name <= last for first, last in gone),
        )

    def _pack(self, ref: PackRef, claims: Claims) -> set[int]:
        """Check the header of a pack, and what is claimed of it; the claims that it does not meet."""
        first_time = ref.name not in self._packs
        known = self._packs.setdefault(ref.name, ref)
        if known != ref:
            self.tell(Damage(ref.name, f"{ref.name} is named with two different digests or sizes", ""))
            return set()
        found = self._kept.get(ref.name)
        frames: set[int] = set()
        if found is None or claims.frames:
            index = self._header(ref, first_time=first_time)
            if index is None:
                return set()
            found = array("q", map(claim_of, index.entries))
            frames = {hash(entry.key) for entry in index.entries if entry.dtype == "uint8" and len(entry.shape) == 1}
            self._n_kept += len(found)
            if self._n_kept > _KEPT_HEADERS:
                self._kept.clear()
                self._n_kept = len(found)
            self._kept[ref.name] = found
        if first_time:
            self._whole.add(ref.name)
            self.report.n_packs += 1
        return {*set(claims.entries).difference(found), *set(claims.frames).difference(frames)}

    def _header(self, ref: PackRef, *, first_time: bool) -> PackIndex | None:
        try:
            return self._run.open_pack(ref)
        except (IntegrityError, StorageError) as error:
            if first_time:
                self.tell(Damage(ref.name, str(error), ""))
                self._cut(ref)
            return None

    def _cut(self, ref: PackRef) -> None:
        """A pack of the wrong size may have a good header: what is lost then is hashed too."""
        if self._size(ref.name):
            self._whole.add(ref.name)

    def _hash(self, ref: PackRef) -> None:
        try:
            header = header_of(self._store, ref)
        except (IntegrityError, StorageError):
            self._count(ref.nbytes)
            return  # told already
        if header is None:
            self._count(ref.nbytes)
            return
        stretches = tensors_of(header)
        self._count(ref.header_nbytes)
        for bad in bad_tiles(self._store, ref.name, stretches, room=room_for(stretches), on_bytes=self._count):
            self._tell_bad(ref.name, bad)

    def _count(self, nbytes: int) -> None:
        with self._lock:
            self._done_bytes += nbytes
            self.report.hashed_bytes = self._done_bytes
            self._on_bytes(self._done_bytes, self._total_bytes)

    def _tell_bad(self, file: str, bad: Bad) -> None:
        stretch = bad.stretch
        what = f"tile {bad.tile} of {stretch.what}" if stretch.tensor is not None else stretch.what
        costs = _NOTHING if stretch.pad else ""
        tile = bad.tile if stretch.tensor is not None else None
        self.tell(Damage(file, f"{file} is corrupt: {what} {bad.why}", costs, (), stretch.tensor, tile))


_NOTHING = "nothing: no tensor has these bytes"


def header_of(store: Store, ref: PackRef) -> PackIndex | None:
    """The header of a pack if that is good, whatever else is not; None if it does not hash to its digest."""
    raw = store.read(ref.name, nbytes=ref.header_nbytes)
    if digest_of(raw) != ref.header_digest:
        return None
    return parse_header(lambda start, nbytes: raw[start : start + nbytes], ref.nbytes, file=ref.name)


def _counted(steps: Sequence[int]) -> str:
    if not steps:
        return "what names it"
    shown = ", ".join(map(str, steps[:8])) + (", ..." if len(steps) > 8 else "")
    return f"step {shown}" if len(steps) == 1 else f"{len(steps)} steps ({shown})"
