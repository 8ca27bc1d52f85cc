"""The controller of a job: carries out what `perdure.supervisor.machine` decides, for launchers on all nodes.

One thread looks at all links and owns the machine. Who connects is first heard (secret, protocol, job) on a short-lived
thread of its own, so that nobody who connects and says nothing keeps the others waiting.
"""

from __future__ import annotations

import contextlib
import os
import queue
import random
import select
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from perdure.clock import SYSTEM, Clock, Deadline
from perdure.errors import PerdureError, ProtocolError
from perdure.events import Fact, Log, Notice, StepsBegan
from perdure.process.handle import is_running
from perdure.supervisor import messages as m
from perdure.supervisor import vocabulary as v
from perdure.supervisor.config import Spec
from perdure.supervisor.folder import JobFolder, boot_id
from perdure.supervisor.hearing import Hearing
from perdure.supervisor.job import Job, NodeFacts
from perdure.supervisor.journal import Journal
from perdure.supervisor.machine import Machine
from perdure.supervisor.viewing import view_of
from perdure.supervisor.watching import Judge
from perdure.wire import NodeLink, accept_node, listen_node, own_address

__all__ = ["Controller"]

_HANDSHAKE_S = 5.0
_MESSAGE_S = 2.0
_MOST_GREETING = 64
_RELEASE_S = 5.0
_ALONE_S = 10.0
_QUIET_STEPS_S = 5.0
_LOOKING_LATE_S = 1.0


@dataclass(slots=True)
class Peer:
    """A connection: of a launcher if ``node`` is set, else of a person's tool."""

    link: NodeLink
    node: NodeFacts | None
    listens: bool
    heard_s: float
    report: m.Report = field(default_factory=m.Report)


