"""The thread of an agent that makes generations durable, one after another, and prunes what they make superfluous.

On one node the agent writes the one part and commits. Of several nodes each agent writes its part; that of node 0
commits when the council has gathered all, and the others wait for its word.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from perdure.checkpoint import drain as draining
from perdure.checkpoint.blame import disagreement
from perdure.checkpoint.coded_packs import Base
from perdure.checkpoint.council import Council
from perdure.checkpoint.memory_packs import verify
from perdure.checkpoint.messages import Terms
from perdure.checkpoint.peer_messages import PartSaid
from perdure.checkpoint.policy import Policy
from perdure.checkpoint.unchanged import Stored, recall
from perdure.checkpoint.vocabulary import Drain, Drained, Generation
from perdure.clock import Deadline
from perdure.errors import PerdureError, Superseded, from_wire, to_wire
from perdure.process.heap import trim_heap
from perdure.state.index import RankIndex
from perdure.store import Run, Store
from perdure.upkeep.keep import parse
from perdure.upkeep.retention import Retention

__all__ = ["Drainer", "Host"]


class Host(Protocol):
    """What the drainer needs of its agent; called on the drainer's thread."""

    def packs(self, generation: Generation) -> Sequence[tuple[RankIndex, memoryview]]:
        """The sealed packs of a generation."""
        ...

    def fostered(self, generation: Generation) -> Sequence[tuple[RankIndex, memoryview]]:
        """The sealed packs that are to be made durable with it for nodes that are gone."""
        ...

    def council(self, generation: Generation) -> Council | None:
        """The nodes that make it durable together; None if this node does so alone."""
        ...

    def may_prune(self, generation: Generation) -> bool:
        """Whether nobody else is about to go on from some step."""
        ...

    def drained(self, generation: Generation, result: Drained | PerdureError) -> None:
        """A drain has ended."""
        ...

    def spared(self) -> frozenset[int]:
        """Slots that no rule gives up yet."""
        ...

    def notify(self, generation: Generation, text: str) -> None:
        """Tell the ranks of a generation what a person should know."""
        ...


