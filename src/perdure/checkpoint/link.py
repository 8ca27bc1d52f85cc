"""A rank's connection to its node's agent: starts the agent if there is none, asks, and hears what became of saves.

The thread that trains sends; one reader thread receives, answers whoever waits and calls ``on_message`` for the rest.
When the agent dies, everybody who waits is told at once, and ``on_lost`` is called, once.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import Any

from perdure.checkpoint.messages import (
    MAX_MESSAGE_BYTES,
    Beat,
    Borrow,
    Disband,
    Failed,
    Generation,
    Generations,
    Granted,
    Hello,
    Inquire,
    Introduce,
    Introduced,
    Join,
    Joined,
    Lent,
    Message,
    Packed,
    Welcome,
)
from perdure.clock import Deadline
from perdure.codec.digest import digest
from perdure.errors import AgentLost, DeadlineExceeded, LinkLost, StorageError, from_wire
from perdure.process.environ import without_mark
from perdure.process.handle import Handle
from perdure.process.runtime_dir import runtime_dir
from perdure.progress import Page
from perdure.shm import Segment
from perdure.wire import Address, Link, connect

__all__ = ["AgentLink", "Loan", "socket_path", "socket_prefix"]

_LOOK_S = 0.5
_TOLD_BYTES = 1000
_END_S = 5.0  # that a process may take to go after it was killed
_FIRST_S = 3.0  # that the other ranks let local rank 0 have, so that a node does not start an agent for each of them
_started: list[subprocess.Popen[bytes]] = []  # it outlives this process; kept so that nobody waits for it
Received = tuple[Any, tuple[int, ...]]


def socket_path(*, job: str, url: str) -> Path:
    """Where the agent of this user, job and run listens."""
    return runtime_dir() / f"{socket_prefix(job)}{digest(url.encode())[:12]}.sock"


def socket_prefix(job: str) -> str:
    """How the names of the sockets of all agents of ``job`` begin."""
    safe = "".join(c if c.isalnum() or c in "-_" else "_" for c in job)[:16]
    return f"{safe}-{digest(job.encode())[:12]}-"


class Loan:
    """A borrowed pack: its segment, mapped read-only, and what lies in it."""

    def __init__(self, packed: Packed, segment: Segment) -> None:
        self.packed = packed
        self.segment = segment

    @property
    def view(self) -> memoryview:
        """The sealed pack."""
        return self.segment.view[: self.packed.nbytes]


class AgentLink:
    """One connection of one rank. Methods raise `AgentLost` once the agent is gone, `DeadlineExceeded` if slow."""

    def __init__(
        self,
        link: Link,
        *,
        silent_s: float,
        on_message: Callable[[Any], None],
        on_lost: Callable[[AgentLost], None],
    ) -> None:
        self._link = link
        self._silent_s = silent_s
        self._process = Handle(link.peer_pid)
        self._on_message = on_message
        self._on_lost = on_lost
        self._sending = threading.Lock()
        self._lock = threading.Lock()
        self._waiting: dict[tuple[str, int], Future[Any]] = {}
        self._lent: list[Loan] = []
        self._error: AgentLost | None = None
        self._closing = False
        self.segments: dict[int, Segment] = {}
        self._cold: set[int] = set()
        self.page: Page | None = None
        self.agent_pid = 0

    @classmethod
    def open(
        cls,
        hello: Hello,
        *,
        start: Sequence[str] | None,
        deadline: Deadline,
        silent_s: float,
        on_message: Callable[[Any], None],
        on_lost: Callable[[AgentLost], None],
    ) -> AgentLink:
        """Connect to the agent of ``hello.job`` and ``hello.url``; run the command ``start`` if nobody listens.

        An agent whose lease ends just now is waited out: the next one is met. One that is stopped (by a signal) is
        ended after ``silent_s`` without an answer. Raises `AgentLost` if none can be met.
        """
        link, welcome, page = _meet(hello, start=start, deadline=deadline, silent_s=silent_s)
        self = cls(link, silent_s=silent_s, on_message=on_message, on_lost=on_lost)
        self.agent_pid = welcome.pid
        if welcome.page:
            self.page = Page.attach(page[0])
        threading.Thread(target=self._read_forever, name="perdure-agent-link", daemon=True).start()
        return self

    @property
    def lost(self) -> bool:
        """Whether the agent is gone."""
        return self._error is not None

    def post(self, message: Any) -> None:
        """Send ``message``; no answer is awaited here."""
        self._send(message)

    def grant(self, begin: Any, deadline: Deadline) -> Segment:
        """Ask for a segment to fill; waits while all of this rank's are in use. Raises the save's error if it fails."""
        future: Future[Received] = self._expect("granted", begin.seq)
        self._send(begin)
        reply, _ = self._result(future, deadline)
        self._cold.discard(reply.segment)  # the save itself touches it
        return self.segments[reply.segment]

    def populate_spares(self) -> None:
        """Touch segments that are mapped but not used yet, so that the next save does not pay for their pages."""
        try:
            while True:
                self.segments[self._cold.pop()].populate()
        except KeyError:
            pass  # none is left
        except StorageError:
            pass  # no memory just now: the save that needs it will see

    def generations(self, deadline: Deadline) -> list[Generation]:
        """What can be restored from the agent's memory, newest first."""
        future: Future[Received] = self._expect("generations", 0)
        self._send(Inquire())
        reply, _ = self._result(future, deadline)
        found: list[Generation] = reply.found
        return found

    def borrow(self, generation: int, deadline: Deadline) -> list[Loan]:
        """Map the packs of ``generation`` read-only; empty if it is gone. The caller closes the segments."""
        future: Future[Any] = self._expect("lent", generation)
        self._send(Borrow(generation=generation))
        loans: list[Loan] = self._result(future, deadline)
        return loans

    def join(self, join: Join, deadline: Deadline) -> int:
        """Tell the agent of its session's nodes; return the port at which it listens for the others."""
        future: Future[Received] = self._expect("joined", 0)
        self._send(join)
        reply, _ = self._result(future, deadline)
        if reply.error is not None:
            raise from_wire(reply.error)
        return int(reply.port)

    def introduce(self, addresses: Sequence[Address], names: Sequence[str], partner: int, deadline: Deadline) -> None:
        """Let the agent meet those of the other nodes; ``partner`` is to keep copies. Raises what prevents it."""
        future: Future[Received] = self._expect("introduced", 0)
        within_s = deadline.left()
        self._send(Introduce(addresses=list(addresses), names=list(names), partner=partner, within_s=within_s))
        reply, _ = self._result(future, deadline)
        if reply.error is not None:
            raise from_wire(reply.error)

    def close(self) -> None:
        """End the connection; segments stay mapped until nobody uses them."""
        self._closing = True
        with self._sending:
            self._link.shutdown()

    # --- inside ------------------------------------------------------------------------------------------------------

    def _expect(self, kind: str, number: int) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            if self._error is not None:
                raise self._error
            self._waiting[kind, number] = future
        return future

    def _result(self, future: Future[Any], deadline: Deadline) -> Any:
        try:
            return future.result(deadline.left())
        except FutureTimeout:
            deadline.check("an answer of the node's agent")
            raise DeadlineExceeded(f"gave up waiting for {deadline.what}") from None

    def _send(self, message: Any) -> None:
        try:
            with self._sending:
                self._link.send(message)
        except LinkLost as error:
            raise self._gone(error) from error

    def _gone(self, error: Exception) -> AgentLost:
        with self._lock:
            if self._error is None and isinstance(error, AgentLost):  # that of another node: none commits any more
                self._error = error
            elif self._error is None:
                self._error = AgentLost(
                    f"the node's agent (pid {self.agent_pid}) is gone ({error})", pid=self.agent_pid
                )
            return self._error

    def _read_forever(self) -> None:
        slice_s, silent_s = min(1.0, self._silent_s / 4), 0.0
        try:
            while True:
                try:
                    message, fds = self._link.recv(Deadline.after(slice_s, "a message of the agent"))
                except DeadlineExceeded:  # counted in slices: this process may itself have been stopped meanwhile
                    silent_s += slice_s
                    if silent_s >= self._silent_s:
                        raise self._silent() from None
                    continue
                silent_s = 0.0
                self._deliver(message, fds)
        except Exception as error:  # whatever it is, nobody listens from here on: whoever waits must hear of it
            lost = self._gone(error)
            self._link.shutdown()
            with self._lock:
                waiting, self._waiting = self._waiting, {}
            for future in waiting.values():
                future.set_exception(lost)
            with self._sending:
                self._link.close()
            if not self._closing:
                self._on_lost(lost)

    def _silent(self) -> AgentLost:
        """The agent gives no sign of life: end it, so that it commits nothing when it is awake again."""
        pid = self.agent_pid
        why = f"the node's agent (pid {pid}) has given no sign of life for {self._silent_s:g} s"
        if self._process.end(within_s=_END_S):
            return AgentLost(f"{why}: it was stopped, or hung, and has been ended", pid=pid)
        return AgentLost(f"{why} and could not be ended; see what holds it, and kill it", pid=pid)

    def _deliver(self, message: Any, fds: tuple[int, ...]) -> None:
        match message:
            case Beat():
                pass
            case Granted():
                for segment, fd in zip(message.offered, fds, strict=True):  # also if nobody waits any more
                    self.segments[segment] = Segment.attach(fd, writable=True)  # an old one lives while it is used
                    self._cold.add(segment)
                    os.close(fd)
                self._answer(("granted", message.seq), (message, fds))
            case Generations():
                self._answer(("generations", 0), (message, fds))
            case Lent():
                for packed, fd in zip(message.packs, fds, strict=True):
                    self._lent.append(Loan(packed, Segment.attach(fd, writable=False)))
                    os.close(fd)
                if message.last:
                    loans, self._lent = self._lent, []
                    self._answer(("lent", message.generation), loans)
            case Joined():
                self._answer(("joined", 0), (message, fds))
            case Introduced():
                self._answer(("introduced", 0), (message, fds))
            case Disband():
                raise from_wire(message.error)
            case Failed():
                with self._lock:
                    waiting = self._waiting.pop(("granted", message.seq), None)
                if waiting is not None:
                    waiting.set_exception(from_wire(message.error))
                self._on_message(message)
            case _:
                self._on_message(message)

    def _answer(self, key: tuple[str, int], value: Any) -> None:
        with self._lock:
            future = self._waiting.pop(key, None)
        if future is not None:
            future.set_result(value)


