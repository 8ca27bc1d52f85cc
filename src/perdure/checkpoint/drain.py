"""Make a step durable: packs, then the part that names them, then, by one writer alone, the slot.

The agent runs this for its node; a rank whose agent is gone runs it for itself. Writers meet in the store and nowhere
else: whoever commits waits for the parts of all others, whose names it knows, under a deadline that names who is late.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from perdure.checkpoint.packs import store_pack
from perdure.clock import Deadline
from perdure.errors import DeadlineExceeded
from perdure.state.index import RankIndex
from perdure.store import Commit, Part, PartRef, Run
from perdure.store.places import part_name
from perdure.store.records import digest_of

__all__ = ["Order", "await_commit", "await_parts", "commit", "write_part"]

_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Order:
    """Which step is to become durable, and what its commit says. ``base`` is the slot that training went on from."""

    epoch: int
    step: int
    seq: int
    base: int | None
    meta: Mapping[str, Any] | None = None
    metric: float | None = None
    pinned: bool = False


def write_part(run: Run, order: Order, *, writer: str, packs: Sequence[tuple[RankIndex, memoryview]]) -> PartRef:
    """Store the sealed packs of ``writer``, each the whole of its view, and the part that names them."""
    refs, indexes = [], []
    for number, (index, view) in enumerate(packs):
        refs.append(
            store_pack(run, view, epoch=order.epoch, step=order.step, seq=order.seq, writer=writer, number=number)
        )
        indexes.append(index)
    part = Part(
        run=run.marker.run,
        writer=writer,
        epoch=order.epoch,
        step=order.step,
        seq=order.seq,
        packs=tuple(refs),
        index=msgspec.Raw(msgspec.json.encode(indexes)),
    )
    return run.write_part(part)


def commit(run: Run, order: Order, parts: Sequence[PartRef]) -> Commit:
    """Create the slot. The parent is this epoch's last commit, else what training went on from."""
    head = run.head()
    parent = head.slot if head is not None and head.epoch == order.epoch else order.base
    return run.commit(
        epoch=order.epoch,
        parent=parent,
        step=order.step,
        parts=parts,
        meta=order.meta or {},
        metric=order.metric,
        pinned=order.pinned,
    )


def await_parts(run: Run, order: Order, *, writers: Sequence[str], deadline: Deadline) -> list[PartRef]:
    """Wait until every writer's part is in the store; `DeadlineExceeded` names those that are missing."""
    names = {w: part_name(epoch=order.epoch, step=order.step, seq=order.seq, writer=w) for w in writers}
    refs: dict[str, PartRef] = {}
    while True:
        for writer, name in names.items():
            if writer not in refs and run.store.size(name) is not None:
                data = run.store.read(name)
                refs[writer] = PartRef(name=name, nbytes=data.nbytes, digest=digest_of(data))
        if len(refs) == len(names):
            return [refs[writer] for writer in writers]
        deadline.check(", ".join(writer for writer in writers if writer not in refs))
        time.sleep(_POLL_S)


def await_commit(run: Run, order: Order, *, deadline: Deadline) -> Commit:
    """Wait until the writer that commits has done so; for those that do not."""
    while True:
        head = run.head()
        if head is not None and head.epoch == order.epoch and head.step == order.step:
            return head
        try:
            deadline.check("the commit of the lowest rank")
        except DeadlineExceeded as error:
            error.facts["step"] = order.step
            raise
        time.sleep(_POLL_S)
