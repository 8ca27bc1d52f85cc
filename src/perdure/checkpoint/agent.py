"""The agent of a node and job: owns checkpoint memory, drains it to the store, outlives the ranks that fill it.

One thread runs the event loop and everything that decides (`generations.Machine`); one thread hashes, one thread
drains. Threads hand results back through a queue and a wake-up descriptor. Nothing here loads user code or a tensor
library; all that comes over the socket is strictly typed and bounded.
"""

from __future__ import annotations

import contextlib
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

from perdure.checkpoint import drain as draining
from perdure.checkpoint.generations import (
    Action,
    Client,
    Digest,
    Drain,
    Exit,
    Generation,
    Grant,
    Machine,
    Tell,
)
from perdure.checkpoint.memory_packs import seal
from perdure.checkpoint.messages import (
    MAX_MESSAGE_BYTES,
    PROTOCOL,
    Abandon,
    Adopt,
    Begin,
    Borrow,
    Generations,
    Granted,
    Hello,
    Inquire,
    Lent,
    Message,
    Notify,
    Packed,
    Release,
    Staged,
    Welcome,
)
from perdure.checkpoint.messages import Generation as GenerationFacts
from perdure.checkpoint.unchanged import Stored, recall
from perdure.clock import SYSTEM, Clock
from perdure.errors import LinkLost, PerdureError, ProtocolError, StorageFull, Superseded, from_wire, to_wire
from perdure.progress import Page
from perdure.shm import Segment
from perdure.store import Run, Store
from perdure.upkeep.keep import parse
from perdure.upkeep.retention import Retention
from perdure.wire import Link, accept

__all__ = ["Agent"]

_TICK_S = 0.2
_MARGIN_NBYTES = 256 << 20
_LEND_AT_ONCE = 32
_PRUNE_S = 5.0  # that a prune may take when all else is done; the next one finishes it


