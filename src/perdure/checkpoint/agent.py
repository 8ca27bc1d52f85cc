"""The agent of a node and job: owns checkpoint memory, drains it to the store, outlives the ranks that fill it.

One thread runs the event loop and everything that decides (`generations.Machine`); one thread hashes, one thread
drains. Threads hand results back through a queue and a wake-up descriptor. Nothing here loads user code or a tensor
library; all that comes over the socket is strictly typed and bounded.
"""

from __future__ import annotations

import os
import queue
import selectors
import socket
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any

from perdure.checkpoint.agent_memory import AgentMemory
from perdure.checkpoint.carrier import Arrived, Carrier, CarryOrder, reached
from perdure.checkpoint.config import BEAT_S
from perdure.checkpoint.council import Council
from perdure.checkpoint.drainer import Drainer
from perdure.checkpoint.generations import Machine
from perdure.checkpoint.memory_packs import seal
from perdure.checkpoint.messages import (
    MAX_MESSAGE_BYTES,
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
    Message,
    Notify,
    Packed,
    Release,
    Staged,
    Welcome,
)
from perdure.checkpoint.messages import Generation as GenerationFacts
from perdure.checkpoint.nodes import Nodes
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
from perdure.errors import LinkLost, PerdureError, ProtocolError, from_wire, to_wire
from perdure.progress import Page
from perdure.shm import Segment
from perdure.state.index import RankIndex
from perdure.store import Store, open_store
from perdure.store.limit import Limit
from perdure.wire import Link, accept

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
        self.store, self.listener, self.job, self.url, self.clock = store, listener, job, url, clock
        self.machine = Machine(lease_s=lease_s, now=clock.monotonic())
        self._links: dict[int, Link] = {}
        self._clients: dict[int, Client] = {}
        self._asking: list[int] = []
        self._memory = AgentMemory(job=job)
        self._offered: dict[int, dict[int, Segment]] = {}  # connection -> segment id -> what it was given
        self._sealed: dict[int, dict[int, int]] = {}  # generation -> local rank -> bytes of its pack
        self._pages: dict[str, Page] = {}
        self._ids = 0
        self._drained_to = Limit(store)
        self._drainer = Drainer(self._drained_to, url=url, host=self)
        self._carrier = Carrier(store, host=self, open_store=open_store)
        self.machine.carrying = lambda: self._carrier.busy
        self._nodes = Nodes(
            url=url,
            machine=self.machine,
            packs=self.packs,
            facts=self._facts,
            report=self._report,
            make=lambda nbytes: self._memory.make(nbytes, "kept"),
            page=lambda: next(iter(self._pages.values()), None),
        )
        self._stop = False
        self._next_beat = 0.0
        self._results: deque[Callable[[], list[Action]]] = deque()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._digest_queue: queue.SimpleQueue[Generation | None] = queue.SimpleQueue()
        self._selector = selectors.DefaultSelector()

    def run(self) -> None:
        """Serve until the lease is over; frees all memory on the way out."""
        threading.Thread(target=self._digest_forever, name="digest", daemon=True).start()
        self._drainer.start()
        self._selector.register(self.listener, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        try:
            while not self._stop:
                for key, events in self._selector.select(_TICK_S):
                    self._serve(key.fileobj, events)
                while self._results:
                    self._act(self._results.popleft()())
                self._answer_inquiries()
                self._beat()
                self._act(self._nodes.tick())
                self._act(self.machine.tick(self.clock.monotonic()))
        finally:
            self._digest_queue.put(None)
            self._nodes.close()
            for link in self._links.values():
                link.close()
            self.listener.close()  # so that nobody takes this agent for one that serves
            self._drainer.end(within_s=_PRUNE_S)
            self._carrier.end(within_s=0.0)

    def leave(self) -> None:
        """End `run` once what is complete is written; may be called by a signal handler."""
        self._report(self.machine.told_to_leave)

    # --- connections -------------------------------------------------------------------------------------------------

    def _serve(self, source: Any, events: int) -> None:
        if source is self.listener:
            self._welcome_next()
            return
        if source == self._wake:
            os.eventfd_read(self._wake)
            return
        connection: int = source
        link = self._links.get(connection)
        if link is None:
            return
        try:
            if events & selectors.EVENT_WRITE:
                self._flush(connection)
            if events & selectors.EVENT_READ:
                for message, fds in link.feed():
                    for fd in fds:  # no message to the agent carries any
                        os.close(fd)
                    self._act(self._handle(connection, message))
        except (LinkLost, ProtocolError):
            self._drop(connection)
        except Exception:  # a bug must cost one connection, not the memory of all
            traceback.print_exc()
            self._drop(connection)

    def _welcome_next(self) -> None:
        try:
            link = accept(self.listener, type=Message, max_body_bytes=MAX_MESSAGE_BYTES)
        except (ProtocolError, LinkLost):  # another user, or gone already: nothing of ours is touched
            return
        if link is not None:
            connection = link.fileno()
            self._links[connection] = link
            self._selector.register(connection, selectors.EVENT_READ)

    def _drop(self, connection: int) -> None:
        link = self._links.pop(connection, None)
        if link is None:
            return
        self._selector.unregister(connection)
        link.close()
        client = self._clients.pop(connection, None)
        self._offered.pop(connection, None)
        self._asking = [each for each in self._asking if each != connection]
        if client is not None:
            self._act(self.machine.left(client.id, self.clock.monotonic()))

    def _post(self, connection: int, message: Any, fds: tuple[int, ...] = ()) -> None:
        link = self._links.get(connection)
        if link is None:
            return
        link.post(message, fds)
        try:
            self._flush(connection)
        except LinkLost:
            self._drop(connection)

    def _flush(self, connection: int) -> None:
        link = self._links[connection]
        done = link.flush()
        self._selector.modify(connection, selectors.EVENT_READ | (0 if done else selectors.EVENT_WRITE))

    def _beat(self) -> None:
        """Let ranks know that this process runs; not those that do not read what was sent before."""
        now = self.clock.monotonic()
        if now < self._next_beat:
            return
        self._next_beat = now + BEAT_S
        for connection, client in list(self._clients.items()):
            if client.local_rank is not None and not self._links[connection].wants_write:
                self._post(connection, Beat())

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
        self._post(connection, Welcome(pid=os.getpid(), page=page is not None), (page.fd,) if page is not None else ())
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
            self._post(connection, Generations(found=found))

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
        lent: list[tuple[Packed, Segment]] = []
        if generation is not None and generation.digested and generation.staged:
            sealed = self._sealed[generation.id]
            lent = [
                (
                    Packed(nbytes=sealed[lane], number=lane, index=generation.staged[lane].index),
                    self._memory[generation.lanes[lane]],
                )
                for lane in sorted(generation.lanes)
            ]
        lent += self._nodes.kept(generation_id if generation is None else generation.name)
        if not lent:
            self._post(connection, Lent(generation=generation_id, packs=[], last=True))
        for first in range(0, len(lent), _LEND_AT_ONCE):
            group = lent[first : first + _LEND_AT_ONCE]
            last = first + _LEND_AT_ONCE >= len(lent)
            message = Lent(generation=generation_id, packs=[packed for packed, _ in group], last=last)
            self._post(connection, message, tuple(segment.fd for _, segment in group))

    # --- actions -----------------------------------------------------------------------------------------------------

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Tell():
                    connection = self._connection(action.client)
                    if connection is not None:
                        self._post(connection, action.message)
                case Grant():
                    self._grant(action)
                case Digest():
                    self._digest_queue.put(action.generation)
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
        self._post(connection, Granted(seq=grant.begin.seq, segment=grant.segment, offered=list(new)), fds)

    # --- threads -----------------------------------------------------------------------------------------------------

    def _digest_forever(self) -> None:
        while (generation := self._digest_queue.get()) is not None:
            sealed: dict[int, int] = {}
            try:
                for lane, staged in generation.staged.items():
                    view = self._memory[generation.lanes[lane]].view
                    sealed[lane] = seal(staged.index, view)
            except Exception as error:  # also a bug must reach the ranks that wait, not end the thread
                told = from_wire(to_wire(error))
                self._report(lambda g=generation, e=told: self.machine.not_digested(g, e))  # type: ignore[misc]
                continue
            alive = {each.id for each in list(self.machine.generations)}
            for gone in self._sealed.keys() - alive:
                del self._sealed[gone]
            self._sealed[generation.id] = sealed
            self._report(lambda g=generation: self.machine.digested(g))  # type: ignore[misc]

    # --- what the drainer asks of its host, on its thread ---------------------------------------------------------

    def packs(self, generation: Generation) -> list[tuple[RankIndex, memoryview]]:
        if not generation.staged:  # it is here for what is kept of it for others
            return []
        sealed = self._sealed[generation.id]
        return [
            (staged.index, self._memory[generation.lanes[lane]].view[: sealed[lane]])
            for lane, staged in sorted(generation.staged.items())
        ]

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
        os.eventfd_write(self._wake, 1)
