"""The agent's memory as a state machine without I/O: events in, actions out.

Theory. A *generation* is one save of all ranks of the node. It lives in segments, one a rank, and goes through

    FILLING --all ranks staged--> COMPLETE --digested, its turn--> DRAINING --committed--> DURABLE
       |                                                               '------error------> UNDRAINED (still restorable)
       '--a rank left or failed--> gone

A save that is to stay in memory ends in HELD once it is digested; it is drained if a new session goes on from it, or
if the agent of a job's only node leaves while it is the newest.

A rank waits until there is a segment that it may fill (`room`). A generation that is not complete within the time its
ranks gave it fails, with the ranks to blame named (`blame`), and frees what it held. Complete ones are drained in turn,
a few of them again (`turns`). Once nobody is connected (`sessions`), the lease runs; when it is over and nothing is
left to drain, the agent exits.

`agent` drives this machine and does what the actions say; nothing here touches a socket, a clock or a byte.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from perdure.checkpoint.blame import another_save, disagreement, late, left_early
from perdure.checkpoint.messages import Abandon, Adopt, Adopted, Begin, Committed, Complete, Failed, Notify, Staged
from perdure.checkpoint.room import free_segment, to_spare
from perdure.checkpoint.sessions import Sessions
from perdure.checkpoint.turns import Turns
from perdure.checkpoint.vocabulary import (
    Action,
    Broken,
    Client,
    Copy,
    Digest,
    Drained,
    Exit,
    Fostered,
    Generation,
    Grant,
    Phase,
    Tell,
)
from perdure.errors import AgentLost, PerdureError, ProtocolError, RankFailed, Superseded, from_wire, to_wire

__all__ = ["Machine"]


@dataclass(frozen=True, slots=True)
class _Waiting:
    client: Client
    local_rank: int
    begin: Begin


class Machine:
    """The agent's one mutable controller; every method is an event and returns the actions to take, in order."""

    def __init__(self, *, lease_s: float, now: float) -> None:
        self.lease_s = lease_s
        self.generations: list[Generation] = []
        self.sessions = Sessions()
        self.turns = Turns()
        self.partnered: set[str] = set()
        """sessions whose generations are copied to another node"""
        self.carrying: Callable[[], bool] = lambda: False
        """whether a step is on its way to a store far away, for which the agent stays"""
        self._ids = 0
        self._waiting: list[_Waiting] = []
        self._disbanded: set[str] = set()
        self._idle_since: float | None = now
        self._released = False
        self._leaving = False

    # --- events ------------------------------------------------------------------------------------------------------

    def joined(self, client: Client, now: float) -> list[Action]:
        """A connection introduced itself."""
        self.sessions.join(client)
        self._idle_since = None
        if client.local_rank is not None:
            self._released = False  # the job goes on after all
        return []

    def left(self, client_id: int, now: float) -> list[Action]:
        """A connection closed, by exit or by death."""
        client = self.sessions.leave(client_id)
        actions: list[Action] = []
        if client is not None and client.local_rank is not None:
            self._waiting = [w for w in self._waiting if w.client.id != client_id]
            for generation in self.generations:
                if generation.adopter == client_id:
                    generation.adopter = None
            for generation in list(self.generations):
                unstaged = client.local_rank not in generation.staged
                if generation.session == client.session and not generation.whole and unstaged:
                    actions += self._fail(generation, left_early(generation.step, client.rank))
            self.sessions.forget(client.session)
        if not self.sessions.clients:
            self._idle_since = now
        return actions + self._settle()

    def begun(self, client: Client, begin: Begin) -> list[Action]:
        """A rank wants a segment. Raises `ProtocolError` for what no rank does."""
        generation = self._find(client.session, begin.seq)
        if client.local_rank is None or (generation is not None and self._has_begun(client, generation)):
            raise ProtocolError(f"rank {client.rank} may not begin save {begin.seq} now")
        failed = self.sessions.failure(client.session, begin.seq)
        if failed is not None:  # on another rank, before this one came
            return [Tell(client.id, Failed(seq=begin.seq, error=failed))]
        gone = self.sessions.left(client.session)
        if gone is not None:
            error = left_early(begin.step, gone)
            if generation is not None:
                return self._fail(generation, error) + self._settle()
            return [Tell(client.id, Failed(seq=begin.seq, error=to_wire(error)))]
        if generation is None:
            self._ids += 1
            generation = Generation(
                id=self._ids,
                session=client.session,
                seq=begin.seq,
                step=begin.step,
                world=client.world,
                local_world=client.local_world,
                plan_id=begin.plan_id,
                durable=begin.durable,
                within_s=begin.within_s,
                run=client.run,
                by=client.session,
            )
            self.generations.append(generation)
        if (generation.step, generation.plan_id, generation.durable) != (begin.step, begin.plan_id, begin.durable):
            mismatch = another_save(generation.step, begin.step, seq=begin.seq, rank=client.rank)
            return self._fail(generation, mismatch, also=client.id) + self._settle()
        self._waiting.append(_Waiting(client, client.local_rank, begin))
        return self._settle()

    def staged(self, client: Client, staged: Staged) -> list[Action]:
        """A rank's pack is whole. Raises `ProtocolError` if it was already."""
        generation = self._find(client.session, staged.seq)
        if generation is None:  # failed meanwhile; the rank has been told
            return []
        assert client.local_rank is not None
        if client.local_rank not in generation.lanes:
            error = ProtocolError(f"rank {client.rank} staged what it had not begun")
            return self._fail(generation, error) + self._settle()
        if client.local_rank in generation.staged:
            raise ProtocolError(f"rank {client.rank} staged save {staged.seq} twice")
        generation.staged[client.local_rank] = staged
        if len(generation.staged) < generation.local_world:
            return []
        differs = disagreement(
            generation.step, [(each.index.rank, each.said) for _, each in sorted(generation.staged.items())]
        )
        if differs is not None:
            return self._fail(generation, differs) + self._settle()
        if client.session in self._disbanded:  # the rank has not heard yet; it makes it durable by itself
            generation.phase = Phase.UNDRAINED
            return [Digest(generation)]
        generation.phase = Phase.COMPLETE
        if generation.durable:
            self.turns.add(generation)
            self._adopt_again(generation)
        complete = Complete(seq=generation.seq, generation=generation.id)
        told = [Tell(each.id, complete) for each in self.sessions.ranks_of(client.session)]
        return [*told, Digest(generation), *self._settle()]

    def abandoned(self, client: Client, abandon: Abandon, error: PerdureError) -> list[Action]:
        """A rank could not stage."""
        generation = self._find(client.session, abandon.seq)
        if generation is None:  # nobody has begun, or it has failed already
            self.sessions.note_failure(client.session, abandon.seq, error)
            return [Broken(client.session, abandon.seq, error)]
        return [] if generation.whole else self._fail(generation, error) + self._settle()

    def broken(self, session: str, seq: int, error: PerdureError) -> list[Action]:
        """The save has failed on another node of its session. One that is whole here ends with its drain."""
        generation = self._find(session, seq)
        if generation is None:
            if self.sessions.has(session):
                self.sessions.note_failure(session, seq, error)
            return []
        if generation.whole:
            return []
        actions = self._fail(generation, error) + self._settle()
        return [each for each in actions if not isinstance(each, Broken)]

    def disbanded(self, session: str) -> None:
        """An agent of another node of ``session`` is gone: from here on its ranks make durable what is not yet.

        They do so from the segments that they were granted, so none of these is granted to them again.
        """
        self._disbanded.add(session)
        self.turns.withdraw(session)

    def asked(self, session: str, seq: int, step: int, *, by: str) -> list[Action]:
        """Another node waits for this node's part of a save, for session ``by``: say so if it will never come."""
        if self._find(session, seq) is not None:
            return []
        known = self.sessions.failure(session, seq)
        if known is not None:
            return [Broken(session, seq, from_wire(known))]
        if by != session and self.sessions.has(by):
            return []  # its rank that went on from it has not said so yet
        gone = self.sessions.left(session)
        if gone is not None:
            return [Broken(session, seq, left_early(step, gone))]
        if not self.sessions.has(session):
            return [Broken(session, seq, RankFailed(f"step {step} was not saved: the ranks of a node have left"))]
        return []

    def digested(self, generation: Generation) -> list[Action]:
        """The digests of a generation are known: it can be restored.

        One that is to stay in memory is done with that.
        """
        generation.digested = True
        if not generation.durable:
            self.turns.held(generation)
        if generation.session not in self.partnered or generation.session in self._disbanded:
            return self._settle()
        generation.copying = True
        return [Copy(generation), *self._settle()]

    def copied(self, generation: Generation) -> list[Action]:
        """It lies on another node too, or could not be sent there: either way nobody reads it for that any more."""
        generation.copying = False
        return self._settle()

    def not_digested(self, generation: Generation, error: PerdureError) -> list[Action]:
        """A generation could not be hashed: it is no use."""
        self.turns.remove(generation)
        return self._fail(generation, error) + self._settle()

    def drained(self, generation: Generation, result: Drained | PerdureError) -> list[Action]:
        """A drain ended, or an error stopped it."""
        drained_for = self.turns.ended()
        if isinstance(result, AgentLost) and drained_for is not None:
            self._disbanded.add(drained_for)  # as will be told
        if isinstance(result, AgentLost) and generation.adopter is not None and generation.by != drained_for:
            # A session went on from it while another still tried: now it is its turn.
            self.turns.add(generation, before=next(iter(self.turns.waiting), None))
            return self._settle()
        actions: list[Action] = []
        failure: dict[str, Any] | None = None
        message: Committed | Failed | None = None
        if isinstance(result, Drained):
            self.turns.committed(generation, result)
            message = Committed(
                seq=generation.seq,
                slot=result.slot,
                raw_bytes=result.raw_nbytes,
                stored_bytes=result.stored_nbytes,
                seconds=result.seconds,
            )
        else:
            self.turns.not_committed(generation)
            failure = to_wire(result)
            if not isinstance(result, AgentLost):  # else its ranks will hear that they have none
                message = Failed(seq=generation.seq, error=failure)
        if message is not None:
            actions += [Tell(c.id, message) for c in self.sessions.ranks_of(generation.session)]
        if generation.adopter is not None and generation.by != drained_for and generation.by in self.partnered:
            # It ended for the session before; other nodes of the one that went on from it wait for a word of theirs.
            self.turns.again(generation, before=next(iter(self.turns.waiting), None))
            return actions + self._settle()
        again = isinstance(result, Superseded) and generation.new_epoch is None  # by its adopter's first save
        for heir in list(self.turns.waiting):
            self._adopt_again(heir)
        if generation.adopter is not None and not again:
            client, generation.adopter = generation.adopter, None
            if client in self.sessions.clients:
                adopted = Adopted(generation=generation.id, slot=generation.slot, error=failure)
                actions.append(Tell(client, adopted))
        return actions + self._settle()

    def adopted(self, client: Client, adopt: Adopt, fostered: Fostered | None = None) -> list[Action]:
        """A new session goes on from a generation: make it durable, again if that had failed.

        With it what is ``fostered`` for nodes that are gone, and then also where this one saved nothing itself. One
        that is durable as far as this agent knows has its turn too: the session found it in no store, which may have
        been lost since; and nodes that hold nothing of it wait for node 0 to say where it lies (`drainer`).
        """
        generation = self.by_id(adopt.generation)
        if generation is None and fostered is not None:
            generation = Generation(
                adopt.generation, adopt.session, adopt.seq, adopt.step, client.world, 0, "", phase=Phase.HELD
            )
            generation.digested, generation.run = True, client.run
            self.generations.append(generation)
        if generation is None or not generation.whole:
            return self.not_adopted(client, adopt, ProtocolError(f"generation {adopt.generation} is not in memory"))
        generation.fostered = fostered
        generation.adopter, generation.by = client.id, client.session
        if generation.phase in (Phase.UNDRAINED, Phase.HELD, Phase.DURABLE):
            self.turns.again(generation)
        return self._settle()

    def not_adopted(self, client: Client, adopt: Adopt, error: PerdureError) -> list[Action]:
        """What a new session goes on from is not here any more: no node of it need wait for this one."""
        told = to_wire(error)
        actions: list[Action] = [Tell(client.id, Adopted(generation=adopt.generation, slot=None, error=told))]
        if not adopt.session:
            return actions
        self.sessions.note_failure(adopt.session, adopt.seq, error)
        return [*actions, Broken(client.session, adopt.seq, error, of=adopt.session)]

    def no_room(self, grant: Grant, error: PerdureError) -> list[Action]:
        """There is no memory for a segment: do without the base, once nobody reads it, else the save fails."""
        client = self.sessions.clients[grant.client]
        generation = self._find(client.session, grant.begin.seq)
        if generation is None:
            return []
        if self.turns.base is None:
            return self._fail(generation, error) + self._settle()
        assert client.local_rank is not None
        del generation.lanes[client.local_rank]
        self._waiting.insert(0, _Waiting(client, client.local_rank, grant.begin))
        told: list[Action] = []
        if self.turns.give_up_base(client.session):
            note = Notify(text=f"saves are no deltas from here on: {error}")
            told = [Tell(each.id, note) for each in self.sessions.ranks_of(client.session)]
        return told + self._settle()

    def released(self) -> list[Action]:
        """The launcher says that the job is over."""
        self._released = True
        return []

    def tick(self, now: float) -> list[Action]:
        """Time passed; ask as often as the lease and the deadlines of saves should be exact."""
        given_up = self._give_up(now)
        if given_up:
            return given_up
        if not self.turns.over or any(each.copying for each in self.generations):
            return []
        if self._leaving:
            return self._write_what_lies_here_alone() or [Exit()]
        if self.sessions.clients or self._idle_since is None or self.carrying():
            return []
        over = self._released or now - self._idle_since >= self.lease_s
        return (self._write_what_lies_here_alone() or [Exit()]) if over else []

    def told_to_leave(self) -> list[Action]:
        """Somebody ends this process: leave as soon as what is complete is written; ranks then save by themselves."""
        self._leaving = True
        return []

    # --- questions ---------------------------------------------------------------------------------------------------

    def restorable(self) -> list[Generation]:
        """Complete, digested generations still in memory, newest first."""
        return [g for g in reversed(self.generations) if g.whole and g.digested and g.staged]

    def undigested(self) -> bool:
        """Whether a complete generation has no digests yet; `restorable` is worth asking again soon."""
        return any(g.whole and not g.digested for g in self.generations)

    def knows(self, session: str) -> bool:
        """Whether ranks of ``session`` are here, or a generation that it is to make durable."""
        return self.sessions.has(session) or any(session in (each.session, each.by) for each in self.generations)

    def by_id(self, generation_id: int) -> Generation | None:
        """The generation of that id, if it is still there."""
        return next((g for g in self.generations if g.id == generation_id), None)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _find(self, session: str, seq: int) -> Generation | None:
        return next((g for g in self.generations if g.session == session and g.seq == seq), None)

    def _waiting_for(self, generation: Generation) -> list[_Waiting]:
        name = (generation.session, generation.seq)
        return [w for w in self._waiting if (w.client.session, w.begin.seq) == name]

    def _has_begun(self, client: Client, generation: Generation) -> bool:
        waits = any(w.local_rank == client.local_rank for w in self._waiting_for(generation))
        return waits or client.local_rank in generation.lanes

    def _fail(self, generation: Generation, error: PerdureError, also: int | None = None) -> list[Action]:
        """Forget an unfinished generation and tell every rank of its session why, on this node and on the others."""
        self.generations.remove(generation)
        self.sessions.note_failure(generation.session, generation.seq, error)
        self._waiting = [w for w in self._waiting if w not in self._waiting_for(generation)]
        told = {c.id for c in self.sessions.ranks_of(generation.session)} | ({also} if also is not None else set())
        message = Failed(seq=generation.seq, error=to_wire(error))
        tells = [Tell(client, message) for client in sorted(told)]
        return [*tells, Broken(generation.session, generation.seq, error)]

    def _settle(self) -> list[Action]:
        """Drop what need not be kept, start the next drain, grant what waits."""
        gone, older = to_spare(self.generations, self.turns.base)
        for generation in gone:
            self.generations.remove(generation)
        drain = self.turns.next()
        actions: list[Action] = [] if drain is None else [drain]
        for waiting in list(self._waiting) if not self.turns.base_must_go else ():
            if waiting.client.session in self._disbanded:
                continue
            begun = self._find(waiting.client.session, waiting.begin.seq)
            segment = self._free_segment(waiting)
            while segment is None and older:
                self.generations.remove(older.pop(0))
                segment = self._free_segment(waiting)
            if begun is None or segment is None:
                continue
            self._waiting.remove(waiting)
            begun.lanes[waiting.local_rank] = segment
            spare = self._free_segment(waiting)
            actions.append(Grant(waiting.client.id, segment, waiting.begin, spare))
        return actions

    def _free_segment(self, waiting: _Waiting) -> int | None:
        return free_segment(waiting.local_rank, self.generations, self.turns.base)

    def _give_up(self, now: float) -> list[Action]:
        """Fail the saves for which a rank is late, so that the others need not wait for it for ever."""
        actions: list[Action] = []
        for generation in [g for g in self.generations if not g.whole and g.within_s is not None]:
            if generation.since is None:
                generation.since = now
            elif now - generation.since >= (generation.within_s or 0.0):
                names = {c.local_rank: c.rank for c in self.sessions.ranks_of(generation.session)}
                error = late(
                    generation.step,
                    unstaged={
                        local: names.get(local, local)
                        for local in range(generation.local_world)
                        if local not in generation.staged
                    },
                    waiting={each.local_rank for each in self._waiting_for(generation)},
                    within_s=generation.within_s or 0.0,
                )
                actions += self._fail(generation, error)
        return actions + self._settle() if actions else []

    def _write_what_lies_here_alone(self) -> list[Action]:
        """Before the agent leaves: a step that was saved to memory alone, if it is the newest, goes to the store.

        Of several nodes it does not: the others may have left already.
        """
        newest = next((g for g in reversed(self.generations) if g.whole and g.digested), None)
        if newest is None or newest.phase is not Phase.HELD or newest.session in self.partnered or not newest.staged:
            return []
        self.turns.add(newest)
        return self._settle()

    def _adopt_again(self, heir: Generation) -> None:
        """What ``heir``'s session went on from could not be committed: do it now, under the session's own epoch."""
        if not heir.staged:  # it is here for what is kept of it for others
            return
        lead = heir.lead
        base = None if lead.base_generation is None else self.by_id(lead.base_generation)
        if base is not None and base.phase is Phase.UNDRAINED and lead.epoch > base.epoch:
            base.new_epoch, base.new_claim, base.by = lead.epoch, lead.terms.claim, heir.session
            self.turns.add(base, before=heir)