def _meet(
    hello: Hello, *, start: Sequence[str] | None, deadline: Deadline, silent_s: float
) -> tuple[Link, Welcome, tuple[int, ...]]:
    path = socket_path(job=hello.job, url=hello.url)
    agent: subprocess.Popen[bytes] | None = None
    first = Deadline.after(0.0 if hello.local_rank == 0 else _FIRST_S, "the agent that local rank 0 starts")
    while True:
        link: Link | None = None
        look = Deadline.after(0.0 if agent is None and first.passed() else _LOOK_S, "the node's agent")
        try:
            link = connect(path, deadline=look, type=Message, max_body_bytes=MAX_MESSAGE_BYTES)
            link.send(hello, deadline=deadline)
            welcome, fds = _welcome(link, deadline, silent_s)
            return link, welcome, fds
        except (LinkLost, DeadlineExceeded) as error:
            if link is not None:  # it was leaving, or it serves another release
                link.close()
                time.sleep(_LOOK_S)
            code = None if agent is None else agent.poll()
            if start is None or deadline.passed() or code:
                log = path.with_suffix(".log")
                why = f"the node's agent does not answer ({error})"
                if code:
                    why = f"the node's agent ended at once with code {code} ({_last_line(log) or 'it said nothing'})"
                raise AgentLost(f"{why}; its log is {log}") from error
            if link is None and first.passed() and (agent is None or code is not None):
                agent = _start_agent(start, path)  # the last one, if any, gave way to one that was leaving


def _welcome(link: Link, deadline: Deadline, silent_s: float) -> tuple[Welcome, tuple[int, ...]]:
    """The agent's answer; an agent that is stopped answers nobody, and is ended so that another can be started."""
    process = Handle(link.peer_pid)
    while True:
        try:
            return link.recv(Deadline.after(min(silent_s, deadline.left()), deadline.what))
        except DeadlineExceeded:
            if process.stopped() and process.end(within_s=_END_S):
                raise LinkLost(f"it was stopped (pid {process.pid}), and has been ended") from None
            if deadline.passed():
                raise


def _last_line(log: Path) -> str:
    """The last thing that a log says, for people."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TOLD_BYTES))
            lines = file.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _start_agent(command: Sequence[str], path: Path) -> subprocess.Popen[bytes]:
    """Start the agent apart from this process: own session, no mark of the attempt, its output in a log of its own."""
    with open(path.with_suffix(".log"), "ab") as log:
        agent = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=without_mark(),
            start_new_session=True,
        )
    _started.append(agent)
    return agent