class Controller:
    """One job. For the main thread of a process of its own; ``again`` if another controller has left ``job``."""

    def __init__(
        self,
        folder: JobFolder,
        spec: Spec,
        job: Job,
        *,
        journal: Journal,
        secret: bytes,
        listen: tuple[str, int],
        again: bool,
        log: Log,
        judge: Judge | None = None,
        clock: Clock = SYSTEM,
        rng: random.Random | None = None,
    ) -> None:
        self._folder, self._spec, self._journal = folder, spec, journal
        self._secret, self._log, self._clock = secret, log, clock
        self._began_at = clock.wall()
        self._again = again
        self._told_before = max((told.number for told in journal.facts(job.run, most=1)), default=0)
        self._machine = Machine(spec, job, now=clock.monotonic(), rng=rng or random.Random(), again=again)
        self._written: Job | None = None
        self._written_s = clock.monotonic()
        self._steps_only = False  # of what was written last
        told = journal.facts(job.run) if again else ()
        began = [msgspec.json.decode(each.fields)["attempt"] for each in told if each.kind == "steps-began"]
        self._moved_in = -1  # the last attempt with a new step,
        self._stepped_in = job.attempt if job.attempt in began else -1  # and with any
        self._listener = listen_node(listen[0], port=listen[1])
        self._peers: list[Peer] = []
        self._greeted: queue.SimpleQueue[tuple[NodeLink, m.Hello]] = queue.SimpleQueue()
        self._greeting = threading.Semaphore(_MOST_GREETING)
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._next_beat_s = self._looked_s = self._alone_since_s = clock.monotonic()
        self._over = False
        self._n_memos = 0
        self._hearing = Hearing(judge, handle=self._handle, notice=self._notice)

    @property
    def address(self) -> tuple[str, int]:
        """Where launchers find it."""
        host, port = self._listener.getsockname()[:2]
        return (own_address(None) if host in ("0.0.0.0", "::") else str(host), int(port))

    def run(self) -> None:
        """Serve until the job is over and every launcher has been told, or nobody has been there for a while."""
        self._write(())
        self._folder.publish(self.address, term=self._machine.job.term)
        threading.Thread(target=self._accept_forever, name="perdure-accept", daemon=True).start()
        if self._again:
            self._resumed()
        for node in self._machine.job.places:  # of a job that another controller has left
            if _is_dead(node):
                self._handle(v.Left(node.name, "dead", self._clock.monotonic()))
        try:
            while not self._over and not self._left_alone():
                self._look()
            self._release()
        finally:
            self._hearing.close()
            self._folder.unpublish(self.address)
            for peer in self._peers:
                peer.link.close()
            self._listener.close()

    def _resumed(self) -> None:
        job = self._machine.job
        self._notice(f"taking up the run that was left in {job.state.value}, attempt {job.attempt}")

    def _notice(self, text: str) -> None:
        """Tell a sentence that changes nothing."""
        fact, job = Notice(text=text), self._machine.job
        (number,) = self._journal.write(None, [fact], run=job.run, at=self._clock.wall())
        self._log.record(fact)
        self._tell(m.Tell(number=number, sentence=str(fact)))

    # --- who is there -------------------------------------------------------------------------------------------------

    def _accept_forever(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return  # the controller ends
            if not self._greeting.acquire(timeout=_HANDSHAKE_S):
                sock.close()  # too many who say nothing; an honest launcher tries again
                continue
            threading.Thread(target=self._greet, args=(sock,), name="perdure-greet", daemon=True).start()

    def _greet(self, sock: socket.socket) -> None:
        peer = _peer_of(sock)
        try:
            deadline = Deadline.after(_HANDSHAKE_S, "a launcher's first message")
            link = accept_node(sock, self._secret_of, deadline=deadline, type=m.Up, max_body_bytes=m.MAX_MESSAGE_BYTES)
            hello, _ = link.recv(deadline)
            if isinstance(hello, m.Hello):
                self._greeted.put((link, hello))
                with contextlib.suppress(BlockingIOError):  # it will look anyhow
                    os.write(self._wake_write, b".")
            else:
                link.close()
        except ProtocolError as error:
            sock.close()
            self._log.print(f"{peer} was not let in: {error}")  # to our own log: nobody of the job said it
        except (PerdureError, OSError):
            sock.close()  # gone: nothing that we could tell whom
        finally:
            self._greeting.release()

    def _secret_of(self, name: str) -> bytes | None:
        return self._secret if name == self._spec.name else None

    def _take_in(self) -> None:
        while True:
            try:
                link, hello = self._greeted.get_nowait()
            except queue.Empty:
                return
            refusal = self._refusal(hello)
            if refusal is not None:
                self._try_send(link, refusal)
                link.close()
                continue
            job = self._machine.job
            waits = self._spec.waits
            welcome = m.Welcome(
                term=job.term, run=job.run, beat_s=waits.beat_s, lease_s=waits.lease_s, orphan_s=waits.orphan_s
            )
            if not self._try_send(link, welcome):
                link.close()
                continue
            peer = Peer(link, hello.node, hello.listens, self._clock.monotonic())
            if hello.node is not None:
                for old in [each for name, each in self._launchers() if name == hello.node.name]:
                    self._peers.remove(old)
                    old.link.close()
            self._peers.append(peer)
            if hello.listens:
                for fact in self._journal.facts(job.run, since=hello.told or self._told_before):  # of this start
                    self._send(peer, m.Tell(number=fact.number, sentence=fact.sentence))
            if hello.node is not None:
                self._handle(v.Joined(hello.node, hello.holding))
                self._send_memo()  # the roster has grown

    def _refusal(self, hello: m.Hello) -> m.Refused | None:
        job = self._machine.job
        if hello.protocol != m.PROTOCOL:
            return m.Refused(
                sentence=f"the controller speaks protocol {m.PROTOCOL}, not {hello.protocol}: run one release"
            )
        if hello.term > job.term:
            self._over = True  # another controller has taken over
            return m.Refused(sentence=f"there is a newer controller (term {hello.term})", exit_code=75)
        node = hello.node
        if node is None:
            return None
        twin = next((each for name, each in self._launchers() if name == node.name), None)
        if twin is not None and twin.node is not None and twin.node.pid != node.pid and self._alive(twin):
            return m.Refused(sentence=f"there is a node {node.name} already; give this one another --node-name")
        ours = next((each.node.command for each in self._peers if each.node), node.command)
        if node.command != ours:
            return m.Refused(sentence=f"node {node.name} would run another command than the others")
        if job.state.final:
            return m.Refused(sentence=f"job {job.name} is over: {job.state.value}", exit_code=job.exit_code or 0)
        return None

    def _launchers(self) -> list[tuple[str, Peer]]:
        """The links of launchers, with the names of their nodes; others may come and go meanwhile."""
        return [(peer.node.name, peer) for peer in self._peers if peer.node is not None]

    def _alive(self, peer: Peer) -> bool:
        """Whether the launcher behind ``peer`` gives signs of life."""
        return self._clock.monotonic() - peer.heard_s < 2 * self._spec.waits.beat_s

    def _drop(self, peer: Peer, how: Literal["closed", "silent"]) -> None:
        if peer not in self._peers:
            return
        self._peers.remove(peer)
        peer.link.close()
        if peer.node is not None:
            self._handle(v.Left(peer.node.name, "dead" if _is_dead(peer.node) else how, peer.heard_s))

    # --- looking ------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        poller = select.poll()
        poller.register(self._wake_read, select.POLLIN)
        by_fd = {peer.link.fileno(): peer for peer in self._peers}
        for fd in by_fd:
            poller.register(fd, select.POLLIN)
        ready = poller.poll(self._spec.waits.beat_s / 5 * 1000)
        now = self._clock.monotonic()
        late_s = now - self._looked_s
        self._looked_s = now
        if late_s > _LOOKING_LATE_S:  # we were paused, not they
            for peer in self._peers:
                peer.heard_s += late_s
        for fd, _ in ready:
            if fd == self._wake_read:
                os.read(fd, 4096)
            elif by_fd[fd] in self._peers:
                self._hear(by_fd[fd])
        self._take_in()
        now = self._clock.monotonic()
        if now >= self._next_beat_s:
            self._next_beat_s = now + self._spec.waits.beat_s
            busy = {name for name, peer in self._launchers() if peer.report.busy}
            for name, peer in self._launchers():
                self._send(peer, m.Beat(busy=bool(busy - {name}), wall_s=self._clock.wall()))
            for _, peer in self._launchers():
                if now - peer.heard_s >= self._spec.waits.lease_s and self._somebody_else():
                    self._drop(peer, "silent")
        self._ask_for_stacks(self._hearing.hear())
        self._handle(v.Tick())

    def _ask_for_stacks(self, ranks: Sequence[int]) -> None:
        """Have launchers ask those of ``ranks`` that they run."""
        base = 0
        for node in self._machine.job.places if ranks else ():
            here = tuple(rank for rank in ranks if base <= rank < base + node.nproc)
            base += node.nproc
            for name, peer in self._launchers():
                if here and name == node.name:
                    self._send(peer, m.Wanted(here))

    def _is_worth_a_look(self) -> bool:
        """Whether what happens to ranks now says anything: not if the job ends them of its own will."""
        job = self._machine.job
        acted = any(each.attempt == job.attempt for each in job.acted)
        return job.ending is None or (job.ending.why == "failed" and not acted)

    def _somebody_else(self) -> bool:
        """Whether the place of a silent node could be given away; else it is waited for (a job of one node, paused)."""
        return self._spec.max_nodes + self._spec.spares > 1

    def _hear(self, peer: Peer) -> None:
        try:
            message, _ = peer.link.recv(Deadline.after(_MESSAGE_S, "the rest of a message"))
        except (PerdureError, OSError):
            self._drop(peer, "closed")
            return
        peer.heard_s = self._clock.monotonic()
        match message:
            case m.Report():
                peer.report = message
            case m.Look(since=since, history=history):
                self._send(peer, m.Shown(view=self._view(since, history=history)))
            case v.Asked() | v.Drain() | v.Uncordon():
                self._asked(peer, message)
            case v.Mute() | v.Acknowledge():
                self._send(peer, m.Done(error=self._hearing.hush(message, job=self._spec.name)))
            case m.Watched(look=look):
                if peer.node is not None and self._is_worth_a_look():
                    self._hearing.take(look)
            case v.RankEnded() | v.Over() | v.Progressed() | v.Late() | v.Examined():
                if peer.node is not None:
                    self._note_first_step(message)
                    self._handle(msgspec.structs.replace(message, node=peer.node.name))
            case _:
                self._drop(peer, "closed")  # it breaks the rules

    def _asked(self, peer: Peer, message: v.Asked | v.Drain | v.Uncordon) -> None:
        known = {node.name for node in self._machine.job.places} | self._machine.here().keys()
        error = ""
        if isinstance(message, v.Drain | v.Uncordon) and message.node not in known:
            there = f"it has {', '.join(sorted(known))}" if known else "none has joined yet"
            error = f"job {self._spec.name} has no node {message.node}; {there}"
        elif isinstance(message, v.Drain):
            error = self._machine.refuses_to_drain(message.node) or ""
        if not error:
            self._handle(message)
        if peer.node is None:
            self._send(peer, m.Done(error=error))

    def _view(self, since: int, *, history: bool) -> m.View:
        now = self._clock.monotonic()
        return view_of(
            self._machine,
            self._spec,
            reports={name: (peer.report, now - peer.heard_s) for name, peer in self._launchers()},
            facts=self._journal.facts(self._machine.job.run, since=since),
            began_at=self._began_at,
            now_at=self._clock.wall(),
            address=self.address,
            moments=self._journal.moments(self._machine.job.run) if history else (),
        )

    def _left_alone(self) -> bool:
        """Whether no launcher has been there for so long that there is no job to be kept."""
        now = self._clock.monotonic()
        if self._launchers():
            self._alone_since_s = now
        again = self._machine.job.attempt >= 0
        return now - self._alone_since_s >= (self._spec.waits.orphan_s if again else _ALONE_S)

    # --- doing --------------------------------------------------------------------------------------------------------

    def _handle(self, event: v.Event) -> None:
        actions = self._machine.handle(event, self._clock.monotonic(), wall=self._clock.wall())
        said = [action for action in actions if isinstance(action, v.Say)]
        numbers = self._write([action.fact for action in said])
        for told, number in zip(said, numbers, strict=True):
            self._log.record(told.fact)
            self._tell(m.Tell(number=number, sentence=str(told.fact), lines=told.lines))
        for action in actions:
            self._carry_out(action)

    def _write(self, facts: Sequence[Fact]) -> list[int]:
        """Journal the job before anything is done about it. Steps alone are written now and then."""
        job, now = self._machine.job, self._clock.monotonic()
        same = (
            self._written is not None
            and msgspec.structs.replace(job, best_step=self._written.best_step) == self._written
        )
        moved = self._written is not None and job.best_step != self._written.best_step
        first = moved and self._moved_in != job.attempt  # at once: by it is known what an attempt took to come so far
        if same and not (moved and (first or now - self._written_s >= _QUIET_STEPS_S)):
            return self._journal.write(None, facts, run=job.run, at=self._clock.wall())
        steps_only = same and moved and not first
        instead = steps_only and self._steps_only
        numbers = self._journal.write(job, facts, run=job.run, at=self._clock.wall(), instead=instead)
        self._written, self._written_s, self._steps_only = job, now, steps_only
        self._moved_in = job.attempt if moved else self._moved_in
        self._send_memo()
        return numbers

    def _note_first_step(self, event: v.Event) -> None:
        """Journal when an attempt completes its first step, whether or not it is a new one: for `goodput`."""
        job = self._machine.job
        if isinstance(event, v.Progressed) and event.attempt == job.attempt != self._stepped_in:
            self._stepped_in = job.attempt
            fact = StepsBegan(attempt=job.attempt, step=event.step, before=job.best_step)
            self._journal.write(None, [fact], run=job.run, at=self._clock.wall())

    def _send_memo(self) -> None:
        self._n_memos += 1
        job, roster = self._machine.job, self._machine.roster()
        memo = m.Memo(number=self._n_memos, job=job, spec=self._spec, roster=roster)
        for _, peer in self._launchers():
            self._send(peer, memo)

    def _carry_out(self, action: v.Action) -> None:
        match action:
            case v.Start() | v.Terminate() | v.Kill() | v.Examine():
                peer = next((each for name, each in self._launchers() if name == action.node), None)
                if peer is not None:  # else it hears it when it is back
                    self._send(peer, action)
            case v.Finish():
                self._over = True
            case _:
                pass  # said already

    def _tell(self, told: m.Tell) -> None:
        for peer in [each for each in self._peers if each.listens]:
            self._send(peer, told)

    def _release(self) -> None:
        """Tell all launchers that the job is over, if it is, and wait until they have gone."""
        job = self._machine.job
        if not job.state.final:
            return
        for peer in list(self._peers):
            self._send(peer, m.Release(exit_code=job.exit_code or 0))
        deadline = Deadline.after(_RELEASE_S, "the launchers to end")
        while self._peers and not deadline.passed():
            self._take_in()  # whoever comes now is refused with the exit code
            for peer in list(self._peers):
                try:
                    if peer.link.readable(0.02):
                        peer.link.recv(Deadline.after(_MESSAGE_S, "the rest of a message"))
                except (PerdureError, OSError):
                    self._peers.remove(peer)
                    peer.link.close()

    def _send(self, peer: Peer, message: Any) -> None:
        if not self._try_send(peer.link, message):
            self._drop(peer, "closed")

    def _try_send(self, link: NodeLink, message: Any) -> bool:
        try:
            link.send(message, deadline=Deadline.after(_MESSAGE_S, "a launcher to take a message"))
            return True
        except (PerdureError, OSError):
            return False


def _is_dead(node: NodeFacts) -> bool:
    """Whether the launcher of ``node`` is known to be dead: it ran on this machine, and has ended."""
    return bool(node.machine) and node.machine == boot_id() and not is_running(node.pid)


def _peer_of(sock: socket.socket) -> str:
    try:
        return str(sock.getpeername()[0])
    except OSError:
        return "somebody"
