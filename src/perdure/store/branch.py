"""The steps that a run has: the commits of the branch that training is on, past damage, without those given up."""

from __future__ import annotations

from collections.abc import Iterator

from perdure.errors import BlobCorrupt, BlobMissing
from perdure.store.lineage import Note, Run
from perdure.store.records import Commit

__all__ = ["branch", "commit_of", "newest", "standing"]


def branch(run: Run) -> Iterator[Commit]:
    """The commits of the branch that training is on, newest first, past slots that cannot be read, which are told."""
    start: int | None = None
    while True:
        try:
            yield from run.chain(start=start)
            return
        except (BlobCorrupt, BlobMissing) as error:
            slot = error.facts.get("slot")
            if not isinstance(slot, int):
                raise
            run.tell(
                Note(f"commit {slot} is passed over, and what is older may be of another branch: {error}", str(slot))
            )
            start = run.slot_below(slot)
            if start is None:
                return


def standing(run: Run) -> Iterator[Commit]:
    """The commits of the branch that are still steps, newest first."""
    gone = run.pruned()
    return (commit for commit in branch(run) if commit.slot not in gone)


def newest(run: Run) -> Commit | None:
    """The newest step; None if there is none. Usually the head, which is never pruned unless it cannot be read."""
    head = run.head()
    if head is None or not run.is_pruned(head.slot):
        return head
    return next(standing(run), None)


def commit_of(run: Run, *, step: int | None, slot: int | None = None) -> Commit:
    """The newest commit, or the newest of ``step``, or the one in ``slot`` on whichever branch it is.

    Raises `BlobMissing` if there is none, or if it was given up; the sentence says which, and where else a step is.
    """
    if slot is not None:
        found = run.read_slot(slot)
        if run.is_pruned(slot):
            raise BlobMissing(
                f"slot {slot} (step {found.step}) was pruned; `perdure checkpoint ls` lists what is there"
            )
        if step is not None and found.step != step:
            raise BlobMissing(f"slot {slot} is step {found.step}, not {step}; leave one of them out", step=step)
        return found
    if step is None:
        last = newest(run)
        if last is None:
            raise BlobMissing(f"there is no committed step in {run.store}; check the place", step=None)
        return last
    gone = run.pruned()
    there = [commit for commit in branch(run) if commit.step == step]
    for commit in there:
        if commit.slot not in gone:
            return commit
    raise BlobMissing(f"the committed step {step} {_why_not(run, step, pruned=bool(there))}", step=step)


def _why_not(run: Run, step: int, *, pruned: bool) -> str:
    if pruned:
        return "was pruned; `perdure checkpoint ls` lists what is there"
    for slot in run.slots():
        try:
            elsewhere = run.read_slot(slot).step == step and not run.is_pruned(slot)
        except (BlobCorrupt, BlobMissing):
            continue
        if elsewhere:
            return f"is on a branch that training left; ask for slot={slot} to go back to it"
    return "is not there; `perdure checkpoint ls` lists what is"