class Agent:
    """Serves one run and job on ``listener`` until the lease is over; `run` returns then.

    ``store`` is where generations are drained to; ``node`` names this writer in the store. ``lease_s`` is how long the
    agent stays without any rank or launcher connected.
    """

    def __init__(
        self,
        store: Store,
        listener: socket.socket,
        *,
        job: str,
        url: str,
        lease_s: float,
        node: str = "node0",
        clock: Clock = SYSTEM,
    ) -> None:
        self.store, self.listener, self.job, self.url, self.node, self.clock = store, listener, job, url, node, clock
        self.machine = Machine(lease_s=lease_s, now=clock.monotonic())
        self._links: dict[int, Link] = {}
        self._clients: dict[int, Client] = {}
        self._asking: list[int] = []
        self._segments: dict[int, Segment] = {}
        self._offered: dict[int, dict[int, Segment]] = {}  # connection -> segment id -> what it was given
        self._sealed: dict[int, dict[int, int]] = {}  # generation -> local rank -> bytes of its pack
        self._pages: dict[str, Page] = {}
        self._ids = 0
        self._drains = 0
        self._stored: Stored | None = None  # of the drain thread
        self._retention = Retention()  # of the drain thread
        self._stop = False
        self._results: deque[Callable[[], list[Action]]] = deque()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._digest_queue: queue.SimpleQueue[Generation | None] = queue.SimpleQueue()
        self._drain_queue: queue.SimpleQueue[tuple[Drain, int] | None] = queue.SimpleQueue()
        self._selector = selectors.DefaultSelector()

    def run(self) -> None:
        """Serve until the lease is over; frees all memory on the way out."""
        threads = [
            threading.Thread(target=self._digest_forever, name="digest", daemon=True),
            threading.Thread(target=self._drain_forever, name="drain", daemon=True),
        ]
        for thread in threads:
            thread.start()
        self._selector.register(self.listener, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        try:
            while not self._stop:
                for key, events in self._selector.select(_TICK_S):
                    self._serve(key.fileobj, events)
                while self._results:
                    self._act(self._results.popleft()())
                self._answer_inquiries()
                self._act(self.machine.tick(self.clock.monotonic()))
        finally:
            self._digest_queue.put(None)
            self._drain_queue.put(None)
            for link in self._links.values():
                link.close()
            self.listener.close()  # so that nobody takes this agent for one that serves
            threads[1].join(_PRUNE_S)

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
                return self.machine.adopted(client, message)
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
        found = [self._facts(generation) for generation in self.machine.restorable()]
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
            base_slot=self.machine.base_of(generation),
            run=generation.run,
        )

    def _lend(self, connection: int, generation_id: int) -> None:
        generation = self.machine.by_id(generation_id)
        if generation is None or not generation.digested:
            self._post(connection, Lent(generation=generation_id, packs=[], last=True))
            return
        sealed = self._sealed[generation.id]
        lanes = sorted(generation.lanes)
        for first in range(0, len(lanes), _LEND_AT_ONCE):
            group = lanes[first : first + _LEND_AT_ONCE]
            packs = [Packed(nbytes=sealed[lane], number=lane, index=generation.staged[lane].index) for lane in group]
            fds = tuple(self._segments[generation.lanes[lane]].fd for lane in group)
            last = first + _LEND_AT_ONCE >= len(lanes)
            self._post(connection, Lent(generation=generation.id, packs=packs, last=last), fds)

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
                    self._drains += 1
                    self._drain_queue.put((action, self._drains))
                case Exit():
                    self._stop = True

    def _grant(self, grant: Grant) -> None:
        connection = self._connection(grant.client)
        if connection is None:
            return
        try:
            self._provide(grant.segment, grant.nbytes)
        except PerdureError as error:
            client = self._clients[connection]
            self._act(self.machine.abandoned(client, Abandon(seq=grant.seq, error=to_wire(error)), error))
            return
        spare = grant.segment ^ 1
        taken = {segment for g in self.machine.generations for segment in g.lanes.values()}
        if spare not in taken and _available_nbytes() > 2 * grant.nbytes + _MARGIN_NBYTES:
            with contextlib.suppress(PerdureError):  # made when it is needed, or refused then
                self._provide(spare, grant.nbytes)
        given = self._offered[connection]
        offered = [
            segment
            for segment in (grant.segment, spare)
            if segment in self._segments and given.get(segment) is not self._segments[segment]
        ]
        given.update((segment, self._segments[segment]) for segment in offered)
        fds = tuple(self._segments[segment].fd for segment in offered)
        self._post(connection, Granted(seq=grant.seq, segment=grant.segment, offered=offered), fds)

    def _provide(self, segment: int, nbytes: int) -> None:
        """See that ``segment`` exists and is large enough; refuse rather than be killed for want of memory."""
        have = self._segments.get(segment)
        if have is not None and have.nbytes >= nbytes:
            return
        if have is not None:
            del self._segments[segment]  # freed once no view of it is left
        if nbytes + _MARGIN_NBYTES > _available_nbytes():
            raise StorageFull(
                f"no memory for a checkpoint of {nbytes >> 20} MiB: {_available_nbytes() >> 20} MiB are available on "
                "this node; save less often to disk alone, or use more nodes",
                file="memory",
            )
        self._segments[segment] = Segment.create(nbytes, label=f"{self.job}.{segment}")

    # --- threads -----------------------------------------------------------------------------------------------------

    def _digest_forever(self) -> None:
        while (generation := self._digest_queue.get()) is not None:
            sealed: dict[int, int] = {}
            try:
                for lane, staged in generation.staged.items():
                    view = self._segments[generation.lanes[lane]].view
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

    def _drain_forever(self) -> None:
        while (order := self._drain_queue.get()) is not None:
            action, seq = order
            began = time.monotonic()
            result: tuple[int, int, int, float] | PerdureError
            try:
                result = (*self._drain(action, seq), time.monotonic() - began)
            except Exception as error:  # also a bug must reach the ranks that wait, not end the thread
                result = from_wire(to_wire(error))  # without its traceback, which holds views of the segments
            self._report(lambda g=action.generation, r=result: self.machine.drained(g, r))  # type: ignore[misc]
            if not isinstance(result, PerdureError) and action.generation.lead.keep:
                self._retain(action.generation)

    def _retain(self, generation: Generation) -> None:
        """After a commit, prune by the rules that came with it; what goes wrong is told, and no save fails by it.

        Not while another session is here: it may be about to go on from any step. Its own first commit comes soon.
        """
        others = [client for client in list(self._clients.values()) if client.local_rank is not None]
        if any(client.session != generation.session for client in others):
            return
        try:
            told = self._retention.keep(Run.open(self.store, create=False), parse(generation.lead.keep))
        except Exception as error:  # a bug too
            told = f"older steps could not be pruned ({error}); the next save tries again"
        if told is not None:
            note = Notify(text=told)
            self._report(lambda: [Tell(c.id, note) for c in self._clients.values() if c.session == generation.session])

    def _drain(self, action: Drain, seq: int) -> tuple[int, int, int]:
        generation = action.generation
        lead = generation.lead
        run = Run.open(self.store, create=not generation.run)
        if generation.run and run.marker.run != generation.run:
            raise Superseded(
                f"another run lies in {self.url} than the one that is trained: this writer must stop",
                epoch=generation.epoch,
                newer=None,
            )
        order = draining.Order(
            epoch=generation.epoch,
            step=generation.step,
            seq=seq,
            base=action.base,
            meta=lead.meta,
            metric=lead.metric,
            pinned=lead.pinned,
            session=generation.session,
            save=generation.seq,
            claim=generation.claim,
        )
        sealed = self._sealed[generation.id]
        packs = [
            (staged.index, self._segments[generation.lanes[lane]].view[: sealed[lane]])
            for lane, staged in sorted(generation.staged.items())
        ]
        stored = self._stored or recall(run, action.base)
        part = draining.write_part(run, order, writer=self.node, packs=packs, stored=stored)
        made = draining.commit(run, order, [part.ref])
        self._stored = part.stored(made.slot)
        raw = sum(staged.raw_nbytes for staged in generation.staged.values())
        return made.slot, raw, part.nbytes

    def _report(self, result: Callable[[], list[Action]]) -> None:
        self._results.append(result)
        os.eventfd_write(self._wake, 1)


def _available_nbytes() -> int:
    """Memory that can be had without swapping, as the kernel reckons."""
    with open("/proc/meminfo", "rb") as file:
        for line in file:
            if line.startswith(b"MemAvailable:"):
                return int(line.split()[1]) << 10
    return 1 << 62