class Drainer:
    """Takes orders from the agent's loop; one thread carries them out."""

    def __init__(self, store: Store, *, url: str, host: Host) -> None:
        self._store, self._url, self._host = store, url, host
        self._orders: queue.SimpleQueue[tuple[Drain, int, float] | None] = queue.SimpleQueue()
        self._count = 0
        self._stored: Stored | None = None
        self._policy = Policy()
        self._base: tuple[int, Stored] | None = None  # the generation that deltas can be made on, as it is stored
        self._submitted_s: float | None = None  # when the drain before this one was ordered, and when it ended
        self._ended_s = 0.0
        self._retention = Retention()
        self._thread = threading.Thread(target=self._work, name="drain", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def submit(self, order: Drain) -> None:
        """Drain a generation after those before it."""
        self._count += 1
        self._orders.put((order, self._count, time.monotonic()))

    def end(self, *, within_s: float) -> None:
        """No order comes any more; wait a little for what is done now."""
        self._orders.put(None)
        self._thread.join(within_s)

    def _work(self) -> None:
        while (ordered := self._orders.get()) is not None:
            order, seq, submitted_s = ordered
            generation = order.generation
            result: Drained | PerdureError
            began = time.monotonic()
            try:
                between_s = None if self._submitted_s is None else submitted_s - self._submitted_s
                self._submitted_s = submitted_s
                self._policy.paced(between_s, late=self._ended_s > submitted_s)
                slot, raw, stored = self._drain(order, seq)
                new = self._base is not None and self._base[0] == generation.id
                keep = self._policy.keeps_base(generation.lead.terms.coding) if new else None
                result = Drained(slot, raw, stored, time.monotonic() - began, keep)
            except Exception as error:  # also a bug must reach the ranks that wait, not end the thread
                result = from_wire(to_wire(error))  # without its traceback, which holds views of the segments
            self._ended_s = time.monotonic()
            self._host.drained(generation, result)
            trim_heap()  # of the frames of this step
            if not isinstance(result, PerdureError) and generation.terms is not None and generation.terms.keep:
                self._retain(generation)

    def _drain(self, action: Drain, seq: int) -> tuple[int, int, int]:
        generation = action.generation
        council = self._host.council(generation)
        if council is not None:
            return self._drain_together(action, seq, council)
        run, order = self._begin(action, seq)
        there = self._there(run, order, generation)
        if there is not None:
            return there, generation.raw_nbytes, 0
        part = self._write(run, order, action, "node0")
        assert part is not None
        try:
            self._compare(generation, part)
        except PerdureError:
            draining.withdraw(run, part.ref)
            raise
        made = draining.commit(run, order, [part.ref])
        self._remember(generation, part, made.slot)
        return made.slot, generation.raw_nbytes, part.nbytes

    def _drain_together(self, action: Drain, seq: int, council: Council) -> tuple[int, int, int]:
        """Write this node's part; then gather and commit, or wait for the commit."""
        generation, part = action.generation, None
        try:
            run, order = self._begin(action, seq)
            there = self._there(run, order, generation) if council.leads else None
            if there is not None:
                council.conclude(generation.name, slot=there)
                return there, generation.raw_nbytes, 0
            part = self._write(run, order, action, f"node{council.node}")
            if part is not None:
                self._compare(generation, part)
            mine = PartSaid(
                save=generation.name,
                step=generation.step,
                ref=None if part is None else part.ref,
                said=generation.said,
                raw_nbytes=generation.raw_nbytes,
                stored_nbytes=0 if part is None else part.nbytes,
                terms=generation.terms if generation.by != generation.session else None,
            )
            parts = [mine, *self._gathered(order, council, mine)] if council.leads else []
            if generation.terms is None and council.leads:
                order = _with_terms(order, next(each.terms for each in parts if each.terms is not None))
        except Exception as error:  # no commit was tried: what was written for it is of no use
            known = from_wire(to_wire(error))
            known.facts["final"] = True
            if council.leads:
                council.conclude(generation.name, error=known)
            else:
                council.broke(generation.name, known)
            if part is not None:
                draining.withdraw(run, part.ref)
            raise known from error
        if not council.leads:
            return self._follow(run, council, generation, part, mine)
        try:
            made = draining.commit(run, order, [each.ref for each in parts if each.ref is not None])
        except PerdureError as error:  # it may have been made all the same
            council.conclude(generation.name, error=error)
            raise
        council.conclude(generation.name, slot=made.slot)
        self._remember(generation, part, made.slot)
        return made.slot, sum(each.raw_nbytes for each in parts), sum(each.stored_nbytes for each in parts)

    def _gathered(self, order: draining.Order, council: Council, mine: PartSaid) -> list[PartSaid]:
        """The parts of the other nodes, once all are there and agree."""
        deadline = Deadline.after(council.commit_s, f"step {order.step} to be written by all nodes")
        parts = council.gather(mine.save, order.step, deadline)
        differs = disagreement(order.step, [pair for each in (mine, *parts) for pair in each.said])
        if differs is not None:
            raise differs
        return parts

    def _follow(
        self,
        run: Run,
        council: Council,
        generation: Generation,
        part: draining.WrittenPart | None,
        mine: PartSaid,
    ) -> tuple[int, int, int]:
        deadline = Deadline.after(council.commit_s, f"step {mine.step} to be committed by node 0")
        try:
            slot = council.report(mine, deadline)
        except PerdureError as error:
            if error.facts.get("final") and part is not None:
                draining.withdraw(run, part.ref)
            raise
        if part is not None and generation.by != generation.session and part.ref not in run.read_slot(slot).parts:
            draining.withdraw(run, part.ref)  # the step lay there already
            return slot, mine.raw_nbytes, 0
        self._remember(generation, part, slot)
        return slot, mine.raw_nbytes, mine.stored_nbytes

    def _there(self, run: Run, order: draining.Order, generation: Generation) -> int | None:
        """The slot of a step that another session went on from, if it was committed already and is still there.

        The session before may have committed it after this one looked; or it may have, and the store was lost since.
        """
        if generation.by == generation.session:
            return None
        found = draining.find_commit(run, order, after=None)
        if found is None or (found.session, found.seq) != generation.name or run.is_pruned(found.slot):
            return None
        return found.slot

    def _begin(self, action: Drain, seq: int) -> tuple[Run, draining.Order]:
        generation, terms = action.generation, action.generation.terms
        run = Run.open(self._store, create=not generation.run)
        if generation.run and run.marker.run != generation.run:
            raise Superseded(
                f"another run lies in {self._url} than the one that is trained: this writer must stop",
                epoch=generation.epoch,
                newer=None,
            )
        self._stored = self._stored or recall(run, action.base)
        order = draining.Order(
            epoch=generation.epoch,
            step=generation.step,
            seq=seq,
            base=action.base,
            session=generation.session,
            save=generation.seq,
            claim=generation.claim,
        )
        return run, order if terms is None else _with_terms(order, terms)

    def _write(self, run: Run, order: draining.Order, action: Drain, writer: str) -> draining.WrittenPart | None:
        """This node's part of a generation, None if it holds nothing of it."""
        packs = self._packs(action.generation)
        if not packs:
            return None
        base = None
        if action.on is not None and self._base is not None and self._base[0] == action.on.id and order.coding != "raw":
            segments = self._host.packs(action.on)
            entries = {each.entry.key: each for each in draining.entries_of(segments)}
            base = Base(action.on.step, self._base[1], segments, entries)
        return draining.write_part(
            run, order, writer=writer, packs=packs, stored=self._stored, base=base, policy=self._policy
        )

    def _packs(self, generation: Generation) -> list[tuple[RankIndex, memoryview]]:
        return [*self._host.packs(generation), *self._host.fostered(generation)]

    def _compare(self, generation: Generation, part: draining.WrittenPart) -> None:
        """See that what was written is what was sealed: memory may have rotted since.

        Once more after the bytes were read to be written, so that no moment is left out. Of an adopted step everything
        is compared, because ranks may have taken from elsewhere what is bad here.
        """
        only = part.written if generation.by == generation.session else None
        verify(self._packs(generation), file=f"the memory of step {generation.step}", only=only)

    def _remember(self, generation: Generation, part: draining.WrittenPart | None, slot: int) -> None:
        """What has become durable: so that the next save refers to it, or is made on it."""
        if part is None:
            return
        self._stored = part.stored(slot)
        if not generation.staged or generation.lead.terms.coding == "raw":
            return
        self._policy.ended(part.nbytes, generation.raw_nbytes, delta=part.delta)
        if not part.delta:
            self._base = generation.id, self._stored

    def _retain(self, generation: Generation) -> None:
        """After a commit, prune by the rules that came with it; what goes wrong is told, and no save fails by it.

        Not while another session is here: it may be about to go on from any step. Its own first commit comes soon.
        """
        if generation.terms is None or not self._host.may_prune(generation):
            return
        try:
            run = Run.open(self._store, create=False)
            told = self._retention.keep(run, parse(generation.terms.keep), spared=self._host.spared())
        except Exception as error:  # a bug too
            told = f"older steps could not be pruned ({error}); the next save tries again"
        if told is not None:
            self._host.notify(generation, told)


def _with_terms(order: draining.Order, terms: Terms) -> draining.Order:
    return replace(
        order,
        meta=terms.meta,
        metric=terms.metric,
        pinned=terms.pinned,
        coding=terms.coding,
        claim=order.claim or terms.claim,
    )
