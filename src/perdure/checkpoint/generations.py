"""The agent's memory as a state machine without I/O: events in, actions out.

Theory. A *generation* is one save of all ranks of the node. It lives in segments, at most two a rank, and goes through

    FILLING --all ranks staged--> COMPLETE --digested, its turn--> DRAINING --committed--> DURABLE
       |                                                               '------error------> UNDRAINED (still restorable)
       '--a rank left or failed--> gone

The newest complete generation is always kept: it is what a restarted rank comes back from. So a rank may fill a
segment only if no kept generation lies in it; the others wait (back-pressure), under the rank's own deadline.
Generations are drained one after another, in the order in which they became complete, so the parent of each commit is
known when its turn comes. Once nobody is connected, the lease runs; when it is over and nothing is left to drain, the
agent exits.

`agent` drives this machine and does what the actions say; nothing here touches a socket, a clock or a byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from perdure.checkpoint.messages import Abandon, Adopt, Adopted, Begin, Committed, Complete, Failed, Staged
from perdure.errors import PerdureError, ProtocolError, RankFailed, ReplicaMismatch, StateMismatch, to_wire

__all__ = ["Action", "Client", "Digest", "Drain", "Exit", "Generation", "Grant", "Machine", "Phase", "Tell"]

SEGMENTS_PER_RANK = 2


class Phase(Enum):
    """Where a generation is in its life."""

    FILLING = "filling"
    COMPLETE = "complete"
    DRAINING = "draining"
    DURABLE = "durable"
    UNDRAINED = "undrained"


@dataclass(frozen=True, slots=True)
class Client:
    """One connection: a rank of a session, or a launcher (``local_rank`` is ``None``)."""

    id: int
    session: str = ""
    rank: int = 0
    world: int = 1
    local_rank: int | None = None
    local_world: int = 1


@dataclass(slots=True)
class Generation:
    """One save; ``lanes`` maps each local rank to the segment that it fills."""

    id: int
    session: str
    seq: int
    step: int
    world: int
    local_world: int
    plan_id: str
    phase: Phase = Phase.FILLING
    lanes: dict[int, int] = field(default_factory=dict)
    staged: dict[int, Staged] = field(default_factory=dict)
    digested: bool = False
    slot: int | None = None
    adopter: int | None = None

    @property
    def whole(self) -> bool:
        """Whether every rank of the node has staged."""
        return self.phase is not Phase.FILLING

    @property
    def at_rest(self) -> bool:
        """Whether no thread reads its segments any more."""
        return self.phase in (Phase.DURABLE, Phase.UNDRAINED)

    @property
    def lead(self) -> Staged:
        """What the lowest rank staged: epoch, base and meta are the same on all."""
        return self.staged[min(self.staged)]


@dataclass(frozen=True, slots=True)
class Grant:
    """Let ``client`` fill ``segment`` with ``nbytes``; make it if it is not there or too small."""

    client: int
    segment: int
    seq: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Tell:
    """Send ``message`` to ``client``."""

    client: int
    message: Any


@dataclass(frozen=True, slots=True)
class Digest:
    """Hash the tiles of ``generation`` and write its packs' headers."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class Drain:
    """Write ``generation`` and commit it; ``base`` is the slot that its session went on from."""

    generation: Generation
    base: int | None


@dataclass(frozen=True, slots=True)
class Exit:
    """Nobody needs the agent any more."""


Action = Grant | Tell | Digest | Drain | Exit


@dataclass(frozen=True, slots=True)
class _Waiting:
    client: Client
    begin: Begin


