"""Make a step durable: packs, then the part that names them, then, by one writer alone, the slot.

The agent runs this for its node; a rank whose agent is gone runs it for itself. Writers meet in the store and nowhere
else: whoever commits waits for the parts of all others, whose names it knows, under a deadline that names who is late.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from perdure.checkpoint.packs import store_pack
from perdure.clock import Deadline
from perdure.errors import IntegrityError, PerdureError
from perdure.state.index import RankIndex
from perdure.store import Commit, PackRef, Part, PartRef, Run
from perdure.store.places import part_name
from perdure.store.records import digest_of

__all__ = ["Order", "await_commit", "await_parts", "commit", "find_commit", "withdraw", "write_part"]

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
    """Store the sealed packs of ``writer``, each the whole of its view, and the part that names them.

    After a failure the packs that were written are deleted again: no commit names them, and a full disk wants them.
    """
    refs: list[PackRef] = []
    try:
        for number, (_, view) in enumerate(packs):
            refs.append(
                store_pack(run, view, epoch=order.epoch, step=order.step, seq=order.seq, writer=writer, number=number)
            )
        part = Part(
            run=run.marker.run,
            writer=writer,
            epoch=order.epoch,
            step=order.step,
            seq=order.seq,
            packs=tuple(refs),
            index=msgspec.Raw(msgspec.json.encode([index for index, _ in packs])),
        )
        return run.write_part(part)
    except PerdureError:
        for ref in refs:
            with suppress(PerdureError):  # the first error counts
                run.store.delete(ref.name)
        raise


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


def withdraw(run: Run, ref: PartRef) -> None:
    """Delete a part and its packs, which no commit names nor ever will; what cannot be deleted stays."""
    with suppress(PerdureError):
        part = run.read_part(ref)
        run.store.delete(ref.name)
        for pack in part.packs:
            run.store.delete(pack.name)


def find_commit(run: Run, order: Order, *, after: int | None) -> Commit | None:
    """The commit of this save, if it was made: of this epoch and step, above slot ``after``."""
    found = None
    try:
        for each in run.chain():
            if each.epoch != order.epoch or (after is not None and each.slot <= after):
                break
            if each.step == order.step:
                found = each
    except IntegrityError:
        pass  # a damaged slot lies in between; what lies below it was there before
    return found


def await_parts(
    run: Run, order: Order, *, writers: Sequence[str], deadline: Deadline, heed: Callable[[], None] = lambda: None
) -> list[PartRef]:
    """Wait until every writer's part is in the store; `DeadlineExceeded` names those that are missing.

    ``heed`` is called now and then; what it raises ends the wait.
    """
    names = {w: part_name(epoch=order.epoch, step=order.step, seq=order.seq, writer=w) for w in writers}
    refs: dict[str, PartRef] = {}
    while True:
        for writer, name in names.items():
            if writer not in refs and run.store.size(name) is not None:
                data = run.store.read(name)
                refs[writer] = PartRef(name=name, nbytes=data.nbytes, digest=digest_of(data))
        if len(refs) == len(names):
            return [refs[writer] for writer in writers]
        heed()
        deadline.check(", ".join(writer for writer in writers if writer not in refs))
        time.sleep(_POLL_S)


def await_commit(
    run: Run, order: Order, *, after: int | None, deadline: Deadline, heed: Callable[[], None] = lambda: None
) -> Commit:
    """Wait until the writer that commits has done so, above slot ``after``; for those that do not commit.

    ``heed`` is called now and then; what it raises ends the wait.
    """
    while True:
        try:
            heed()
            deadline.check("the commit of rank 0")
        except PerdureError:
            if (found := find_commit(run, order, after=after)) is not None:
                return found  # it was made before that
            raise
        if (found := find_commit(run, order, after=after)) is not None:
            return found
        time.sleep(_POLL_S)
