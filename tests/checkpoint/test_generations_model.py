"""The agent's memory under any order of events of ranks, hasher and store: what holds at every moment.

The model obeys the protocol, as ranks do; what a rank that breaks it can do is in `test_generations.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from perdure.checkpoint.generations import Machine
from perdure.checkpoint.messages import (
    Abandon,
    Adopt,
    Adopted,
    Begin,
    Committed,
    Complete,
    Failed,
    Sample,
    Staged,
    Terms,
)
from perdure.checkpoint.room import SEGMENTS_PER_RANK
from perdure.checkpoint.vocabulary import (
    Action,
    Broken,
    Client,
    Digest,
    Drain,
    Drained,
    Exit,
    Generation,
    Grant,
    Phase,
    Tell,
)
from perdure.errors import ProtocolError, StorageFull, Superseded, to_wire
from perdure.state.index import RankIndex

FULL = StorageFull("no space left", file="x")
LEASE_S = 60.0


@dataclass
class _Rank:
    """A rank that obeys the protocol: one save at a time is begun, later ones after it was staged."""

    client: Client
    waits: int | None = None
    fills: int | None = None
    seq: int = 0
    base_slot: int | None = None
    base_generation: int | None = None
    open: set[int] = field(default_factory=set)  # saves that are neither committed nor failed
    whole: set[int] = field(default_factory=set)
    undrained: set[int] = field(default_factory=set)  # failed after they were complete: another session may adopt them


@dataclass
class _Session:
    name: str
    epoch: int | None
    base_slot: int | None
    base_generation: int | None
    ranks: list[_Rank]


class _Node(RuleBasedStateMachine):
    """Sessions of two or three ranks, a hasher, a store: each does its next thing at any time."""

    @initialize(world=st.integers(1, 3))
    def start(self, world: int) -> None:
        self.now = 0.0
        self.world = world
        self.machine = Machine(lease_s=LEASE_S, now=0.0)
        self.clients = 0
        self.sessions: list[_Session] = []
        self.epochs = 0
        self.written: dict[int, tuple[int, int]] = {}  # segment -> generation and local rank that wrote it last
        self.digesting: list[Generation] = []
        self.draining: list[Drain] = []
        self.slots: list[tuple[int, str]] = []  # (generation, session) of each commit
        self.follows: dict[int, int | None] = {}  # what a commit that goes on from a generation follows
        self.completed: list[int] = []
        self.unhashable: set[int] = set()
        self.over = False
        self.refusals = 0
        self.drains = 0
        self.idle_since: float | None = 0.0
        self.a_session_begins(adopt=False)

    # What the agent does with actions.

    def act(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Grant(client, segment, Begin(seq=seq)):
                    holder = self.of(client)
                    if self.machine._find(holder.client.session, seq) is None:
                        continue  # it has failed on the way: there was no memory for another rank's segment
                    self.refusals += 1
                    if self.refusals % 11 == 0:
                        self.act(self.machine.no_room(action, FULL))
                        continue
                    assert holder.waits == seq
                    local = holder.client.local_rank
                    assert local is not None
                    assert segment // SEGMENTS_PER_RANK == local
                    holder.waits, holder.fills = None, segment
                    generation = self.machine._find(holder.client.session, seq)
                    assert generation is not None
                    self.written[segment] = (generation.id, local)
                case Tell(client, message):
                    self.tell(self.of(client), message)
                case Digest(generation):
                    self.digesting.append(generation)
                case Drain():
                    assert not self.draining, "one drain at a time"
                    self.draining.append(action)
                case Broken():
                    assert self.machine._find(action.session, action.seq) is None, "it failed, but is still there"
                case Exit():
                    assert not self.live()
                    assert not self.draining
                    assert not self.digesting
                    self.over = True

    def tell(self, to: _Rank, message: Any) -> None:
        match message:
            case Complete():
                assert message.seq in to.open
                assert message.seq not in to.whole
                to.whole.add(message.seq)
                if message.generation not in self.completed:
                    self.completed.append(message.generation)
            case Committed():
                assert message.seq in to.whole
                assert message.seq in to.open or message.seq in to.undrained, "told twice"
                to.open.discard(message.seq)
                to.undrained.discard(message.seq)
            case Failed():
                not_begun = message.seq > to.seq
                assert message.seq in to.open or message.seq in to.undrained or not_begun, "told twice"
                to.open.discard(message.seq)
                if message.seq in to.whole:
                    to.undrained.add(message.seq)
                if to.seq == message.seq:
                    to.waits = to.fills = None
            case Adopted():
                assert to.base_generation == message.generation

    def of(self, client: int) -> _Rank:
        return next(each for each in self.live() if each.client.id == client)

    def live(self) -> list[_Rank]:
        return [each for session in self.sessions for each in session.ranks]

    def pick(self, at: int, found: list[Any]) -> Any:
        return found[at % len(found)]

    # Events.

    @precondition(lambda self: not self.over and len(self.sessions) < 2)
    @rule(adopt=st.booleans())
    def a_session_begins(self, adopt: bool) -> None:
        name = f"s{self.clients}"
        session = _Session(name, None, (self.slots and len(self.slots)) or None, None, [])
        for local in range(self.world):
            self.clients += 1
            client = Client(self.clients, name, rank=local, world=self.world, local_rank=local, local_world=self.world)
            session.ranks.append(_Rank(client))
            self.machine.joined(client, self.now)
        self.sessions.append(session)
        found = [g for g in self.machine.restorable() if g.slot is None]
        if adopt and found:
            session.base_generation, session.base_slot = found[0].id, self.machine.turns.follows(found[0])
            for each in session.ranks:
                each.base_generation = found[0].id
            self.act(self.machine.adopted(session.ranks[0].client, Adopt(generation=found[0].id)))

    @precondition(lambda self: self.live())
    @rule(order=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 39)), min_size=1, max_size=12))
    def ranks_work(self, order: list[tuple[int, int]]) -> None:
        """Each in turn begins a save or stages it, unless it waits; now and then one does it wrong."""
        for at, odd in order:
            mine = self.pick(at, self.live())
            if mine.fills is not None and odd == 13:
                self.act(self.machine.abandoned(mine.client, Abandon(seq=mine.seq, error=to_wire(FULL)), FULL))
                assert mine.fills is None
            elif mine.fills is not None:
                self.stage(mine, digest=str(odd == 17))
            elif mine.waits is None:
                self.begin(mine, odd)

    def begin(self, mine: _Rank, odd: int) -> None:
        session = self.session_of(mine)
        if session.epoch is None:
            self.epochs += 1
            session.epoch = self.epochs
        mine.seq += 1
        mine.waits = mine.seq
        mine.open.add(mine.seq)
        step, plan_id = 100 * mine.seq + (odd == 19), "q" if odd == 23 else "p"
        wanted = Begin(seq=mine.seq, step=step, nbytes=100, plan_id=plan_id, within_s=30.0)
        self.act(self.machine.begun(mine.client, wanted))

    def stage(self, mine: _Rank, *, digest: str = "False") -> None:
        session = self.session_of(mine)
        mine.fills = None
        assert session.epoch is not None
        said = Staged(
            seq=mine.seq,
            step=100 * mine.seq,
            epoch=session.epoch,
            base_slot=session.base_slot,
            base_generation=session.base_generation,
            index=RankIndex(rank=mine.client.rank, world=self.world, tensors=(), values=()),
            samples=[Sample(tensor="w", digest=digest)],
            value_digests={},
            raw_nbytes=100,
            terms=Terms(),
        )
        self.act(self.machine.staged(mine.client, said))

    def session_of(self, mine: _Rank) -> _Session:
        return next(each for each in self.sessions if mine in each.ranks)

    @precondition(lambda self: self.live())
    @rule(at=st.integers(0, 9), how=st.integers(0, 9))
    def ranks_die(self, at: int, how: int) -> None:
        """One alone; then the others of its session, as a launcher does it. Not often."""
        if how > 6:
            mine = self.pick(at, self.live())
            others = list(self.session_of(mine).ranks)
            for each in [mine, *others] if how > 7 else [mine]:
                if each in self.live():
                    self.leave(each)

    def leave(self, mine: _Rank) -> None:
        session = self.session_of(mine)
        session.ranks.remove(mine)
        if not session.ranks:
            self.sessions.remove(session)
        self.act(self.machine.left(mine.client.id, self.now))
        if not self.live():
            self.idle_since = self.now

    @precondition(lambda self: self.digesting or self.draining)
    @rule(outcomes=st.lists(st.integers(0, 9), min_size=1, max_size=6))
    def threads_work(self, outcomes: list[int]) -> None:
        """The hasher or the store ends what it does, well or not."""
        for outcome in outcomes:
            if self.draining and (outcome % 2 or not self.digesting):
                self.end_drain(well=outcome != 5)
            elif self.digesting:
                self.end_digest(well=outcome != 8)

    def end_digest(self, *, well: bool) -> None:
        generation = self.digesting.pop(0)
        if well:
            self.act(self.machine.digested(generation))
        else:
            self.unhashable.add(generation.id)
            self.act(self.machine.not_digested(generation, ProtocolError("bad index")))

    def end_drain(self, *, well: bool) -> None:
        drain = self.draining.pop()
        self.drains += 1
        generation = drain.generation
        for local, segment in generation.lanes.items():
            assert self.written[segment] == (generation.id, local), "what was drained had been overwritten"
        if drain.on is not None:
            assert drain.on.slot is not None
            assert drain.on in self.machine.generations
            for local, segment in drain.on.lanes.items():
                assert self.written[segment] == (drain.on.id, local), "the base had been overwritten"
        own_epoch = generation.new_epoch is None
        assert drain.base == (self.parent_of(generation) if own_epoch else self.newest_of(generation))
        self.follows[generation.id] = self.newest_of(generation)
        if generation.epoch < self.epochs:
            self.act(self.machine.drained(generation, Superseded("a newer epoch owns this run")))
        elif well:
            made = [each for each, _ in self.slots]
            assert generation.id not in made, "committed twice"
            self.slots.append((generation.id, generation.session))
            self.follows[generation.id] = len(self.slots)
            self.act(self.machine.drained(generation, Drained(len(self.slots), 1, 1, 0.1, keep=self.drains % 3 == 1)))
        else:
            self.act(self.machine.drained(generation, FULL))

    def parent_of(self, generation: Generation) -> int | None:
        """The slot that ``generation`` is to follow, unless its epoch has a commit already."""
        base = generation.lead.base_generation
        return generation.lead.base_slot if base is None else self.follows[base]

    def newest_of(self, generation: Generation) -> int | None:
        """The last slot of the session of ``generation``, else the one that it went on from."""
        mine = [slot for slot, (_, session) in enumerate(self.slots, 1) if session == generation.session]
        return mine[-1] if mine else self.parent_of(generation)

    @rule(seconds=st.sampled_from([0.25, 10.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        before = self.over
        self.act(self.machine.tick(self.now))
        if self.over and not before:
            assert self.idle_since is not None
            assert self.now - self.idle_since >= LEASE_S

    @precondition(lambda self: not self.over)
    @rule(seed=st.integers(0, 1 << 32))
    def much_happens(self, seed: int) -> None:
        """A stretch of ordinary life: mostly work, some faults, sessions that follow one another."""
        chance = Random(seed)
        for _ in range(60):
            event = chance.random()
            if event < 0.55 and self.live():
                self.ranks_work([(chance.randrange(6), chance.randrange(60))])
            elif event < 0.9 and (self.digesting or self.draining):
                self.threads_work([chance.randrange(10)])
            elif event < 0.93 and self.live():
                self.ranks_die(chance.randrange(6), chance.randrange(10))
            elif event < 0.97 and len(self.sessions) < (2 if event < 0.94 else 1):
                self.a_session_begins(adopt=event < 0.96)
            elif event > 0.98:
                self.time_passes(0.25)
            self.check()

    # What always holds.

    def check(self) -> None:
        self.no_two_generations_share_a_segment()
        self.what_is_kept_is_as_it_was_written()
        self.the_newest_complete_generation_is_kept()
        self.what_waits_or_fills_is_known_to_the_machine()

    @invariant()
    def no_two_generations_share_a_segment(self) -> None:
        lanes = [segment for g in self.machine.generations for segment in g.lanes.values()]
        assert len(lanes) == len(set(lanes))

    @invariant()
    def what_is_kept_is_as_it_was_written(self) -> None:
        for generation in self.machine.generations:
            for local, segment in generation.lanes.items():
                assert self.written[segment] == (generation.id, local)
            if generation.whole:
                assert sorted(generation.lanes) == list(range(self.world)) == sorted(generation.staged)

    @invariant()
    def the_newest_complete_generation_is_kept(self) -> None:
        newest = max(self.completed, default=0)
        if newest and newest not in self.unhashable:
            assert newest in [g.id for g in self.machine.generations if g.whole]

    @invariant()
    def what_waits_or_fills_is_known_to_the_machine(self) -> None:
        for each in self.live():
            for seq in each.open:
                found = self.machine._find(each.client.session, seq)
                assert found is not None
                assert found.phase is not Phase.DURABLE

    def teardown(self) -> None:
        """In the end, if every thread does its work, each save of a rank that is still there has ended."""
        if not hasattr(self, "machine"):
            return
        for _ in range(200):
            while self.digesting:
                self.end_digest(well=True)
            while self.draining:
                self.end_drain(well=True)
            self.time_passes(10.0)
            for each in [r for r in self.live() if r.fills is not None]:
                self.stage(each)
            if not self.digesting and not self.draining and not any(r.open for r in self.live()):
                break
        assert not any(each.open for each in self.live())
        for each in self.live():
            self.leave(each)
        self.now += LEASE_S
        self.act(self.machine.tick(self.now))
        assert self.over


TestNode = _Node.TestCase
TestNode.settings = settings(max_examples=100, stateful_step_count=20, deadline=None, report_multiple_bugs=False)