class Machine:
    """The agent's one mutable controller; every method is an event and returns the actions to take, in order."""

    def __init__(self, *, lease_s: float, now: float) -> None:
        self.lease_s = lease_s
        self.clients: dict[int, Client] = {}
        self.generations: list[Generation] = []
        self._ids = 0
        self._waiting: list[_Waiting] = []
        self._queue: list[Generation] = []
        self._draining: Generation | None = None
        self._idle_since: float | None = now
        self._released = False
        self._slots: dict[int, int | None] = {}  # generation -> its slot, else that of what it went on from
        self._departed: dict[str, int] = {}  # session -> a rank of it that has left

    # --- events ------------------------------------------------------------------------------------------------------

    def joined(self, client: Client, now: float) -> list[Action]:
        """A connection introduced itself."""
        self.clients[client.id] = client
        self._idle_since = None
        return []

    def left(self, client_id: int, now: float) -> list[Action]:
        """A connection closed, by exit or by death."""
        client = self.clients.pop(client_id, None)
        actions: list[Action] = []
        if client is not None and client.local_rank is not None:
            self._departed[client.session] = client.rank
            self._waiting = [w for w in self._waiting if w.client.id != client_id]
            for generation in list(self.generations):
                unstaged = client.local_rank not in generation.staged
                if generation.session == client.session and not generation.whole and unstaged:
                    actions += self._fail(generation, _left_early(generation.step, client.rank))
            if not any(c.session == client.session for c in self.clients.values()):
                del self._departed[client.session]
        if not self.clients:
            self._idle_since = now
        return actions + self._settle()

    def begun(self, client: Client, begin: Begin) -> list[Action]:
        """A rank wants a segment."""
        if client.session in self._departed:
            error = _left_early(begin.step, self._departed[client.session])
            return [Tell(client.id, Failed(seq=begin.seq, error=to_wire(error)))]
        generation = self._find(client.session, begin.seq)
        if generation is None:
            self._ids += 1
            generation = Generation(
                self._ids, client.session, begin.seq, begin.step, client.world, client.local_world, begin.plan_id
            )
            self.generations.append(generation)
        if (generation.step, generation.plan_id) != (begin.step, begin.plan_id):
            return self._fail(
                generation,
                StateMismatch(
                    f"save {begin.seq} is step {generation.step} on other ranks but step {begin.step} on rank "
                    f"{client.rank}, or its ranks save different sets of tensors; call save with the same step and "
                    "the same state on every rank",
                    rank=client.rank,
                ),
                also=client.id,
            )
        self._waiting.append(_Waiting(client, begin))
        return self._settle()

    def staged(self, client: Client, staged: Staged) -> list[Action]:
        """A rank's pack is whole."""
        generation = self._find(client.session, staged.seq)
        if generation is None:  # failed meanwhile; the rank has been told
            return []
        assert client.local_rank is not None
        if client.local_rank not in generation.lanes:
            return self._fail(generation, ProtocolError(f"rank {client.rank} staged what it had not begun"))
        generation.staged[client.local_rank] = staged
        if len(generation.staged) < generation.local_world:
            return []
        error = _disagreement(generation)
        if error is not None:
            return self._fail(generation, error)
        generation.phase = Phase.COMPLETE
        self._queue.append(generation)
        told: list[Action] = [
            Tell(c.id, Complete(seq=generation.seq, generation=generation.id)) for c in self._ranks_of(generation)
        ]
        return [*told, Digest(generation), *self._settle()]

    def abandoned(self, client: Client, abandon: Abandon, error: PerdureError) -> list[Action]:
        """A rank could not stage."""
        generation = self._find(client.session, abandon.seq)
        return [] if generation is None else self._fail(generation, error) + self._settle()

    def digested(self, generation: Generation) -> list[Action]:
        """The digests of a generation are known: it can be restored."""
        generation.digested = True
        return self._settle()

    def drained(self, generation: Generation, result: tuple[int, int, int, float] | PerdureError) -> list[Action]:
        """A drain ended: ``(slot, raw bytes, stored bytes, seconds)``, or the error that stopped it."""
        self._draining = None
        actions: list[Action] = []
        failure: dict[str, Any] | None = None
        if isinstance(result, PerdureError):
            generation.phase = Phase.UNDRAINED
            self._slots[generation.id] = self._base(generation.lead)
            failure = to_wire(result)
            message: Any = Failed(seq=generation.seq, error=failure)
        else:
            generation.phase = Phase.DURABLE
            generation.slot, raw, stored, seconds = result
            self._slots[generation.id] = generation.slot
            message = Committed(
                seq=generation.seq, slot=generation.slot, raw_bytes=raw, stored_bytes=stored, seconds=seconds
            )
        actions += [Tell(c.id, message) for c in self._ranks_of(generation)]
        if generation.adopter is not None:
            client, generation.adopter = generation.adopter, None
            if client in self.clients:
                adopted = Adopted(generation=generation.id, slot=generation.slot, error=failure)
                actions.append(Tell(client, adopted))
        return actions + self._settle()

    def adopted(self, client: Client, adopt: Adopt) -> list[Action]:
        """A new session goes on from a generation: make it durable, again if that had failed."""
        generation = self.by_id(adopt.generation)
        if generation is None or not generation.whole:
            error = to_wire(ProtocolError(f"generation {adopt.generation} is not in memory"))
            return [Tell(client.id, Adopted(generation=adopt.generation, slot=None, error=error))]
        if generation.phase is Phase.DURABLE:
            return [Tell(client.id, Adopted(generation=generation.id, slot=generation.slot, error=None))]
        generation.adopter = client.id
        if generation.phase is Phase.UNDRAINED:
            generation.phase = Phase.COMPLETE
            self._queue.append(generation)
        return self._settle()

    def released(self) -> list[Action]:
        """The launcher says that the job is over."""
        self._released = True
        return []

    def tick(self, now: float) -> list[Action]:
        """Time passed; ask as often as the lease should be exact."""
        if self.clients or self._draining is not None or self._queue or self._idle_since is None:
            return []
        over = self._released or now - self._idle_since >= self.lease_s
        return [Exit()] if over else []

    # --- questions ---------------------------------------------------------------------------------------------------

    def restorable(self) -> list[Generation]:
        """Complete, digested generations still in memory, newest first."""
        return [g for g in reversed(self.generations) if g.whole and g.digested]

    def undigested(self) -> bool:
        """Whether a complete generation has no digests yet; `restorable` is worth asking again soon."""
        return any(g.whole and not g.digested for g in self.generations)

    def by_id(self, generation_id: int) -> Generation | None:
        """The generation of that id, if it is still there."""
        return next((g for g in self.generations if g.id == generation_id), None)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _find(self, session: str, seq: int) -> Generation | None:
        return next((g for g in self.generations if g.session == session and g.seq == seq), None)

    def _ranks_of(self, generation: Generation) -> Iterator[Client]:
        return (c for c in self.clients.values() if c.session == generation.session and c.local_rank is not None)

    def _fail(self, generation: Generation, error: PerdureError, also: int | None = None) -> list[Action]:
        """Forget an unfinished generation and tell every rank of its session why."""
        self.generations.remove(generation)
        self._waiting = [
            w for w in self._waiting if (w.client.session, w.begin.seq) != (generation.session, generation.seq)
        ]
        told = {c.id for c in self._ranks_of(generation)} | ({also} if also is not None else set())
        message = Failed(seq=generation.seq, error=to_wire(error))
        return [Tell(client, message) for client in sorted(told)]

    def _settle(self) -> list[Action]:
        """Drop what need not be kept, start the next drain, grant what waits."""
        actions: list[Action] = []
        newest = next((g for g in reversed(self.generations) if g.whole), None)
        for generation in list(self.generations):
            if generation.at_rest and generation is not newest and generation.adopter is None:
                self.generations.remove(generation)
        if self._draining is None and self._queue and self._queue[0].digested:
            generation = self._queue.pop(0)
            generation.phase = Phase.DRAINING
            self._draining = generation
            actions.append(Drain(generation, self._base(generation.lead)))
        for waiting in list(self._waiting):
            begun = self._find(waiting.client.session, waiting.begin.seq)
            segment = self._free_segment(waiting.client)
            if begun is None or segment is None:
                continue
            self._waiting.remove(waiting)
            assert waiting.client.local_rank is not None
            begun.lanes[waiting.client.local_rank] = segment
            actions.append(Grant(waiting.client.id, segment, waiting.begin.seq, waiting.begin.nbytes))
        return actions

    def _base(self, lead: Staged) -> int | None:
        """The slot that the session of ``lead`` went on from."""
        return lead.base_slot if lead.base_generation is None else self._slots.get(lead.base_generation)

    def _free_segment(self, client: Client) -> int | None:
        assert client.local_rank is not None
        first = client.local_rank * SEGMENTS_PER_RANK
        taken = {segment for g in self.generations for segment in g.lanes.values()}
        return next((s for s in range(first, first + SEGMENTS_PER_RANK) if s not in taken), None)


def _left_early(step: int, rank: int) -> RankFailed:
    return RankFailed(
        f"step {step} was not saved: rank {rank} left before it had staged its part", rank=rank, step=step
    )


def _disagreement(generation: Generation) -> PerdureError | None:
    """Compare what the ranks say of the values and pieces that they hold in common."""
    seen: dict[str, tuple[int, str]] = {}
    for local_rank, staged in sorted(generation.staged.items()):
        said = {sample.tensor: sample.digest for sample in staged.samples} | staged.value_digests
        for name, digest in said.items():
            rank, known = seen.setdefault(name, (local_rank, digest))
            if known != digest:
                return ReplicaMismatch(
                    f"step {staged.step} was not saved: {name} is not the same on ranks {rank} and {local_rank}; "
                    "give what differs by intent as perdure.RankLocal(...)",
                    tensor=name,
                    ranks=[rank, local_rank],
                )
    return None
