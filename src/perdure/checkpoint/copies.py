"""The store that commits and its copy far away, as one place to restore from.

The store at home says which commits there are and which branch training is on; where a slot of it is damaged, the same
slot of the copy says it. A commit is a step to restore if it stands in either: what was pruned at home may stay in the
copy. Each part, leaf and pack comes from home, and what is bad or missing there from the copy of the same commit, which
has the same names and digests. A copy whose commit is another one is never read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from perdure.checkpoint.lineup import SlotFacts
from perdure.errors import BlobCorrupt, BlobMissing, CallError, FormatRefused, IntegrityError, PerdureError
from perdure.state.catalogs import catalog_of
from perdure.state.disk_pack import DiskPack
from perdure.state.index import Catalog
from perdure.state.load import PackSource
from perdure.state.part_reader import PartReader
from perdure.state.step_index import read_catalog
from perdure.store import Commit, Note, PackIndex, PackRef, Part, PartRef, Run
from perdure.store.branch import branch, commit_of
from perdure.store.places import SLOTS, number_of, slot_name
from perdure.upkeep.carrying import check_history

__all__ = ["Copies"]

Result = TypeVar("Result")

Packs = Mapping[str, Sequence[PackSource]]


class Copies:
    """``far`` opens the copy in ``place``, when it is first needed; None without one. Any thread may read."""

    def __init__(self, here: Run, far: Callable[[], Run] | None = None, *, place: str = "") -> None:
        self._here, self._open_far, self._place = here, far, place
        self._far: Run | None = None
        self._lock = threading.Lock()
        self.problem: PerdureError | None = None
        """why the copy was of no use when commits were lined up"""

    def chain(self, *, step: int | None = None, slot: int | None = None, most: int | None = None) -> list[SlotFacts]:
        """The commits that can be restored, newest first: at most ``most``, up to ``step``, or that in ``slot`` alone.

        Raises what must not be taken for a run without steps: `BlobMissing`, or what keeps the copy from being read,
        where home has commits and none of them stands.
        """
        far, there = self._lined_up()
        if slot is not None:
            return [self._in_slot(step, slot, far, there)]
        gone = self._here.pruned()
        found: list[SlotFacts] = []
        newest: Commit | None = None
        for commit in branch(self._here) if far is None else _branch_of(self._here, far):
            newest = newest or commit
            facts = _facts(commit, home=commit.slot not in gone, remote=commit.slot in there)
            if facts.home or facts.remote:
                found.append(facts)
                if commit.step == step or (step is None and len(found) == most):
                    break
        if newest is not None and not found and self._open_far is not None:
            problem = self.problem or BlobMissing("it holds no step either")
            raise type(problem)(
                f"{self._here.store} has the history of the run up to step {newest.step} and no step any more, and its "
                f"copy in {self._place} is no use ({problem}): look for another copy, or begin in a place of its own",
                **problem.facts,
            )
        return found

    def catalog(
        self,
        facts: SlotFacts,
        *,
        rank: int | None = None,
        known: Mapping[str, memoryview] | None = None,
        moved: Callable[[int], None] = lambda parts: None,
    ) -> tuple[Catalog, Packs, list[str]]:
        """The index of a commit; for each of its packs the copies of it, the nearest first; and what was bad.

        ``rank``, ``known`` and ``moved`` are those of `read_catalog`; where home alone has the commit, its parts are
        read as there, many at once. Of what was bad more may be told while the step is loaded: parts of the index are
        read then.
        """
        home, far = _Copy("disk", lambda: self._here), _Copy("remote", self._copy)
        copies = [each for each, there in ((home, facts.home), (far, facts.remote)) if there]
        reading = _Reading(copies, facts)
        if copies != [home]:
            return reading.catalog()
        reading.same(self._here.read_slot(facts.slot))
        catalog, packs = read_catalog(self._here, facts.slot, rank=rank, known=known, moved=moved)
        return catalog, {name: [pack] for name, pack in packs.items()}, []

    def is_gone(self, facts: SlotFacts) -> bool:
        """Whether a commit that was lined up was given up since, wherever it was."""
        home = facts.home and not self._here.is_pruned(facts.slot)
        return not home and not (facts.remote and not self._copy().is_pruned(facts.slot))

    # --- the copy ---------------------------------------------------------------------------------------------------

    def _lined_up(self) -> tuple[Run | None, frozenset[int]]:
        """The copy, if there is one that can be read and is of this history, and the slots that it holds steps of.

        Else the problem is noted.
        """
        self.problem = None
        if self._open_far is None:
            return None, frozenset()
        try:
            far = self._copy()
            check_history(self._here, far)
            return far, _standing(far)
        except PerdureError as error:
            self.problem = error
            if not isinstance(error, BlobMissing):  # else nothing was carried yet
                self._here.tell(Note(f"nothing is taken from {self._place}: {error}", self._place))
            return None, frozenset()

    def _copy(self) -> Run:
        with self._lock:
            if self._far is None:
                assert self._open_far is not None
                far = self._open_far()
                if far.marker.run != self._here.marker.run:
                    raise CallError(f"{far.store} holds another run than {self._here.store}")
                self._far = far
            return self._far

    def _in_slot(self, step: int | None, slot: int, far: Run | None, there: frozenset[int]) -> SlotFacts:
        try:
            return _facts(commit_of(self._here, step=step, slot=slot), home=True, remote=slot in there)
        except IntegrityError:
            if far is None or slot not in there:
                raise
            try:
                return _facts(commit_of(far, step=step, slot=slot), home=False, remote=True)
            except PerdureError:
                pass  # the error of home counts
            raise


@dataclass(frozen=True, slots=True)
class _Copy:
    """One place that holds a commit: ``run`` opens it."""

    tier: str
    run: Callable[[], Run]

    def pack(self, ref: PackRef) -> PackSource:
        return DiskPack(self.run(), ref) if self.tier == "disk" else _FarPack(self, ref)


class _Reading:
    """The index of one commit, each record and leaf of it from the nearest copy that has it good."""

    def __init__(self, copies: Sequence[_Copy], facts: SlotFacts) -> None:
        self._copies, self._facts = copies, facts
        self._notes: list[str] = []

    def catalog(self) -> tuple[Catalog, Packs, list[str]]:
        commit = self._first(lambda run: self.same(run.read_slot(self._facts.slot)))
        if not commit.parts:
            name = slot_name(self._facts.slot)
            raise FormatRefused(f"{name} is refused: it names no part; use another copy or an older step", file=name)
        packs: dict[str, list[PackSource]] = {}
        readers: list[PartReader] = []
        for ref in commit.parts:
            part = self._first(lambda run, ref=ref: _part_of(run, ref, commit))  # type: ignore[misc]
            readers.append(self._reader(ref, part))
            packs.update({pack.name: [copy.pack(pack) for copy in self._copies] for pack in part.packs})
        return catalog_of(readers), packs, self._notes

    def _reader(self, ref: PartRef, part: Part) -> PartReader:
        return PartReader(part, lambda leaf: self._first(lambda run: run.read_leaf(ref, leaf)), file=ref.name)

    def same(self, commit: Commit) -> Commit:
        """The commit, if it is the one that was lined up."""
        if _facts(commit, home=self._facts.home, remote=self._facts.remote) != self._facts:
            raise BlobMissing(f"slot {commit.slot} is not the step that was lined up", file=slot_name(commit.slot))
        return commit

    def _first(self, read: Callable[[Run], Result]) -> Result:
        """What ``read`` gives for the nearest copy for which it does; if for none, the error of the nearest counts."""
        first: PerdureError | None = None
        for copy in self._copies:
            try:
                found = read(copy.run())
            except PerdureError as error:
                first = first or (error if copy.tier == "disk" else _missing_far(error, slot_name(self._facts.slot)))
                continue
            if first is not None and (note := f"{first}; took the copy on {copy.tier}") not in self._notes:
                self._notes.append(note)
            return found
        assert first is not None, "a commit that was lined up is somewhere"
        raise first


def _part_of(run: Run, ref: PartRef, commit: Commit) -> Part:
    part = run.read_part(ref)
    if (part.epoch, part.step) != (commit.epoch, commit.step):
        raise FormatRefused(
            f"{ref.name} is of another save than {slot_name(commit.slot)}; use another copy or an older step",
            file=ref.name,
        )
    return part


class _FarPack:
    """A pack in the copy, opened when it is first needed. One that cannot be reached is a copy that is not there."""

    tier = "remote"
    mapped = False
    raw = False

    def __init__(self, copy: _Copy, ref: PackRef) -> None:
        self.file = ref.name
        self._copy, self._ref = copy, ref
        self._pack: DiskPack | None = None

    def index(self) -> PackIndex:
        """The header, read and checked once."""
        return self._have(lambda pack: pack.index())

    def fetch(self, start: int, nbytes: int, into: memoryview | None = None) -> memoryview:
        """Read from the copy."""
        return self._have(lambda pack: pack.fetch(start, nbytes, into))

    def read_digested(self, start: int, nbytes: int, into: memoryview, tile_bytes: int) -> bytes:
        """Read from the copy and hash what has come."""
        return self._have(lambda pack: pack.read_digested(start, nbytes, into, tile_bytes))

    def _have(self, read: Callable[[DiskPack], Result]) -> Result:
        try:
            if self._pack is None:
                self._pack = DiskPack(self._copy.run(), self._ref)
            return read(self._pack)
        except PerdureError as error:
            raise _missing_far(error, self.file) from error


def _missing_far(error: PerdureError, file: str) -> PerdureError:
    """An error of the copy, as one for which an older step is tried."""
    if isinstance(error, IntegrityError):
        return error
    return BlobMissing(f"{file} cannot be had from its copy far away: {error}", file=file)


def _facts(commit: Commit, *, home: bool, remote: bool) -> SlotFacts:
    where = (home, remote, len(commit.parts))
    return SlotFacts(commit.slot, commit.step, commit.epoch, commit.session, commit.seq, *where)


def _standing(far: Run) -> frozenset[int]:
    """The slots that the copy holds steps of."""
    listed = {number for name in far.store.names(SLOTS) if (number := number_of(name)) is not None}
    return frozenset(listed - far.pruned())


@dataclass(frozen=True, slots=True)
class _Mended(Run):
    """The run at home, damaged slots of which are read in the copy."""

    far: Run | None = None

    def read_slot(self, slot: int) -> Commit:
        try:
            return Run.read_slot(self, slot)
        except (BlobCorrupt, BlobMissing):
            if self.far is None:
                raise
            try:
                return self.far.read_slot(slot)
            except PerdureError:
                pass  # the error of home counts
            raise


def _branch_of(here: Run, far: Run) -> Iterator[Commit]:
    """The branch at home, damaged slots of which are read in the copy."""
    return branch(_Mended(here.store, here.marker, here.tell, here.clock, far))
