"""Save and restore the state of a run, from one process or from every rank of many.

The path of a save: describe the live tensors, copy them into a segment of the node's agent (what no optimizer owns
before ``save`` returns, the rest on a thread until the next optimizer step), return. The agent hashes, writes, commits.

The path of a restore: all ranks line up what can be had, try the newest, vote, fall back together.

Collective calls happen on the calling thread only and only where all ranks take part: the first save, a save after the
set of tensors has changed, and restore.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from perdure.checkpoint.asked import checked_bytes, checked_metric, checked_step, checked_tier
from perdure.checkpoint.config import Deadlines
from perdure.checkpoint.drain import Order
from perdure.checkpoint.flights import Flight, Flights
from perdure.checkpoint.framework import Framework
from perdure.checkpoint.link import AgentLink
from perdure.checkpoint.meeting import Meeting, Peers
from perdure.checkpoint.messages import Adopted, Bounds, Notify, Reached
from perdure.checkpoint.notes import FailureNotes, Notes
from perdure.checkpoint.opened import OpenedRun
from perdure.checkpoint.planning import Planner
from perdure.checkpoint.remote import Remote
from perdure.checkpoint.restoring import Restoring
from perdure.checkpoint.saved import Saved
from perdure.checkpoint.staging import Stager
from perdure.clock import Deadline
from perdure.errors import AgentLost, CallError, PerdureError, from_wire, to_wire
from perdure.events import Fact, Log, Notice, RestoreSkipped, StepSaved
from perdure.fabric import Fabric
from perdure.process.environ import Placement
from perdure.progress import Page
from perdure.state.coding import checked_coding
from perdure.store import Store
from perdure.upkeep.keep import Keep, as_rules, text_of

__all__ = ["Checkpointer"]


class Checkpointer:
    """Saves steps of a run to ``store`` and restores them. Every rank makes one and calls it alike.

    ``start_agent`` is the command that starts the node's agent; ``None`` saves without one. ``url`` names the store
    for the agent and for people. ``notes`` carries failures between ranks that save without an agent. ``keep`` says
    which steps stay once newer ones are committed; by default all do. ``budget_bytes`` bounds the memory that a restore
    takes for reading what does not go straight into its final place. ``coding`` is "raw" or "lossless". ``remote`` is
    the store that committed steps are carried to.
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
        notes: Notes | None = None,
        deadlines: Deadlines | None = None,
        keep: Keep | None = None,
        budget_bytes: int = 256 << 20,
        coding: str = "raw",
        bounds: Bounds | None = None,
        remote: Remote | None = None,
    ) -> None:
        if not isinstance(log, Log):
            raise CallError(f"log is a {type(log).__name__}; give a perdure.events.Log, or leave it out")
        self.deadlines = deadlines or Deadlines()
        self._budget_bytes = checked_bytes("budget_bytes", budget_bytes)
        self._coding = checked_coding(coding)
        self._keep = () if keep is None else as_rules(keep)
        self.log = log
        self.rank, self.world = fabric.rank, fabric.world
        self.session = ""
        self._url, self._framework, self._fabric = url, framework, fabric
        self._placement = placement
        self._start_agent, self._bounds = start_agent, bounds or Bounds()
        self._notes = notes
        self._link: AgentLink | None = None
        self._peers: Peers | None = None
        self._page: Page | None = None
        self._remote = remote
        self._run = OpenedRun(store, url=url, stall_s=self.deadlines.stall_s, tell=self._say_once, remote=remote)
        self._base_slot: int | None = None
        self._base_generation: int | None = None
        self._planner = Planner(
            framework=framework,
            fabric=fabric,
            placement=placement,
            run=self._run.get,
            agree_s=self.deadlines.agree_s,
        )
        self._seq = 0
        self._last: Saved | None = None
        self._reported = 0
        self._said: set[str] = set()
        self._flights = Flights(
            rank=self.rank,
            world=self.world,
            commit_s=self.deadlines.commit_s,
            run=self._run.get,
            latest=self.latest,
            tell=self.tell,
            keep=self._keep,
            remote=remote,
        )
        self._stager = Stager(
            flights=self._flights,
            deadlines=self.deadlines,
            copier=framework.copier(self._say_once),
            label=f"{placement.job}.alone",
        )
        self._looked_back = False
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
        tier: str = "disk",
    ) -> Saved:
        """Save ``tree`` as ``step``; returns once training may go on. Called by every rank with the same step.

        Until ``saved.staged()`` (an optimizer in the tree waits for it by itself) nothing but the optimizer's own
        next step may be about to change parameters or optimizer state. A failure later raises from ``saved`` on every
        rank and leaves the previous step the latest.

        ``step`` is below 10^12, ``metric`` (for ``keep`` and for people) a finite number. ``tier="memory"`` saves to
        the memory of the node's agent (and, of several nodes, of a partner's) and no further: it costs no I/O and lasts
        until the next save. A restore may find it, and then it becomes durable; if nobody comes back, the agent of a
        job on one node writes it when it leaves, those of several nodes do not.
        ``tier="remote"`` asks for this very step to be carried to the remote store once it is committed.

        Raises `CallError` and its kinds for what cannot be saved, on every rank alike where ranks disagree.
        """
        began = time.perf_counter()
        step, metric = checked_step(step), checked_metric(metric)
        durable = checked_tier(tier, remote=self._remote is not None)
        self.engage()
        if not durable and not self.has_agent:
            return self._no_memory(step)
        self._seq += 1
        to_be_told_s = self.deadlines.agent_s  # whoever misses a deadline is named by the agent, or by rank 0
        saved = Saved(
            step,
            self._seq,
            stage_s=self.deadlines.stage_s + to_be_told_s,
            commit_s=self.deadlines.commit_s + to_be_told_s,
            durable=durable,
        )
        flight = self._flights.add(saved)
        flight.carry = self._flights.far.begin(saved, asked=tier == "remote", alone=not self.has_agent)
        if self._peers is None:
            why = "no other node keeps a copy of this save: there is one node only, or no agent"
            saved.note_peers(CallError(why, tier="peer"))
        elif not self.has_agent:
            saved.note_peers(AgentLost("no other node keeps a copy of this save: an agent is gone", tier="peer"))
        try:
            self._stage(flight, step, tree, meta, metric, pin)
        except BaseException as error:
            known = error if isinstance(error, PerdureError) else from_wire(to_wire(error))
            self._flights.abandon(flight, known)
            if isinstance(error, CallError) or not isinstance(error, PerdureError):
                saved.note_failed(known)
                raise
            self._flights.failed(saved, error)
        before, self._last = self._last, saved
        if before is not None and step <= before.step:
            self._say_once(
                f"step {step} was saved after step {before.step}: it is the newest now, and a restore takes it; steps "
                "usually rise"
            )
        saved.blocked_s += time.perf_counter() - began
        return saved

    def _no_memory(self, step: int) -> Saved:
        """A save to memory that nobody has."""
        if self._start_agent is None:
            raise CallError('tier="memory" needs the node\'s agent; this Checkpointer was made without one')
        saved = Saved(step, 0, stage_s=0.0, commit_s=0.0, durable=False)
        saved.note_failed(AgentLost(f"step {step} was not saved: it was to be in the agent's memory, and that is gone"))
        return saved

    def fence(self) -> None:
        """Wait until the last save has copied what the optimizer is about to change; called before each step."""
        saved = self._last
        if saved is None or (saved.seq == self._reported and saved.is_staged):
            return
        began = time.perf_counter()
        self._stager.fence(saved)
        saved.blocked_s += time.perf_counter() - began
        if saved.error is None and saved.seq != self._reported:
            memory = self.has_agent
            self.tell(StepSaved(step=saved.step, blocked_s=saved.blocked_s, nbytes=saved.nbytes, memory=memory))
        self._reported = saved.seq

    def restore(self, tree: Mapping[str, Any], *, step: int | None = None, slot: int | None = None) -> int | None:
        """Put the newest step that all ranks can have into ``tree``, in place; return it, or None if there is none.

        Any number of ranks and any cut may restore what any other saved. ``step`` asks for that step or none: if it is
        not there, that is a `BlobMissing`. ``slot`` asks for a commit by its number, on whichever branch it is. A copy
        that does not verify is passed over for the next tier, then for the next older step, and the log says so. Raises
        `StateMismatch` before anything is written when names, shapes or dtypes do not fit.
        """
        self.engage()
        self._flights.settle()
        restoring = Restoring(
            run=self._run.get(),
            fabric=self._fabric,
            framework=self._framework,
            link=None if self._link is None or self._link.lost else self._link,
            deadlines=self.deadlines,
            budget_bytes=self._budget_bytes,
            node=self._placement.node,
            peers=self._peers,
            url=self._url,
            copies=self._run.copies(),
        )
        done = restoring.run_through(tree, step=step, slot=slot)
        if done is None:
            self.tell(RestoreSkipped(where=self._url))
            return None
        self._planner.forget()
        self._base_slot = done.slot
        self._base_generation = None if done.adoption is None else done.adoption.generation
        self._last = None
        if done.adoption is not None and self._link is not None and self._placement.local_rank == 0:
            with suppress(AgentLost):  # told by the link; the step is restored all the same
                self._link.post(done.adoption)
        self.tell(done.fact, everywhere=bool(done.fact.notes))  # what was passed over may concern one rank alone
        return done.step

    def steps(self) -> list[int]:
        """The committed steps of the branch that training is on, oldest first, those of the remote store among them."""
        return self._run.steps()

    def latest(self) -> int | None:
        """The newest committed step, None if there is none. `restore` may find a newer one in memory."""
        return self._run.latest()

    def wait_for(self, *, step_after: int, timeout_s: float) -> int:
        """Wait until a step after ``step_after`` is committed (by whoever trains) and return it.

        For a process that only reads, such as an evaluator: it needs no agent and no process group, and the run need
        not have begun. Raises `DeadlineExceeded`, which says how far the run is, after ``timeout_s``.
        """
        return self._run.wait_for(step_after=step_after, timeout_s=timeout_s)

    def close(self, *, leaving_within_s: float | None = None) -> None:
        """Wait until every save is durable or has failed, then let go of the agent. Failures are told, not raised.

        A rank that fails gives ``leaving_within_s``: then a save counts as soon as the agent holds all of it, and no
        wait is longer.
        """
        if self._closed:
            return
        self._closed = True
        self._flights.settle(leaving_within_s=leaving_within_s)
        if self._last is not None and self._last.is_staged:
            self.fence()  # nobody else will say how long the last save took
        self._flights.end(carry_s=self.deadlines.commit_s if leaving_within_s is None else 0.0)
        self._stager.end()
        if self._link is not None:
            self._link.close()

    @property
    def page(self) -> Page | None:
        """The progress page of this attempt, shared by the node's ranks and its launcher."""
        return self._page

    def word_of_rank_0(self, value: Any, what: str) -> Any:
        """What rank 0 passes here, on every rank: plain JSON values. Called by all ranks together."""
        told = self._fabric.all_gather(
            msgspec.json.encode(value if self.rank == 0 else None),
            deadline=Deadline.after(self.deadlines.agree_s, what),
        )
        return msgspec.json.decode(told[0])

    @property
    def several_nodes(self) -> bool:
        """Whether ranks of more than one node take part, as their agents know."""
        return self._peers is not None

    @property
    def has_agent(self) -> bool:
        """Whether the node's agent is there, and of several nodes those of all."""
        return self._link is not None and not self._link.lost

    @property
    def local_rank(self) -> int:
        """This rank's place on its node."""
        return self._placement.local_rank

    @property
    def in_flight(self) -> list[Saved]:
        """Saves that are neither durable nor failed yet."""
        return self._flights.under_way

    def engage(self) -> None:
        """Meet the other ranks and the agent now instead of at the first save or restore. Called by every rank.

        The first collective call: one session name for all ranks, the run's folder made, the agent met.
        """
        if self._closed:
            raise CallError("this Checkpointer is closed; make a new one")
        if self.session:
            return
        met = Meeting(
            url=self._url,
            open_run=self._run.create,
            fabric=self._fabric,
            placement=self._placement,
            start_agent=self._start_agent,
            bounds=self._bounds,
            deadlines=self.deadlines,
            on_message=self._hear,
            on_lost=self._flights.agent_lost,
            tell=self.tell,
        ).hold()
        self._link, self._page, self._placement = met.link, met.page, met.placement
        self._peers = met.peers
        self._flights.start(link=met.link, failures=FailureNotes(self._notes, session=met.session, rank=self.rank))
        self._stager.start(link=met.link)
        self.session = met.session

    # --- saving ------------------------------------------------------------------------------------------------------

    def _stage(
        self,
        flight: Flight,
        step: int,
        tree: Mapping[str, Any],
        meta: Mapping[str, Any] | None,
        metric: float | None,
        pin: bool,
    ) -> None:
        saved = flight.saved
        capture, plan, epoch = self._planner.plan(tree)
        self._look_back()
        self._framework.fence(tree, self.fence)
        self._stager.wait_for_the_copy_before(step)
        saved.nbytes = plan.raw_nbytes
        flight.order = Order(
            epoch,
            step,
            saved.seq,
            self._base_slot,
            dict(meta or {}),
            metric,
            pin,
            session=self.session,
            save=saved.seq,
            claim=self._planner.claim,
            coding=self._coding,
        )
        index = plan.index(capture, rank=self.rank, world=self.world)
        self._stager.stage(flight, capture, plan, index, base=self._base, keep=text_of(self._keep))

    def _base(self) -> tuple[int | None, int | None]:
        """What this training went on from, as far as it is known now: a slot, a generation of the agent."""
        return self._base_slot, self._base_generation

    def _look_back(self) -> None:
        """Before the first save: say so if training began from scratch where there are steps already."""
        if self._looked_back or self.rank != 0:
            return
        self._looked_back = True
        if self._base_slot is None and self._base_generation is None:
            with suppress(PerdureError):  # what cannot be read is told by whoever needs it
                if (text := self._run.not_gone_on_from()) is not None:
                    self.tell(Notice(text=text))

    # --- hearing -----------------------------------------------------------------------------------------------------

    def _hear(self, message: Any) -> None:
        """A message of the agent, on the link's thread."""
        if isinstance(message, Adopted):
            if message.error is not None:
                self.tell(Notice(text=f"the restored step is in memory only: {message.error['message']}"))
            elif message.generation == self._base_generation:
                self._base_slot = message.slot
            return
        if isinstance(message, Notify):
            self.tell(Notice(text=message.text))
            return
        if isinstance(message, Reached) and message.tier == "peer" and message.error is not None:
            self._say_once(f"no other node keeps a copy of this step: {message.error['message']}")
        self._flights.hear(message)

    def tell(self, fact: Fact, *, everywhere: bool = False) -> None:
        """Print on rank 0, and on every rank what concerns each; record always."""
        if everywhere or self.rank == 0:
            self.log.emit(fact)
        else:
            self.log.record(fact)

    def _say_once(self, text: str) -> None:
        """For what is met again and again: a damaged file, a partner without memory."""
        if text not in self._said:
            self._said.add(text)
            self.tell(Notice(text=text))
