"""Save and restore the state of a run, from one process or from every rank of many.

The path of a save: describe the live tensors, copy them into a segment of the node's agent (what no optimizer owns
before ``save`` returns, the rest on a thread until the next optimizer step), return. The agent hashes, writes, commits.

The path of a restore: all ranks line up what can be had, try the newest, vote, fall back together.

Collective calls happen on the calling thread only and only where all ranks take part: the first save, a save after the
set of tensors has changed, and restore.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from perdure.checkpoint.config import Deadlines
from perdure.checkpoint.drain import Order
from perdure.checkpoint.framework import Framework
from perdure.checkpoint.link import AgentLink
from perdure.checkpoint.messages import (
    PROTOCOL,
    Abandon,
    Adopted,
    Begin,
    Committed,
    Complete,
    Failed,
    Hello,
    Sample,
    Staged,
)
from perdure.checkpoint.restoring import Restoring
from perdure.checkpoint.saved import Outcome, Saved
from perdure.checkpoint.solo import SoloSave, drain_alone
from perdure.checkpoint.staging import Worker
from perdure.clock import Deadline
from perdure.codec.digest import digest
from perdure.errors import AgentLost, BlobMissing, CallError, DeadlineExceeded, PerdureError, from_wire, to_wire
from perdure.events import AgentLost as AgentLostFact
from perdure.events import Committed as CommittedFact
from perdure.events import Fact, Log, Notice, SaveFailed, StepSaved
from perdure.fabric import Fabric
from perdure.process.environ import Placement
from perdure.progress import Page
from perdure.shm import Segment
from perdure.state.items import Capture
from perdure.state.save import Offer, SavePlan, copy_writes, offer, settle
from perdure.store import Run, Store

__all__ = ["Checkpointer"]


class _Exchange(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What ranks tell each other before a save whose plan is new."""

    offer: Offer
    epoch: int | None
    error: dict[str, Any] | None


@dataclass(slots=True)
class _Flight:
    """A save under way, with what is needed to finish it without the agent."""

    saved: Saved
    order: Order | None = None
    solo: SoloSave | None = None
    alone: bool = False
    draining: bool = False


