"""A rank that saves by itself, when its node's agent is gone or none is wanted.

It drains its own segment under a writer name of its own; the lowest rank waits for the parts of all and commits, the
others wait for that commit. All of it in the background, under deadlines, and given up together (`notes`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from perdure.checkpoint import drain
from perdure.checkpoint.blame import another_save, disagreement
from perdure.checkpoint.memory_packs import seal
from perdure.checkpoint.notes import FailureNotes
from perdure.checkpoint.policy import Policy
from perdure.checkpoint.saved import Outcome, Saved
from perdure.checkpoint.unchanged import Stored, recall
from perdure.clock import Deadline
from perdure.errors import PerdureError
from perdure.shm import Segment
from perdure.state.index import RankIndex
from perdure.store import Commit, Run

__all__ = ["SoloSave", "drain_alone"]

_STEP = "\0step"  # among what a rank says of a save; no tensor has such a name
Packs = Sequence[tuple[RankIndex, memoryview]]


@dataclass(frozen=True, slots=True)
class SoloSave:
    """A staged save and all that is needed to make it durable without an agent."""

    saved: Saved
    order: drain.Order
    index: RankIndex
    segment: Segment
    raw_nbytes: int
    release: Callable[[], None]
    said: Mapping[str, str] = field(default_factory=dict)
    """Digests of what this rank holds in common with others."""


def drain_alone(
    run: Run,
    save: SoloSave,
    *,
    rank: int,
    world: int,
    commit_s: float,
    after: int | None,
    notes: FailureNotes,
    stored: Stored | None,
    policy: Policy,
) -> tuple[Outcome, Stored | None]:
    """Make ``save`` durable; called on a background thread of every rank, and gives its segment back in any case.

    ``after`` is the newest slot that this rank knows of: what was committed up to there is no commit of this save.
    ``stored`` is what this rank stored last; what it has stored now comes back, None if that is not known. ``policy``
    chooses how it is coded, without deltas: no earlier step is kept in memory.
    """
    began = time.monotonic()
    deadline = Deadline.after(commit_s, f"step {save.order.step} to be whole and committed")
    try:
        already = drain.find_commit(run, save.order, after=after)
        if already is not None:  # the agent had done it, but not lived to say so
            return Outcome(already.slot, save.raw_nbytes, save.raw_nbytes, 0.0), None
        nbytes = seal(save.index, save.segment.view)
        stored = stored or recall(run, save.order.base)
        packs = [(save.index, save.segment.view[:nbytes])]
        if rank == 0:
            made, part = _lead(
                run, save, packs, world=world, deadline=deadline, notes=notes, stored=stored, policy=policy
            )
        else:
            notes.say(save.order.seq, {**save.said, _STEP: str(save.order.step)})
            part = drain.write_part(run, save.order, writer=f"rank{rank}", packs=packs, stored=stored, policy=policy)
            made = _follow(run, save.order, part, deadline=deadline, after=after, notes=notes)
        return Outcome(made.slot, save.raw_nbytes, part.nbytes, time.monotonic() - began), part.stored(made.slot)
    finally:
        save.release()


def _lead(
    run: Run,
    save: SoloSave,
    packs: Packs,
    *,
    world: int,
    deadline: Deadline,
    notes: FailureNotes,
    stored: Stored | None,
    policy: Policy,
) -> tuple[Commit, drain.WrittenPart]:
    """Rank 0: write, wait for the others, compare, commit. What fails before the commit is tried is final."""
    order = save.order
    writers = [f"rank{each}" for each in range(world)]
    mine = None
    try:
        mine = drain.write_part(run, order, writer=writers[0], packs=packs, stored=stored, policy=policy)

        def heed() -> None:
            notes.heed(order.seq)
            for rank in range(1, world):  # a rank that saves another step writes another part than is waited for
                step = int(notes.said(order.seq, rank).get(_STEP, order.step))
                if step != order.step:
                    raise another_save(order.step, step, seq=order.seq, rank=rank)

        parts = drain.await_parts(run, order, writers=writers, deadline=deadline, heed=heed)
        others = [(rank, notes.said(order.seq, rank)) for rank in range(1, world)]
        for _, said in others:
            said.pop(_STEP, None)
        differs = disagreement(order.step, [(0, save.said), *others])
        if differs is not None:
            raise differs
    except PerdureError as error:
        error.facts["final"] = True
        if mine is not None:
            drain.withdraw(run, mine.ref)
        raise
    return drain.commit(run, order, parts), mine


def _follow(
    run: Run,
    order: drain.Order,
    mine: drain.WrittenPart,
    *,
    deadline: Deadline,
    after: int | None,
    notes: FailureNotes,
) -> Commit:
    """Another rank, whose part is written: wait for the commit of rank 0."""
    try:
        return drain.await_commit(run, order, after=after, deadline=deadline, heed=lambda: notes.heed(order.seq))
    except PerdureError as error:
        if error.facts.get("final"):
            drain.withdraw(run, mine.ref)
        raise
