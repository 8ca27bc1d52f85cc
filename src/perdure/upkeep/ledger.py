"""All records of a run that can be read, and what is wrong with the others: who wants to see a run and not to train.

Opening a run refuses what is damaged; who inspects it wants the rest as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from perdure.errors import BlobMissing, IntegrityError, StorageError
from perdure.store import Commit, Epoch, Marker, Note, Pruned, Run, Store
from perdure.store.places import EPOCHS, MARKER, PRUNED, SLOTS, epoch_name, number_of, pruned_name, slot_name
from perdure.store.records import read_record

__all__ = ["Ledger", "Unread", "read_ledger"]

_GAP = 10_000
R = TypeVar("R", Marker, Epoch, Commit, Pruned)


@dataclass(frozen=True, slots=True)
class Unread:
    """A record that is not there or cannot be used: its file, a sentence, and what that costs."""

    file: str
    message: str
    costs: str


@dataclass(slots=True)
class Ledger:
    """The records of a run, by number; ``run`` is its id, "" if no record can be read."""

    store: Store
    run: str = ""
    commits: dict[int, Commit] = field(default_factory=dict)
    epochs: dict[int, Epoch] = field(default_factory=dict)
    pruned: dict[int, Pruned | None] = field(default_factory=dict)
    unread: list[Unread] = field(default_factory=list)
    done_without: list[Unread] = field(default_factory=list)
    """slots that cannot be read and were given up: no damage any more"""
    slots: list[int] = field(default_factory=list)
    """the numbers of all slot files, those that cannot be read too"""
    highest: int = 0

    def opened(self) -> Run:
        """The run, to read parts and packs; also if its marker is gone."""
        return Run(self.store, Marker(run=self.run, created_by="", created=0.0), _silent)

    def branch(self) -> Iterator[Commit]:
        """The commits of the branch that training is on, newest first, past what cannot be read."""
        slot: int | None = self.highest
        while slot:
            commit = self.commits.get(slot)
            if commit is None:
                slot = max((each for each in self.commits if each < slot), default=None)
                continue
            yield commit
            slot = commit.parent

    def live(self) -> list[Commit]:
        """All commits that were not given up, of every branch, newest first."""
        return [self.commits[slot] for slot in sorted(self.commits, reverse=True) if slot not in self.pruned]

    @property
    def lost(self) -> list[int]:
        """The slots that cannot be read and were not given up: they may name anything."""
        return [slot for each in self.unread if (slot := number_of(each.file)) and each.file == slot_name(slot)]

    def of(self, step: int | None, slot: int | None = None) -> Commit:
        """The newest commit of ``step`` (None: of any) on the branch, or the one in ``slot``, on whichever branch.

        Raises `BlobMissing` if there is none.
        """
        if slot is not None:
            return self._in(slot, step)
        there = [commit for commit in self.branch() if step is None or commit.step == step]
        for commit in there:
            if commit.slot not in self.pruned:
                return commit
        what = "there is no committed step" if step is None else f"the committed step {step}"
        why = " to be had: all were pruned" if there else ("" if step is None else " is not there")
        why = why if step is None or not there else " was pruned"
        elsewhere = next((commit.slot for commit in self.live() if commit.step == step), None)
        if step is not None and elsewhere is not None:
            why = f" is on a branch that training left (--slot {elsewhere})"
        raise BlobMissing(f"{what}{why} in {self.store}; `perdure checkpoint ls --all` lists what is", step=step)

    def _in(self, slot: int, step: int | None) -> Commit:
        commit = self.commits.get(slot)
        what = "cannot be read" if slot in self.slots else "is not there"
        if commit is not None and slot in self.pruned:
            what = f"(step {commit.step}) was pruned"
        elif commit is not None and step is not None and commit.step != step:
            what = f"is step {commit.step}, not {step}"
        elif commit is not None:
            return commit
        raise BlobMissing(f"slot {slot} {what} in {self.store}; `perdure checkpoint ls --all` lists what is", step=step)


def read_ledger(store: Store) -> Ledger:
    """Read the marker and every epoch, slot and tombstone of ``store``. Raises `BlobMissing` if there is no run."""
    ledger = Ledger(store)
    slots, epochs, pruned = ({number_of(name) or 0 for name in store.names(f)} - {0} for f in (SLOTS, EPOCHS, PRUNED))
    if not slots and not epochs and not _is_there(store, MARKER):
        raise BlobMissing(f"there is no run in {store}: {MARKER} is not there; check the place", file=MARKER)
    marker = _read(ledger, MARKER, Marker, "nobody can open the run")
    ledger.run = marker.run if marker is not None else ""
    ledger.slots = sorted(slots)
    ledger.highest = max(slots, default=0)
    for slot in _with_gaps(ledger, slots, slot_name, ledger.highest, "steps that were saved there are gone"):
        costs = f"the step of commit {slot} cannot be restored; what is older may be taken for another branch"
        commit = _read(ledger, slot_name(slot), Commit, costs, lambda found, s=slot: found.slot == s)  # type: ignore[misc]
        if commit is not None:
            ledger.commits[slot] = commit
    _check_chain(ledger)
    _read_epochs(ledger, epochs)
    for slot in sorted(pruned):
        costs = "nothing: the commit counts as pruned"
        ledger.pruned[slot] = _read(
            ledger,
            pruned_name(slot),
            Pruned,
            costs,
            lambda found, s=slot: found.slot == s,  # type: ignore[misc]
        )
    given_up = {slot_name(slot) for slot in pruned}
    ledger.done_without = [each for each in ledger.unread if each.file in given_up]
    ledger.unread = [each for each in ledger.unread if each.file not in given_up]
    return ledger


def _is_there(store: Store, name: str) -> bool:
    try:
        return store.size(name) is not None
    except IntegrityError:  # it is, and is no plain file
        return True


def _read_epochs(ledger: Ledger, epochs: set[int]) -> None:
    costs = "nothing that was saved, but a writer of an older epoch might not be refused"
    newest = max([*epochs, *(commit.epoch for commit in ledger.commits.values())], default=0)
    for epoch in _with_gaps(ledger, epochs, epoch_name, newest, costs):
        found = _read(ledger, epoch_name(epoch), Epoch, costs, lambda found, e=epoch: found.epoch == e)  # type: ignore[misc]
        if found is not None:
            ledger.epochs[epoch] = found


def _with_gaps(
    ledger: Ledger, numbers: set[int], name_of: Callable[[int], str], highest: int, costs: str
) -> Iterator[int]:
    """All numbers up to ``highest``, those that are missing too; a gap that no run has is told as a whole."""
    before = 0
    for number in sorted(numbers | {highest} - {0}):
        if number - before > _GAP:
            why = f"{name_of(before + 1)} and {number - before - 2} more are not there; is {name_of(number)} perdure's?"
            ledger.unread.append(Unread(name_of(before + 1), why, costs))
            before = number - 1
        yield from range(before + 1, number + 1)
        before = number


def _read(
    ledger: Ledger, name: str, kind: type[R], costs: str, fits: Callable[[R], bool] = lambda found: True
) -> R | None:
    try:
        found = read_record(ledger.store, name, kind)
    except (IntegrityError, StorageError) as error:
        ledger.unread.append(Unread(name, str(error), costs))
        return None
    if not ledger.run:
        ledger.run = found.run
    if found.run != ledger.run or not fits(found):
        ledger.unread.append(Unread(name, f"{name} is of another run, or of another number than its own", costs))
        return None
    return found


def _check_chain(ledger: Ledger) -> None:
    """Epochs never fall as slots rise, and every parent is there."""
    epoch = 0
    for slot in sorted(ledger.commits):
        commit = ledger.commits[slot]
        if commit.epoch < epoch:
            costs = "it is not sure which commit is the newest"
            why = (
                f"{slot_name(slot)} is of epoch {commit.epoch}, after one of epoch {epoch}: it was not made in this run"
            )
            ledger.unread.append(Unread(slot_name(slot), why, costs))
        epoch = max(epoch, commit.epoch)


def _silent(note: Note) -> None:
    """Whoever inspects tells every damage himself."""