class Checkpointer:
    """Saves steps of a run to ``store`` and restores them. Every rank makes one and calls it alike.

    ``start_agent`` is the command that starts the node's agent; ``None`` saves without one. ``url`` names the store
    for the agent and for people.
    """

    def __init__(
        self,
        store: Store,
        *,
        url: str,
        framework: Framework,
        fabric: Fabric,
        placement: Placement,
        start_agent: Sequence[str] | None,
        log: Log,
        deadlines: Deadlines | None = None,
    ) -> None:
        self.deadlines = deadlines or Deadlines()
        self.log = log
        self.rank, self.world = fabric.rank, fabric.world
        self.session = ""
        self.base_step: int | None = None
        self._store, self._url, self._framework, self._fabric = store, url, framework, fabric
        self._placement = placement
        self._start_agent = start_agent
        self._link: AgentLink | None = None
        self._run: Run | None = None
        self._epoch: int | None = None
        self._base_slot: int | None = None
        self._base_generation: int | None = None
        self._plan: SavePlan | None = None
        self._planned_for: tuple[Any, Any] = ((), ())
        self._seq = 0
        self._last: Saved | None = None
        self._reported: set[int] = set()
        self._flights: dict[int, _Flight] = {}
        self._lock = threading.Lock()
        self._copier: Worker | None = None
        self._drainer: Worker | None = None
        self._own_segments: list[Segment] = []
        self._closed = False

    # --- public ------------------------------------------------------------------------------------------------------

    def save(
        self,
        step: int,
        tree: Mapping[str, Any],
        *,
        meta: Mapping[str, Any] | None = None,
        metric: float | None = None,
        pin: bool = False,
    ) -> Saved:
        """Save ``tree`` as ``step``; returns once training may go on. Called by every rank with the same step.

        Until ``saved.staged()`` (an optimizer in the tree waits for it by itself) nothing but the optimizer's own
        next step may be about to change parameters or optimizer state. A failure later raises from ``saved`` on every
        rank and leaves the previous step the latest.

        Raises `CallError` and its kinds for what cannot be saved, on every rank alike where ranks disagree.
        """
        began = time.perf_counter()
        self._engage()
        self._seq += 1
        saved = Saved(step, self._seq, stage_s=self.deadlines.stage_s, commit_s=self.deadlines.commit_s)
        flight = _Flight(saved)
        with self._lock:
            self._flights = {seq: each for seq, each in self._flights.items() if not each.saved.settled}
            self._flights[self._seq] = flight
        try:
            self._stage(flight, step, tree, meta, metric, pin)
        except PerdureError as error:
            saved.note_failed(error)
            if isinstance(error, CallError):
                self._abandon(flight, error)
                raise
        self._last = saved
        saved.blocked_s += time.perf_counter() - began
        if saved.error is not None:
            self._report_failure(saved)
        return saved

    def fence(self) -> None:
        """Wait until the last save has copied what the optimizer is about to change; called before each step."""
        saved = self._last
        if saved is None or saved.seq in self._reported:
            return
        began = time.perf_counter()
        saved.staged()
        saved.blocked_s += time.perf_counter() - began
        self._reported.add(saved.seq)
        if saved.error is None:
            self.tell(StepSaved(step=saved.step, blocked_s=saved.blocked_s, nbytes=saved.nbytes))

    def restore(self, tree: Mapping[str, Any], *, step: int | None = None) -> int | None:
        """Put the newest step that all ranks can have into ``tree``, in place; return it, or None if there is none.

        Any number of ranks and any cut may restore what any other saved. ``step`` asks for that step or none: if it is
        not there, that is a `BlobMissing`. A copy that does not verify is passed over for the next tier, then for the
        next older step, and the log says so. Raises `StateMismatch` before anything is written when names, shapes
        or dtypes do not fit.
        """
        self._engage()
        restoring = Restoring(
            run=self._opened(),
            fabric=self._fabric,
            framework=self._framework,
            link=None if self._link is None or self._link.lost else self._link,
            deadlines=self.deadlines,
        )
        done = restoring.run_through(tree, step=step)
        if done is None:
            return None
        self._epoch = None
        self._base_slot, self._base_generation = done.slot, done.generation
        self._plan = None
        self._last = None
        self.base_step = done.step
        if done.generation is not None and self._link is not None and self._placement.local_rank == 0:
            self._link.post(done.adoption)
        self.tell(done.fact)
        return done.step

    def steps(self) -> list[int]:
        """The committed steps of the branch that training is on, oldest first."""
        run = self._reader()
        return [] if run is None else sorted({commit.step for commit in run.chain()})

    def latest(self) -> int | None:
        """The newest committed step, None if there is none. `restore` may find a newer one in memory."""
        run = self._reader()
        head = None if run is None else run.head()
        return None if head is None else head.step

    def wait_for(self, *, step_after: int, timeout_s: float) -> int:
        """Wait until a step after ``step_after`` is committed (by whoever trains) and return it."""
        deadline = Deadline.after(timeout_s, f"a committed step after {step_after} in {self._url}")
        while True:
            latest = self.latest()
            if latest is not None and latest > step_after:
                return latest
            deadline.check(f"the newest is {latest}")
            time.sleep(min(0.2, deadline.left()))

    def close(self) -> None:
        """Wait until every save is durable or has failed, then let go of the agent. Failures are told, not raised."""
        if self._closed:
            return
        self._closed = True
        for flight in list(self._flights.values()):
            try:
                flight.saved.committed()
            except DeadlineExceeded as error:
                flight.saved.note_failed(error)
                self._report_failure(flight.saved)
            except PerdureError:
                pass  # told when it happened
        if self._link is not None:
            self._link.close()

    @property
    def page(self) -> Page | None:
        """The progress page of this attempt, shared by the node's ranks and its launcher."""
        return None if self._link is None else self._link.page

    @property
    def local_rank(self) -> int:
        """This rank's place on its node."""
        return self._placement.local_rank

    @property
    def in_flight(self) -> list[Saved]:
        """Saves that are neither durable nor failed yet."""
        return [flight.saved for flight in self._flights.values() if not flight.saved.settled]

    def engage(self) -> None:
        """Meet the other ranks and the agent now instead of at the first save or restore. Called by every rank."""
        self._engage()

    # --- meeting -----------------------------------------------------------------------------------------------------

    def _engage(self) -> None:
        """The first collective call: one session name for all ranks, the run's folder made, the agent met."""
        if self._closed:
            raise CallError("this Checkpointer is closed; make a new one")
        if self.session:
            return
        if self._placement.world != self._placement.local_world:
            raise CallError("this release saves ranks of one node; ranks of several nodes need a later one")
        proposal: dict[str, Any] = {}
        if self.rank == 0:
            try:
                self._run = Run.open(self._store, create=True, tell=self._tell_note)
                proposal = {"session": uuid.uuid4().hex}
            except PerdureError as error:
                proposal = {"error": to_wire(error)}
        answer = self._gather(msgspec.json.encode(proposal), "all ranks to open the run")[0]
        said = msgspec.json.decode(answer)
        if "error" in said:
            raise from_wire(said["error"])
        self.session = said["session"]
        self._copier = Worker("perdure-copy")
        self._drainer = Worker("perdure-drain")
        if self._start_agent is not None:
            place = self._placement
            self._link = AgentLink.open(
                Hello(
                    protocol=PROTOCOL,
                    role="rank",
                    job=place.job,
                    url=self._url,
                    attempt=place.attempt_id,
                    session=self.session,
                    rank=self.rank,
                    world=self.world,
                    local_rank=place.local_rank,
                    local_world=place.local_world,
                ),
                start=self._start_agent,
                deadline=Deadline.after(self.deadlines.agent_s, "the node's agent to start"),
                on_message=self._hear,
                on_lost=self._agent_lost,
            )

    def _gather(self, data: bytes, what: str) -> list[bytes]:
        return self._fabric.all_gather(data, deadline=Deadline.after(self.deadlines.agree_s, what))

    def _opened(self) -> Run:
        if self._run is None:
            self._run = Run.open(self._store, create=False, tell=self._tell_note)
        return self._run

    def _reader(self) -> Run | None:
        try:
            return self._opened()
        except BlobMissing:
            return None

    # --- saving ------------------------------------------------------------------------------------------------------

    def _stage(
        self,
        flight: _Flight,
        step: int,
        tree: Mapping[str, Any],
        meta: Mapping[str, Any] | None,
        metric: float | None,
        pin: bool,
    ) -> None:
        saved = flight.saved
        capture = self._captured(tree)
        plan = self._planned(capture)
        self._framework.fence(tree, self.fence)
        assert self._epoch is not None
        index = plan.index(capture, rank=self.rank, world=self.world)
        saved.nbytes = plan.raw_nbytes
        flight.order = order = Order(self._epoch, step, saved.seq, self._base_slot, dict(meta or {}), metric, pin)
        segment, release = self._segment(flight, plan)
        flight.solo = SoloSave(saved, order, index, segment, plan.raw_nbytes, release)
        copy_writes(plan, capture, segment.address, which=lambda owned: not owned)
        shared = {item.key: digest(msgspec.json.encode(item.value)) for item in capture.values if not item.local}

        def finish() -> None:
            copy_writes(plan, capture, segment.address, which=lambda owned: owned)
            sample = _sample(plan, capture, saved.seq)
            saved.note_staged()
            self._staged(flight, index, sample, shared, plan.raw_nbytes)

        assert self._copier is not None
        self._copier.submit(finish, lambda error: self._stage_failed(flight, error))

    def _captured(self, tree: Mapping[str, Any]) -> Capture:
        try:
            return self._framework.capture(tree)
        except CallError as error:
            if self._epoch is None:  # the others are about to wait for this rank's offer: tell them
                nothing = offer(Capture((), ()), rank=self.rank)
                self._gather(msgspec.json.encode(_Exchange(nothing, None, to_wire(error))), "all ranks to call save")
            raise

    def _planned(self, capture: Capture) -> SavePlan:
        keys = tuple((item.key, item.local) for item in capture.values)
        if self._plan is not None and self._planned_for == (capture.tensors, keys) and self._epoch is not None:
            return self._plan  # equal tuples of the very same items compare by identity
        mine = offer(capture, rank=self.rank)
        if self._plan is not None and self._plan.offer == mine and self._epoch is not None:
            self._planned_for = (capture.tensors, keys)
            return self._plan
        epoch, problem = self._epoch, None
        if self.rank == 0 and epoch is None:
            try:
                place = self._placement
                epoch = self._opened().claim_epoch(f"{place.job} attempt {place.attempt} pid {os.getpid()}")
            except PerdureError as error:
                problem = to_wire(error)
        told = self._gather(msgspec.json.encode(_Exchange(mine, epoch, problem)), "all ranks to call save")
        exchanged = [msgspec.json.decode(each, type=_Exchange) for each in told]
        for each in exchanged:
            if each.error is not None:
                raise from_wire(each.error)
        plan = settle([each.offer for each in exchanged], rank=self.rank)
        self._plan, self._epoch = plan, exchanged[0].epoch
        self._planned_for = (capture.tensors, keys)
        return plan

    def _segment(self, flight: _Flight, plan: SavePlan) -> tuple[Segment, Callable[[], None]]:
        nbytes = max(plan.pack.total_nbytes, 1)
        link = self._link
        if link is not None and not link.lost:
            begin = Begin(seq=flight.saved.seq, step=flight.saved.step, nbytes=nbytes, plan_id=plan.plan_id)
            wait = Deadline.after(self.deadlines.stage_s, "a free segment: earlier saves are still being written")
            try:
                return link.grant(begin, wait), lambda: None
            except AgentLost:
                pass  # told by the link; this very save goes on without the agent
        flight.alone = True
        with self._lock:
            fitting = next((each for each in self._own_segments if each.nbytes >= nbytes), None)
            if fitting is not None:
                self._own_segments.remove(fitting)
        segment = fitting or Segment.create(nbytes, label="solo")

        def release() -> None:
            with self._lock:
                self._own_segments.append(segment)

        return segment, release

    def _staged(
        self, flight: _Flight, index: Any, sample: list[Sample], shared: dict[str, str], raw_nbytes: int
    ) -> None:
        """On the copier's thread: hand the save over to the agent, or drain it here."""
        link = self._link
        if not flight.alone and link is not None:
            assert flight.order is not None
            staged = Staged(
                seq=flight.saved.seq,
                step=flight.saved.step,
                epoch=flight.order.epoch,
                base_slot=self._base_slot,
                base_generation=self._base_generation,
                index=index,
                samples=sample,
                value_digests=shared,
                raw_nbytes=raw_nbytes,
                meta=dict(flight.order.meta or {}),
                metric=flight.order.metric,
                pinned=flight.order.pinned,
            )
            try:
                link.post(staged)
                link.populate_spares()
                return
            except AgentLost:
                pass
        self._drain_alone(flight)

    def _drain_alone(self, flight: _Flight) -> None:
        with self._lock:
            if flight.solo is None or flight.saved.settled or flight.draining:
                return
            flight.draining = True
        solo = flight.solo
        assert self._drainer is not None
        self._drainer.submit(
            lambda: self._solo(flight, solo),
            lambda error: self._failed(flight.saved, error),
        )

    def _solo(self, flight: _Flight, solo: SoloSave) -> None:
        drain_alone(self._opened(), solo, rank=self.rank, world=self.world, commit_s=self.deadlines.commit_s)
        self._committed(flight.saved)

    # --- hearing -----------------------------------------------------------------------------------------------------

    def _hear(self, message: Any) -> None:
        """A message of the agent, on the link's thread."""
        if isinstance(message, Adopted):
            if message.error is not None:
                self.tell(Notice(text=f"the restored step is in memory only: {message.error['message']}"))
            return
        flight = self._flights.get(message.seq)
        if flight is None:
            return
        match message:
            case Complete():
                flight.saved.note_memory()
            case Committed():
                flight.saved.note_committed(
                    Outcome(message.slot, message.raw_bytes, message.stored_bytes, message.seconds)
                )
                self._committed(flight.saved)
            case Failed():
                self._failed(flight.saved, from_wire(message.error))

    def _agent_lost(self, error: AgentLost) -> None:
        """On the link's thread: say so, and finish what was under way from this rank's own mapping of it."""
        self.tell(
            AgentLostFact(reason=f"{error}; this rank saves by itself from now on", pid=error.facts.get("pid")),
            everywhere=True,
        )
        for flight in list(self._flights.values()):
            if not flight.saved.settled and flight.saved.is_staged:
                self._drain_alone(flight)

    def _stage_failed(self, flight: _Flight, error: PerdureError) -> None:
        self._abandon(flight, error)
        self._failed(flight.saved, error)

    def _abandon(self, flight: _Flight, error: PerdureError) -> None:
        if self._link is not None and not self._link.lost and not flight.alone:
            try:
                self._link.post(Abandon(seq=flight.saved.seq, error=to_wire(error)))
            except AgentLost:
                pass  # then nobody waits for this rank

    def _committed(self, saved: Saved) -> None:
        outcome = saved.committed()
        self.tell(
            CommittedFact(
                step=saved.step,
                slot=outcome.slot,
                tier="disk",
                seconds=outcome.seconds,
                raw_bytes=outcome.raw_nbytes,
                stored_bytes=outcome.stored_nbytes,
            )
        )

    def _failed(self, saved: Saved, error: PerdureError) -> None:
        saved.note_failed(error)
        self._report_failure(saved)

    def _report_failure(self, saved: Saved) -> None:
        try:
            latest = self.latest()
        except PerdureError:
            latest = None
        self.tell(SaveFailed(step=saved.step, error=str(saved.error), latest=latest), everywhere=True)

    def tell(self, fact: Fact, *, everywhere: bool = False) -> None:
        """Print on rank 0, and on every rank what concerns each; record always."""
        if everywhere or self.rank == 0:
            self.log.emit(fact)
        else:
            self.log.record(fact)

    def _tell_note(self, note: Any) -> None:
        self.tell(Notice(text=note.message))


def _sample(plan: SavePlan, capture: Capture, seq: int) -> list[Sample]:
    """The digest of one replicated piece, another at each save, as this rank holds it."""
    if not plan.replicas:
        return []
    name, box = plan.replicas[seq % len(plan.replicas)]
    for item in capture.tensors:
        if item.name == name and not item.local:
            for held in item.held:
                if held.box == box:
                    return [Sample(tensor=name, digest=digest(held.memory.view()))]
    return []
