"""Retention as it goes on: look at a run, plan what its rules say, carry it out, remember what never changes.

A commit and a part are written once, so what was read of them is never read again: after the first look, which reads
every slot, another one costs a few listings and the commits that came since. Who saves keeps one `Retention` a run.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial

from perdure.errors import FormatRefused, IntegrityError, PerdureError, from_wire, to_wire
from perdure.state.crew import work_off
from perdure.store import Run
from perdure.store.places import EPOCHS, PACKS, PARTS, SLOTS, number_of, slot_name, written_by
from perdure.upkeep.keep import Rule
from perdure.upkeep.pruning import (
    CommitFacts,
    InFlight,
    PrunePlan,
    Snapshot,
    execute,
    packs_in_flight,
    part_of,
    plan_prune,
)

__all__ = ["Retention"]

_MISSING = 1000  # slots that may be missing, each of which is asked for
_THREADS = 16  # that read slots and sizes of a store far away; on a disk the lock of the interpreter makes them one


class Retention:
    """What is known of a run. Used by one thread at a time."""

    def __init__(self) -> None:
        self._run = ""
        self._commits: dict[int, CommitFacts] = {}
        self._packs: dict[str, dict[str, int]] = {}  # part -> the packs that it names, and their bytes

    def keep(self, run: Run, rules: Sequence[Rule], *, spared: Collection[int] = ()) -> str | None:
        """Prune ``run`` by ``rules`` after a commit; a sentence for people if that could not be done.

        The slots ``spared`` stay whatever the rules say.

        Never raises: a step that is saved is saved, whatever becomes of older ones. The next call goes on.
        """
        try:
            plan = self.plan(run, rules=rules, spared=spared)
            if plan.blocked is None:
                execute(run, plan)
                return None
            return f"older steps are not pruned: {plan.blocked}"
        except Exception as error:  # also a bug must not fail the save, nor end the thread
            known = error if isinstance(error, PerdureError) else from_wire(to_wire(error))
            return f"older steps could not be pruned ({known}); the next save tries again"

    def plan(
        self,
        run: Run,
        *,
        rules: Sequence[Rule] = (),
        spared: Collection[int] = (),
        steps: Collection[int] = (),
        slots: Collection[int] = (),
        even_pinned: bool = False,
        lost: bool = False,
        other_trainings: bool = False,
        measure: bool = False,
    ) -> PrunePlan:
        """Look at ``run`` and plan; see `plan_prune`. ``measure`` asks for the bytes of what is to be deleted too."""
        decide = partial(
            plan_prune,
            packs_of=partial(self._packs_of, run),
            rules=rules,
            spared=spared,
            steps=steps,
            slots=slots,
            even_pinned=even_pinned,
            lost=lost,
            other_trainings=other_trainings,
        )
        snapshot = self.look(run)
        plan = decide(snapshot)
        while plan.blocked is not None:
            # What cannot be read may have been given up by another prune since we looked: then it is no damage.
            again = self.look(run)
            if again.given_up <= snapshot.given_up:
                break
            snapshot = again
            plan = decide(snapshot)
        stays = {part.name for each in plan.kept for part in snapshot.commits[each.slot].parts}
        self._packs = {name: packs for name, packs in self._packs.items() if name in stays or plan.blocked}
        return replace(plan, sizes=self._measure(run, [*plan.packs, *plan.parts])) if measure else plan

    def look(self, run: Run) -> Snapshot:
        """The run as it is now.

        Raises `StorageError` or `TryAgain` if the store cannot be asked; what is damaged is part of the snapshot.
        """
        if self._run != run.marker.run:
            self._run, self._commits, self._packs = run.marker.run, {}, {}
        epochs = _numbers(run, EPOCHS)
        given_up = run.pruned()
        packs, parts = tuple(run.store.names(PACKS)), tuple(run.store.names(PARTS))
        lost = self._read(run, given_up, {*parts, *map(part_of, packs)})
        snapshot = Snapshot(self._commits.copy(), given_up, lost, epochs, packs, parts)
        if snapshot.head is None:
            return snapshot
        named = {part.name for each in self._commits.values() for part in each.parts}
        oldest = snapshot.head.epoch
        flying = [name for name in parts if name not in named and (written_by(name) or 0) >= oldest]
        try:
            in_flight: list[InFlight] = packs_in_flight(run, flying)
        except IntegrityError as error:
            return replace(snapshot, unreadable=f"a part of a save under way cannot be read: {error}")
        return replace(snapshot, in_flight=tuple(in_flight))

    def _read(self, run: Run, given_up: frozenset[int], left: Collection[str]) -> dict[int, str]:
        """Read the slots that are not known yet; why those cannot be that should.

        ``left`` are the parts of which something is left: the part itself, or a pack that was written for it.
        """
        listed = _numbers(run, SLOTS)
        highest = max(listed, default=0)
        while run.store.size(slot_name(highest + 1)) is not None:  # a listing may be late
            highest += 1
        if highest - len(listed) > _MISSING:  # not a read for each: somebody may have planted the highest one
            raise FormatRefused(
                f"{highest - len(listed)} slots below {slot_name(highest)} are not there: copy them too, or remove "
                f"{slot_name(highest)} if it is not of this run",
                file=slot_name(highest),
            )
        lost: dict[int, str] = {}
        found: dict[int, CommitFacts] = {}

        def read(slot: int) -> None:
            try:
                commit = run.read_slot(slot)
            except IntegrityError as error:
                if slot not in given_up:
                    lost[slot] = str(error)
                return
            found[slot] = CommitFacts(
                slot,
                commit.parent,
                commit.epoch,
                commit.step,
                commit.metric,
                commit.pinned,
                commit.created,
                commit.parts,
            )

        unknown = [slot for slot in range(1, highest + 1) if slot not in self._commits]
        work_off([partial(read, slot) for slot in unknown], threads=min(_THREADS, len(unknown) // 8 + 1))
        self._commits.update(found)
        for slot, each in self._commits.items():
            # Of what was given up and is deleted, ten thousand lists of parts would be a lot to remember.
            if each.parts and slot in given_up and not any(part.name in left for part in each.parts):
                self._commits[slot] = replace(each, parts=())
        return lost

    def _packs_of(self, run: Run, commit: CommitFacts) -> Collection[str]:
        found: set[str] = set()
        for ref in commit.parts:
            if ref.name not in self._packs:
                self._packs[ref.name] = {pack.name: pack.nbytes for pack in run.read_part(ref).packs}
            found.update(self._packs[ref.name])
        return found

    def _measure(self, run: Run, names: Sequence[str]) -> dict[str, int]:
        sizes: dict[str, int] = {}

        def ask(name: str) -> None:
            nbytes = run.store.size(name)
            if nbytes is not None:  # else another prune was faster
                sizes[name] = nbytes

        work_off([partial(ask, name) for name in names], threads=min(_THREADS, len(names) // 8 + 1))
        return sizes


def _numbers(run: Run, folder: str) -> frozenset[int]:
    return frozenset(number for name in run.store.names(folder) if (number := number_of(name)) is not None)
