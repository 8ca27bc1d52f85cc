"""The agent of a node and job: owns checkpoint memory, drains it to the store, outlives the ranks that fill it.

One thread runs the event loop (`connections`) and everything that decides (`generations`); one hashes (`sealer`), one
drains (`drainer`), one carries (`carrier`). They hand results back through a queue and wake the loop. Nothing here
loads user code or a tensor library; all that comes over the socket is strictly typed and bounded.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from perdure.checkpoint.agent_memory import AgentMemory
from perdure.checkpoint.carrier import Arrived, Carrier, CarryOrder, reached
from perdure.checkpoint.config import BEAT_S
from perdure.checkpoint.connections import Connections
from perdure.checkpoint.council import Council
from perdure.checkpoint.drainer import Drainer
from perdure.checkpoint.generations import Machine
from perdure.checkpoint.messages import (
    PROTOCOL,
    Abandon,
    Adopt,
    Beat,
    Begin,
    Borrow,
    Generations,
    Granted,
    Hello,
    Inquire,
    Introduce,
    Join,
    Lent,
    Notify,
    Release,
    Staged,
    Welcome,
)
from perdure.checkpoint.messages import Generation as GenerationFacts
from perdure.checkpoint.nodes import Nodes
from perdure.checkpoint.sealer import Sealer
from perdure.checkpoint.vocabulary import (
    Action,
    Broken,
    Client,
    Copy,
    Digest,
    Drain,
    Drained,
    Exit,
    Generation,
    Grant,
    Tell,
)
from perdure.clock import SYSTEM, Clock
from perdure.errors import PerdureError, ProtocolError, from_wire
from perdure.progress import Page
from perdure.shm import Segment
from perdure.state.index import RankIndex
from perdure.store import Store, open_store
from perdure.store.limit import Limit

__all__ = ["Agent"]

_TICK_S = 0.2
_LEND_AT_ONCE = 32
_PRUNE_S = 5.0  # that a prune may take when all else is done; the next one finishes it


class Agent:
    """Serves one run and job on ``listener`` until the lease is over; `run` returns then.

    ``store`` is where generations are drained to. ``lease_s`` is how long the agent stays without any rank or launcher
    connected. What it may take of memory and of the store its ranks say, those of the newest attempt.
    """

    def __init__(
        self,
        store: Store,
        listener: socket.socket,
        *,
        job: str,
        url: str,
        lease_s: float,
        clock: Clock = SYSTEM,
        open_store: Callable[[str], Store] = open_store,
    ) -> None:
        self.job, self.url, self.clock = job, url, clock
        self.machine = Machine(lease_s=lease_s, now=clock.monotonic())
        self._connections = Connections(listener, heard=self._heard, closed=self._closed)
        self._clients: dict[int, Client] = {}
        self._asking: list[int] = []
        self._memory = AgentMemory(job=job)
        self._offered: dict[int, dict[int, Segment]] = {}  # connection -> segment id -> what it was given
        self._sealer = Sealer(self._memory, done=self._sealed)
        self._pages: dict[str, Page] = {}
        self._ids = 0
        self._drained_to = Limit(store)
        self._drainer = Drainer(self._drained_to, url=url, host=self)
        self._carrier = Carrier(store, host=self, open_store=open_store)
        self.machine.carrying = lambda: self._carrier.busy
        self._nodes = Nodes(
            url=url,
            machine=self.machine,
            packs=self._sealer.packs,
            facts=self._facts,
            report=self._report,
            make=lambda nbytes: self._memory.make(nbytes, "kept"),
            page=lambda: next(iter(self._pages.values()), None),
        )
        self._stop = False
        self._next_beat = 0.0
        self._results: deque[Callable[[], list[Action]]] = deque()

    def run(self) -> None:
        """Serve until the lease is over; frees all memory on the way out."""
        self._sealer.start()
        self._drainer.start()
        try:
            while not self._stop:
                self._connections.serve(_TICK_S)
                while self._results:
                    self._act(self._results.popleft()())
                self._answer_inquiries()
                self._beat()
                self._act(self._nodes.tick())
                self._act(self.machine.tick(self.clock.monotonic()))
        finally:
            self._sealer.end()
            self._nodes.close()
            self._connections.close()
            self._drainer.end(within_s=_PRUNE_S)
            self._carrier.end(within_s=0.0)
            self._memory.close()

    def leave(self) -> None:
        """End `run` once what is complete is written; may be called by a signal handler."""
        self._report(self.machine.told_to_leave)

    # --- connections -------------------------------------------------------------------------------------------------

    def _heard(self, connection: int, message: Any) -> None:
        self._act(self._handle(connection, message))

    def _closed(self, connection: int) -> None:
        client = self._clients.pop(connection, None)
        self._offered.pop(connection, None)
        self._asking = [each for each in self._asking if each != connection]
        if client is not None:
            self._act(self.machine.left(client.id, self.clock.monotonic()))

    def _beat(self) -> None:
        """Let ranks know that this process runs; not those that do not read what was sent before."""
        now = self.clock.monotonic()
        if now < self._next_beat:
            return
        self._next_beat = now + BEAT_S
        for connection, client in list(self._clients.items()):
            if client.local_rank is not None and self._connections.keeps_up(connection):
                self._connections.post(connection, Beat())

    def _connection(self, client_id: int) -> int | None:
        return next((c for c, client in self._clients.items() if client.id == client_id), None)

    # --- messages ----------------------------------------------------------------------------------------------------

    def _handle(self, connection: int, message: Any) -> list[Action]:
        client = self._clients.get(connection)
        if client is None:
            if not isinstance(message, Hello):
                raise ProtocolError(f"the first message must be a hello, not {type(message).__name__}")
            return self._hello(connection, message)
        match message:
            case Begin():
                return self.machine.begun(client, message)
            case Staged():
                return self.machine.staged(client, message)
            case Abandon():
                return self.machine.abandoned(client, message, from_wire(message.error))
            case Inquire():
                self._asking.append(connection)
                return []
            case Borrow():
                self._lend(connection, message.generation)
                return []
            case Adopt():
                return self._nodes.adopt(client, message)
            case Join():
                return self._nodes.join(client, message)
            case Introduce():
                self._nodes.introduce(client, message)
                return []
            case Release():
                return self.machine.released()
            case _:
                raise ProtocolError(f"an agent takes no {type(message).__name__}")

    def _hello(self, connection: int, hello: Hello) -> list[Action]:
        if (hello.protocol, hello.job) != (PROTOCOL, self.job) or (hello.role == "rank" and hello.url != self.url):
            raise ProtocolError("this agent serves another job, run or release")
        self._ids += 1
        is_rank = hello.role == "rank"
        client = Client(
            self._ids,
            session=hello.session,
            run=hello.run,
            rank=hello.rank,
            world=hello.world,
            local_rank=hello.local_rank if is_rank else None,
            local_world=hello.local_world,
        )
        self._clients[connection] = client
        self._offered[connection] = {}
        if is_rank:  # of the newest attempt: an agent that outlived another one does what this one wants
            self._memory.memory_bytes = hello.bounds.memory_bytes
            self._drained_to.bytes_per_s = hello.bounds.drain_bytes_per_s
        actions = self.machine.joined(client, self.clock.monotonic())
        page = self._page(hello.attempt, hello.local_world if is_rank else None)
        welcome = Welcome(pid=os.getpid(), page=page is not None)
        self._connections.post(connection, welcome, () if page is None else (page.fd,))
        return actions

    def _page(self, attempt: str, local_world: int | None) -> Page | None:
        """The progress page of an attempt; made for its first rank, and earlier ones let go. ``""`` is the newest."""
        if not attempt and local_world is None:
            attempt = next(iter(self._pages), "")
        if attempt not in self._pages and local_world is not None:
            for page in self._pages.values():
                page.close()
            self._pages = {attempt: Page.create(local_world)}
        return self._pages.get(attempt)

    def _answer_inquiries(self) -> None:
        if not self._asking or self.machine.undigested():
            return
        found = self._nodes.with_kept([self._facts(generation) for generation in self.machine.restorable()])
        asking, self._asking = self._asking, []
        for connection in asking:
            self._connections.post(connection, Generations(found=found))

    def _facts(self, generation: Generation) -> GenerationFacts:
        return GenerationFacts(
            id=generation.id,
            session=generation.session,
            seq=generation.seq,
            step=generation.step,
            epoch=generation.epoch,
            world=generation.world,
            ranks=sorted(staged.index.rank for staged in generation.staged.values()),
            slot=generation.slot,
            base_slot=self.machine.turns.follows(generation),
            run=generation.run,
        )

    def _lend(self, connection: int, generation_id: int) -> None:
        generation = self.machine.by_id(generation_id)
        lent = self._sealer.segments(generation) if generation is not None and generation.digested else []
        lent += self._nodes.kept(generation_id if generation is None else generation.name)
        if not lent:
            self._connections.post(connection, Lent(generation=generation_id, packs=[], last=True))
        for first in range(0, len(lent), _LEND_AT_ONCE):
            group = lent[first : first + _LEND_AT_ONCE]
            last = first + _LEND_AT_ONCE >= len(lent)
            message = Lent(generation=generation_id, packs=[packed for packed, _ in group], last=last)
            self._connections.post(connection, message, tuple(segment.fd for _, segment in group))

    # --- actions -----------------------------------------------------------------------------------------------------

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Tell():
                    connection = self._connection(action.client)
                    if connection is not None:
                        self._connections.post(connection, action.message)
                case Grant():
                    self._grant(action)
                case Digest():
                    self._sealer.submit(action.generation)
                case Drain():
                    self._drainer.submit(action)
                case Copy():
                    self._nodes.copy(action)
                case Broken():
                    self._nodes.broken(action)
                case Exit():
                    self._stop = True

    def _grant(self, grant: Grant) -> None:
        connection = self._connection(grant.client)
        if connection is None:
            return
        try:
            self._memory.provide(grant.segment, grant.begin.nbytes)
        except PerdureError as error:
            self._act(self.machine.no_room(grant, error))
            return
        if grant.spare is not None:
            self._memory.provide_spare(grant.spare, grant.begin.nbytes)
        given = self._offered[connection]
        there = {number: self._memory.get(number) for number in (grant.segment, grant.spare) if number is not None}
        new = {number: each for number, each in there.items() if each is not None and given.get(number) is not each}
        given |= new
        fds = tuple(each.fd for each in new.values())
        self._connections.post(connection, Granted(seq=grant.begin.seq, segment=grant.segment, offered=list(new)), fds)

    # --- what the sealer tells, on its thread -------------------------------------------------------------------------

    def _sealed(self, generation: Generation, error: PerdureError | None) -> None:
        if error is None:
            self._report(lambda: self.machine.digested(generation))
        else:
            self._report(lambda: self.machine.not_digested(generation, error))

    # --- what the drainer asks of its host, on its thread ---------------------------------------------------------

    def packs(self, generation: Generation) -> list[tuple[RankIndex, memoryview]]:
        return self._sealer.packs(generation)

    def fostered(self, generation: Generation) -> list[tuple[RankIndex, memoryview]]:
        return self._nodes.fostered(generation)

    def council(self, generation: Generation) -> Council | None:
        return self._nodes.council(generation.by)

    def may_prune(self, generation: Generation) -> bool:
        others = [client for client in list(self._clients.values()) if client.local_rank is not None]
        council = self._nodes.council(generation.by)
        return (council is None or council.leads) and all(each.session == generation.session for each in others)

    def drained(self, generation: Generation, result: Drained | PerdureError) -> None:
        if isinstance(result, Drained):
            self._nodes.let_go(generation)
        self._report(lambda: self._drained(generation, result))

    def _drained(self, generation: Generation, result: Drained | PerdureError) -> list[Action]:
        actions = self.machine.drained(generation, result)
        council, terms = self._nodes.council(generation.by), generation.terms
        carry = None if terms is None else terms.carry
        if not isinstance(result, Drained) or not (council is None or council.leads):
            return actions
        if carry is None:
            self._carrier.nudge()
        else:
            now = time.monotonic()
            self._carrier.submit(CarryOrder(carry, generation.name, generation.step, result.slot, now))
        return actions

    def spared(self) -> frozenset[int]:
        return self._carrier.spared()

    # --- what the carrier tells, on its thread ---------------------------------------------------------------------

    def carried(self, order: CarryOrder, result: Arrived | PerdureError) -> None:
        said = reached(order, result)
        council = self._nodes.council(order.save[0])
        if council is not None:  # on a thread: another node may be slow
            threading.Thread(target=council.carried, args=(order.save, said), name="carried", daemon=True).start()
        self._report(lambda: self._nodes.tell_carried(order.save, said))

    def prunes_copy(self, order: CarryOrder) -> bool:
        return all(
            each.session == order.save[0] for each in list(self._clients.values()) if each.local_rank is not None
        )

    def told(self, order: CarryOrder, text: str) -> None:
        note = Notify(text=text)
        self._report(lambda: self._nodes.tell_carried(order.save, note))

    def notify(self, generation: Generation, text: str) -> None:
        note = Notify(text=text)
        self._report(lambda: [Tell(c.id, note) for c in self._clients.values() if c.session == generation.session])

    def _report(self, result: Callable[[], list[Action]]) -> None:
        self._results.append(result)
        self._connections.wake()
