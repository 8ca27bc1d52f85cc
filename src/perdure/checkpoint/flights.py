"""The saves of one rank that are under way, and what becomes of each, whoever says so.

A save ends once: durable, by the word of the agent or of this rank's own drain; or failed, by the word of the agent, of
another rank (`notes`), of the copier or of the drain. Each end is told once, and `settle` returns after it was told.
When the agent is lost, what it had not finished is finished here, from this rank's own mapping of the pack.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from perdure.checkpoint.background import Worker
from perdure.checkpoint.drain import Order
from perdure.checkpoint.far_flights import FarFlights
from perdure.checkpoint.link import AgentLink
from perdure.checkpoint.messages import Abandon, Carry, Committed, Complete, Failed, Reached
from perdure.checkpoint.notes import FailureNotes
from perdure.checkpoint.policy import Policy
from perdure.checkpoint.remote import Remote
from perdure.checkpoint.saved import Outcome, Saved
from perdure.checkpoint.solo import SoloSave, drain_alone
from perdure.checkpoint.unchanged import Stored
from perdure.errors import AgentLost, DeadlineExceeded, PerdureError, from_wire, to_wire
from perdure.events import AgentLost as AgentLostFact
from perdure.events import Committed as CommittedFact
from perdure.events import Fact, Notice, SaveFailed
from perdure.store import Run
from perdure.upkeep.keep import Rule
from perdure.upkeep.retention import Retention

__all__ = ["Flight", "Flights"]


_TELL_S = 10.0
_PRUNE_S = 5.0  # that a prune may take when all else is done; the next one finishes it


class Tell(Protocol):
    """How facts reach the log."""

    def __call__(self, fact: Fact, *, everywhere: bool = False) -> None: ...


@dataclass(slots=True)
class Flight:
    """A save under way, with what is needed to finish it without the agent. ``alone``: the agent has no part in it."""

    saved: Saved
    order: Order | None = None
    solo: SoloSave | None = None
    carry: Carry | None = None
    alone: bool = False
    draining: bool = False


class Flights:
    """Called from the thread that trains, the copier's, the link's and the drainer's."""

    def __init__(
        self,
        *,
        rank: int,
        world: int,
        commit_s: float,
        run: Callable[[], Run],
        latest: Callable[[], int | None],
        tell: Tell,
        keep: Sequence[Rule] = (),
        remote: Remote | None = None,
    ) -> None:
        self.far = FarFlights(remote, rank=rank, run=run, tell=tell)
        self._rank, self._world, self._commit_s = rank, world, commit_s
        self._run, self._latest, self._tell = run, latest, tell
        self._link: AgentLink | None = None
        self._failures = FailureNotes(None, session="", rank=rank)
        self._drainer: Worker | None = None
        self._newest_slot: int | None = None
        self._stored: Stored | None = None  # of the drainer's thread
        self._policy = Policy()  # of the drainer's thread
        self._keep = keep
        self._retention = Retention()  # of the drainer's thread
        self._flights: dict[int, Flight] = {}
        self._lock = threading.Lock()
        self._telling = threading.RLock()  # held while a save ends and is told, so that `settle` returns after it

    def start(self, *, link: AgentLink | None, failures: FailureNotes) -> None:
        """The ranks have met."""
        self._link, self._failures = link, failures
        self._drainer = Worker("perdure-drain")

    def end(self, *, carry_s: float = 0.0) -> None:
        """No save begins any more: let the drainer end after what it has to do.

        What this rank carries by itself is waited for ``carry_s`` seconds at most.
        """
        self.far.end(within_s=carry_s)
        if self._drainer is not None:
            prunes = self._keep and self._rank == 0 and not self.under_way
            self._drainer.end(within_s=_PRUNE_S if prunes else 0.0)

    def add(self, saved: Saved) -> Flight:
        """A save begins; those that have ended are forgotten."""
        flight = Flight(saved)
        with self._lock:
            self._flights = {seq: each for seq, each in self._flights.items() if not each.saved.settled}
            self._flights[saved.seq] = flight
        return flight

    @property
    def under_way(self) -> list[Saved]:
        """Saves that are neither durable nor failed yet."""
        return [flight.saved for flight in self._flights.values() if not flight.saved.settled]

    def settle(self, *, leaving_within_s: float | None = None) -> None:
        """Wait until every save is durable or has failed, and has been told; a wait that is too long is a failure.

        A rank that has to leave says within how many seconds: what is whole in the agent's memory needs it no more.
        """
        for flight in list(self._flights.values()):
            leaving = leaving_within_s is not None and not flight.alone and self._link is not None
            try:
                if not flight.saved.settled:
                    memory = leaving or not flight.saved.durable
                    flight.saved.reached("memory" if memory else "disk", leaving_within_s)
            except DeadlineExceeded as error:
                self.failed(flight.saved, error)
            except PerdureError:
                pass  # told when it happened
        if self._telling.acquire(timeout=_TELL_S):  # else a store hangs; do not hang with it
            self._telling.release()

    # --- how a save fails --------------------------------------------------------------------------------------------

    def abandon(self, flight: Flight, error: PerdureError) -> None:
        """Tell the other ranks that this save fails here, so that none waits for this one."""
        if self._link is not None and not self._link.lost and not flight.alone:
            try:
                self._link.post(Abandon(seq=flight.saved.seq, error=to_wire(error)))
                return
            except PerdureError:
                pass  # the agent is gone: then the others save by themselves and look for notes
        self._failures.tell(flight.saved.seq, error)

    def stage_failed(self, flight: Flight, error: PerdureError) -> None:
        """This rank could not copy its part."""
        self.abandon(flight, error)
        self.failed(flight.saved, error)

    def failed(self, saved: Saved, error: PerdureError) -> None:
        """End ``saved``, if it has not ended yet, and tell it."""
        with self._telling:
            if saved.settled:
                return
            saved.note_failed(error)
            try:
                latest = self._latest()
            except PerdureError:
                latest = None
            self._tell(SaveFailed(step=saved.step, error=str(error), latest=latest), everywhere=True)

    # --- by the agent ------------------------------------------------------------------------------------------------

    def hear(self, message: Complete | Committed | Failed | Reached) -> None:
        """The agent's word, on the link's thread."""
        if isinstance(message, Reached) and message.tier == "remote":  # long after it was committed
            self.far.hear(message)
            return
        flight = self._flights.get(message.seq)
        if flight is None:  # this rank has not come to it; it will be told again
            return
        match message:
            case Complete():
                flight.saved.note_memory()
            case Reached():
                flight.saved.note_peers(None if message.error is None else from_wire(message.error))
            case Committed():
                outcome = Outcome(message.slot, message.raw_bytes, message.stored_bytes, message.seconds)
                self._committed(flight.saved, outcome)
            case Failed():
                self.failed(flight.saved, from_wire(message.error))

    def agent_lost(self, error: AgentLost) -> None:
        """On the link's thread: say so, and finish what was under way."""
        self._tell(AgentLostFact(reason=str(error), pid=error.facts.get("pid")), everywhere=True)
        self.far.agent_lost(error)
        for flight in list(self._flights.values()):
            flight.saved.note_no_peers(error)
            if not flight.saved.durable:
                self.failed(flight.saved, error)
        for flight in list(self._flights.values()):
            if flight.saved.error is not None:  # the agent may not have lived to tell the others
                self._failures.tell(flight.saved.seq, flight.saved.error)
            elif flight.saved.is_staged:
                self.drain_alone(flight)

    # --- by this rank ------------------------------------------------------------------------------------------------

    def drain_alone(self, flight: Flight) -> None:
        """Make a staged save durable without the agent, on the drainer's thread; once.

        Those before it, which the agent had, come first: all ranks drain in one order, or each waits for another step.
        """
        with self._lock:
            for each in self._flights.values():
                if each.saved.seq <= flight.saved.seq and each.saved.is_staged and not each.draining:
                    self._submit(each)

    def _submit(self, flight: Flight) -> None:
        solo = flight.solo
        if solo is None:
            return
        flight.draining = True
        if flight.saved.settled:
            solo.release()
            return
        assert self._drainer is not None
        self._drainer.submit(lambda: self._drain(flight, solo), lambda error: self._drain_failed(flight, error))

    def _drain(self, flight: Flight, solo: SoloSave) -> None:
        outcome, stored = drain_alone(
            self._run(),
            solo,
            rank=self._rank,
            world=self._world,
            commit_s=self._commit_s,
            after=self._newest_slot,
            notes=self._failures,
            stored=self._stored,
            policy=self._policy,
        )
        self._stored = stored
        self._committed(flight.saved, outcome)
        if self._rank == 0:
            self.far.committed(flight.saved, flight.carry, outcome.slot)
        if self._keep and self._rank == 0:
            told = self._retention.keep(self._run(), self._keep, spared=self.far.spared())
            if told is not None:
                self._tell(Notice(text=told))

    def _drain_failed(self, flight: Flight, error: PerdureError) -> None:
        self._failures.tell(flight.saved.seq, error)
        self.failed(flight.saved, error)

    def _committed(self, saved: Saved, outcome: Outcome) -> None:
        with self._telling:
            self._newest_slot = max(outcome.slot, self._newest_slot or 0)
            if saved.settled:
                return
            saved.note_committed(outcome)
            fact = CommittedFact(
                step=saved.step,
                slot=outcome.slot,
                tier="disk",
                seconds=outcome.seconds,
                raw_bytes=outcome.raw_nbytes,
                stored_bytes=outcome.stored_nbytes,
            )
            self._tell(fact)
