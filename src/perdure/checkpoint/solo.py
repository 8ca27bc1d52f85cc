"""A rank that saves by itself, when its node's agent is gone or none is wanted.

It drains its own segment under a writer name of its own; the lowest rank waits for the parts of all and commits, the
others wait for that commit. All of it in the background, under deadlines.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from perdure.checkpoint import drain
from perdure.checkpoint.packs import seal_pack
from perdure.checkpoint.saved import Outcome, Saved
from perdure.clock import Deadline
from perdure.shm import Segment
from perdure.state.index import RankIndex
from perdure.store import Run

__all__ = ["SoloSave", "drain_alone"]


@dataclass(frozen=True, slots=True)
class SoloSave:
    """A staged save and all that is needed to make it durable without an agent."""

    saved: Saved
    order: drain.Order
    index: RankIndex
    segment: Segment
    raw_nbytes: int
    release: Callable[[], None]


def drain_alone(run: Run, save: SoloSave, *, rank: int, world: int, commit_s: float) -> None:
    """Make ``save`` durable and tell its handle; called on a background thread of every rank."""
    began = time.monotonic()
    deadline = Deadline.after(commit_s, f"the parts of step {save.order.step}")
    try:
        already = run.head()
        if already is not None and already.epoch == save.order.epoch and already.step == save.order.step:
            outcome = Outcome(already.slot, save.raw_nbytes, save.raw_nbytes, 0.0)  # the agent had done it
        else:
            nbytes = seal_pack(save.index, save.segment.view)
            drain.write_part(run, save.order, writer=f"rank{rank}", packs=[(save.index, save.segment.view[:nbytes])])
            if rank == 0:
                writers = [f"rank{each}" for each in range(world)]
                parts = drain.await_parts(run, save.order, writers=writers, deadline=deadline)
                commit = drain.commit(run, save.order, parts)
            else:
                commit = drain.await_commit(run, save.order, deadline=deadline)
            outcome = Outcome(commit.slot, save.raw_nbytes, nbytes, time.monotonic() - began)
    finally:
        save.release()
    save.saved.note_committed(outcome)
