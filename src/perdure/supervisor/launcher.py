"""The launcher of one node: carries out what the controller of the job orders, and tells it what happens here.

It owns the node's processes and decides nothing, but for the lease: if its controller is silent for too long it ends
its ranks, because their places may be given away (docs/decisions/0013). It waits on the ranks' pidfds, its own signals
and the controller's link, so that a death, a signal or an order is noticed at once; progress and agents are looked at
every ``monitor_s``.
"""

from __future__ import annotations

import os
import select
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec

from perdure.clock import SYSTEM, Clock
from perdure.errors import CallError
from perdure.events import Log
from perdure.process.environ import Placement, child_env
from perdure.process.ports import ReservedPort
from perdure.process.tree import Guard, become_subreaper, reap_orphans
from perdure.progress.lateness import Lateness, phase_deadlines
from perdure.supervisor import messages as m
from perdure.supervisor import vocabulary as v
from perdure.supervisor.agent import AgentLink, NoAgent
from perdure.supervisor.checks import Context
from perdure.supervisor.config import checked_nproc
from perdure.supervisor.controller_link import ControllerLink
from perdure.supervisor.examining import Examining
from perdure.supervisor.job import NodeFacts
from perdure.supervisor.node import NodeAttempt
from perdure.supervisor.signals import asking_signals
from perdure.supervisor.standby import StandbyRanks
from perdure.supervisor.takeover import Succession
from perdure.supervisor.watching import MAX_LOOK_BYTES, Began, Ending, Eye, Gone, Said, Told, Wanted
from perdure.wire import Address

__all__ = ["Launcher", "LauncherConfig"]

_PROGRESS_S = 0.2
_START_S = 20.0
_AGAIN_S = 0.5
_TELL_S = 5.0
_LATE_LOOK_S = 0.5
_LINES_S = 0.5
_CLOCK_ERROR_S = 0.5  # half of the time between two signs of life, and some
_STOP_ALONE_S = 5.0
_NO_CONTROLLER = 75


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherConfig:
    """What the launcher of a node is told."""

    job: str
    "Name of the job."
    node: NodeFacts
    "What it says of its node; its port is found anew for each attempt."
    command: tuple[str, ...]
    "What each rank runs."
    speaks: bool = True
    "Whether it prints what the controller tells."
    node_name: str | None = None
    "The node's name, where it is not the machine's own: ranks are told."
    max_restarts: int = 3
    "Told to ranks, as torchrun does."
    monitor_s: float = 0.05
    "How often progress is read; a death is noticed at once."
    log_dir: Path | None = None
    "Folder for one log a rank and attempt; None for none."
    doctor: tuple[str, ...] = ()
    "The command that runs a node's checks."
    pair: tuple[str, ...] = ()
    "The command that compares nodes."
    folder: str | None = None
    "A folder that the job writes to, for the checks."
    phase_deadlines: str = ""
    "How long phases of ranks may take."
    controller_log: Path | None = None
    "What a controller on this machine prints."
    standby: bool = True
    "Whether ranks may be forked from an interpreter that has imported what they need."
    forked_calls: str | None = None
    "A ``module:function`` that ranks which are forked call before their script."


class Starting(Protocol):
    """A controller's process that was started."""

    @property
    def pid(self) -> int:
        """Its number."""
        ...

    def poll(self) -> int | None:
        """Its exit code, None while it runs."""
        ...


class Launcher:
    """Runs this node's part of a job. ``env`` is what ranks inherit, ``addresses`` tells where a controller may be.

    ``start_controller`` starts one (None: that is for others), ``end_controller`` ends one that runs on this machine
    and hangs, and says whether it is gone; ``take_over`` starts one here from the memo of another (None: never). For
    the main thread of a process of its own: it takes over SIGTERM, SIGINT and SIGHUP, becomes subreaper, and reaps
    orphans.
    """

    def __init__(
        self,
        config: LauncherConfig,
        *,
        secret: bytes,
        addresses: Callable[[], list[Address]],
        start_controller: Callable[[], Starting] | None,
        end_controller: Callable[[], bool] | None = None,
        take_over: Callable[[m.Memo], None] | None = None,
        env: Mapping[str, str],
        log: Log,
        agent: AgentLink | None = None,
        eye: Eye | None = None,
        clock: Clock = SYSTEM,
        stdout: BinaryIO | None = None,
        stderr: BinaryIO | None = None,
    ) -> None:
        checked_nproc(config.node.nproc)
        self._config, self._env, self._log, self._clock = config, env, log, clock
        self._agent = agent or NoAgent()
        self._eye = eye
        self._start_controller, self._take_over, self._secret = start_controller, take_over, secret
        self._starting: Starting | None = None
        self._end_controller = end_controller
        self._elsewhere: list[Address] = []
        self._succession: Succession | None = None
        self._stdout = stdout or sys.stdout.buffer
        self._stderr = stderr or sys.stderr.buffer
        self._run_mark = uuid.uuid4().hex
        self._attempt: NodeAttempt | None = None
        self._port = ReservedPort()
        self._asked: list[int] = []
        self._asked_s = 0.0
        self._told_step = 0
        self._next_progress_s = self._next_report_s = self._next_start_s = clock.monotonic()
        self._guard: Guard | None = None
        self._standby: StandbyRanks | None = None
        self._examining: Examining | None = None
        self._lateness = Lateness(phase_deadlines(config.phase_deadlines), look_s=_LATE_LOOK_S)
        self._next_late_s = self._next_lines_s = clock.monotonic()
        self._gone: set[int] = set()
        self._told = 0
        self._told_alone = False
        self._exit_code: int | None = None
        self._link = ControllerLink(
            job=config.job,
            secret=secret,
            hello=self._hello,
            addresses=lambda: [*self._elsewhere, *addresses()],
            clock=clock,
        )

    def run(self) -> int:
        """Run until the controller says that the job is over; return the exit code that it gives.

        Raises `CallError` if the command cannot be started or the controller refuses this node. Nothing of the job is
        left on this node when it returns or raises.
        """
        become_subreaper()
        with asking_signals() as pipe:
            self._guard = Guard(self._run_mark)
            try:
                self._standby = self._standby_ranks()
                if self._take_over is not None:
                    host, job = self._config.node.host, self._config.job
                    self._succession = Succession(self._name, host, job=job, secret=self._secret)
                while self._exit_code is None:
                    self._wait(pipe)
                    self._look(pipe)
                return self._exit_code
            finally:
                if self._attempt is not None:
                    self._attempt.kill()
                    self._attempt.finish(self._name, wait_s=60.0)
                if self._standby is not None:
                    self._standby.close()
                if self._examining is not None:
                    self._examining.close()
                self._link.drop()
                if self._succession is not None:
                    self._succession.close()
                self._agent.release()
                if self._eye is not None:
                    self._eye.close()
                self._guard.dismiss()
                self._port.close()
                reap_orphans(keep=())

    @property
    def _name(self) -> str:
        return self._config.node.name

    def _hello(self, term: int) -> m.Hello:
        attempt = self._attempt
        holding = v.Holding()
        if attempt is not None:
            holding = v.Holding(attempt=attempt.number, ended=attempt.ended, over=attempt.over)
        door = ("", 0) if self._succession is None else (self._config.node.host, self._succession.port)
        node = msgspec.structs.replace(self._config.node, port=self._port.number, pid=os.getpid(), door=door)
        return m.Hello(
            protocol=m.PROTOCOL,
            job=self._config.job,
            term=term,
            node=node,
            holding=holding,
            listens=self._config.speaks,
            told=self._told,
        )

    # --- what happens -------------------------------------------------------------------------------------------------

    def _wait(self, pipe: int) -> None:
        poller = select.poll()
        poller.register(pipe, select.POLLIN)
        if self._link.linked:
            poller.register(self._link.fileno(), select.POLLIN)
        if self._attempt is not None:
            for fd in self._attempt.running_fds():
                poller.register(fd, select.POLLIN)
        poller.poll(self._config.monitor_s * 1000)

    def _look(self, pipe: int) -> None:
        try:
            self._hear_signals(list(os.read(pipe, 64)))
        except BlockingIOError:
            pass
        for message in self._link.poll():
            self._obey(message)
        if self._examining is not None and (found := self._examining.poll()) is not None:
            self._examining = None
            self._link.send(found)
        if self._link.refused is not None:
            self._be_refused(self._link.refused)
        self._agent.poll()
        self._look_at_ranks()
        self._watch_ranks()
        self._keep_house()
        self._keep_the_lease()
        if self._succession is not None and self._take_over is not None:
            self._see_to_the_succession(self._succession, self._take_over)

    def _hear_signals(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            if not self._asked:
                self._asked_s = self._clock.monotonic()
            self._asked.append(number)
            self._link.send(v.Asked(number, self._name))

    def _look_at_ranks(self) -> None:
        attempt = self._attempt
        if attempt is None:
            return
        if attempt.may_start:
            self._start_ranks(attempt)
        attempt.look(self._agent.page())
        now = self._clock.monotonic()
        if attempt.started and attempt.over is None and now >= self._next_late_s:
            self._next_late_s = now + _LATE_LOOK_S
            self._look_for_late_ranks(attempt)
        if attempt.step > self._told_step and now >= self._next_progress_s:
            self._next_progress_s = now + _PROGRESS_S
            self._tell_progress(attempt)
        for ended in attempt.poll(self._name):
            self._tell_progress(attempt)  # the last steps before the end count too
            self._link.send(ended)
            if not attempt.ending:
                rank = attempt.order.base + ended.local_rank
                pid = attempt.pid_of(ended.local_rank)
                self._next_lines_s = now
                self._tell_eye(Gone(rank=rank, pid=pid, code=ended.code, signal=ended.signal))
        if attempt.over is None and (over := attempt.finish(self._name)) is not None:
            self._tell_progress(attempt)
            self._turn_port()
            self._link.send(msgspec.structs.replace(over, port=self._port.number))
        if now >= self._next_report_s:
            beat_s = 0.5 if self._link.welcome is None else self._link.welcome.beat_s
            self._next_report_s = now + beat_s
            self._link.send(
                m.Report(
                    attempt=attempt.number,
                    ranks=attempt.views(time.monotonic_ns()),
                    standby="" if self._standby is None else self._standby.state,
                    busy=self._lateness.busy,
                )
            )

    def _watch_ranks(self) -> None:
        """Pass on what the eye of this node has seen."""
        if self._eye is None:
            return
        now = self._clock.monotonic()
        try:
            if self._attempt is not None and now >= self._next_lines_s:
                self._next_lines_s = now + _LINES_S
                if lines := self._attempt.new_lines():
                    self._eye.tell(Said(lines))
            looks, problem = self._eye.poll(), self._eye.problem()
        except Exception as error:
            self._blind(error)
            return
        for look in looks:
            if len(look) <= MAX_LOOK_BYTES:
                self._link.send(m.Watched(look=look))
        if problem:
            self._log.print(f"node {self._name}: {problem}")

    def _tell_eye(self, what: Told) -> None:
        if self._eye is not None:
            try:
                self._eye.tell(what)
            except Exception as error:
                self._blind(error)

    def _blind(self, error: Exception) -> None:
        """Go on without an eye, whatever has happened to it."""
        self._eye = None
        self._log.print(f"node {self._name}: its ranks are not watched any more ({error!r}); the job goes on")

    def _look_for_late_ranks(self, attempt: NodeAttempt) -> None:
        late = self._lateness.look(
            attempt.snapshots,
            time.monotonic_ns(),
            stopped=attempt.stopped(),
            busy_elsewhere=self._link.beat.busy,
        )
        if late:
            ranks = tuple(
                v.LateFacts(
                    local_rank=each.rank - attempt.order.base,
                    phase=each.phase.name.lower(),
                    seconds=each.seconds_in_phase,
                    allowed_s=each.allowed_s,
                    step=each.step,
                    suspect=each.suspect,
                    why=each.why,
                )
                for each in late
            )
            self._link.send(v.Late(node=self._name, attempt=attempt.number, ranks=ranks))

    def _tell_progress(self, attempt: NodeAttempt) -> None:
        if attempt.step > self._told_step:
            self._told_step = attempt.step
            self._link.send(v.Progressed(self._name, attempt.number, attempt.step))

    def _turn_port(self) -> None:
        """The port of the attempt that is over is not used again."""
        self._port.close()
        self._port = ReservedPort()

    def _keep_house(self) -> None:
        guard = self._guard
        ours = set() if self._attempt is None else self._attempt.pids()
        helpers = [
            None if each is None else each.pid
            for each in (guard, self._standby, self._examining, self._starting, self._eye)
        ]
        reap_orphans(keep=ours | {pid for pid in helpers if pid is not None})
        if guard is not None and not guard.alive():
            self._log.print("somebody killed the guard process; starting another")
            guard.dismiss()
            self._guard = Guard(self._run_mark)
            if self._link.welcome is not None:
                self._guard.keep_lease(self._link.welcome.lease_s)
        if self._attempt is None and self._clock.monotonic() >= self._next_report_s:
            self._next_report_s = self._clock.monotonic() + 0.5
            self._link.send(m.Report())

    def _keep_the_lease(self) -> None:
        """End the ranks if their places may be given away; start a controller if there is none; give up at last."""
        now = self._clock.monotonic()
        welcome = self._link.welcome
        if self._link.linked:
            if welcome is not None and self._link.silent_s() >= welcome.lease_s:
                if not self._ended_a_hung_controller():
                    self._end_ranks(f"nothing was heard of the controller for {welcome.lease_s:g} s")
                self._link.drop()
            return
        starts = self._starting is not None and self._starting.poll() is None  # two would race for the lock
        if self._start_controller is not None and self._link.dead and not starts and now >= self._next_start_s:
            if self._starting is not None and (self._starting.poll() or 0) > 0:
                raise CallError(f"the controller of job {self._config.job} cannot start{self._last_words()}")
            self._next_start_s = now + _AGAIN_S
            self._starting = self._start_controller()
        lost_s = self._link.lost_for_s()
        if welcome is None:
            if lost_s >= _TELL_S and not self._told_alone and self._link.trouble:
                self._told_alone = True
                self._log.print(f"node {self._name}: no controller yet: {self._link.trouble}")
            if lost_s >= _START_S * (1 if self._start_controller else 10):
                why = self._link.trouble or f"see {self._config.controller_log}"
                raise CallError(f"found no controller of job {self._config.job} within {lost_s:.0f} s: {why}")
        elif not self._link.dead and self._link.silent_s() >= welcome.lease_s and not self._ended_a_hung_controller():
            self._end_ranks(f"the controller could not be reached for {welcome.lease_s:g} s")
        if welcome is not None and lost_s >= welcome.orphan_s:
            self._end_ranks(f"there was no controller for {welcome.orphan_s:g} s")
            self._exit_code = _NO_CONTROLLER
        if self._asked and (self._attempt is None or now - self._asked_s >= _STOP_ALONE_S):
            self._end_ranks("there is no controller, and the job was asked to stop")
            self._exit_code = 128 + self._asked[0]

    def _ended_a_hung_controller(self) -> bool:
        """End a controller of this machine that gives no sign of life: then ranks may go on, and another one starts."""
        if self._end_controller is None or not self._end_controller():
            return False
        self._log.print(f"node {self._name}: the controller gave no sign of life and was ended; another one starts")
        return True

    def _last_words(self) -> str:
        """The last line that a controller on this machine printed, as the tail of a sentence."""
        try:
            lines = [] if self._config.controller_log is None else self._config.controller_log.read_text().splitlines()
        except OSError:
            return ""
        return f": {lines[-1].removeprefix('perdure: ')}" if lines else ""

    def _see_to_the_succession(self, succession: Succession, take_over: Callable[[m.Memo], None]) -> None:
        """Go where the others have a controller, or start one here, if this one has lost its own for too long."""
        link = self._link
        lost = not link.linked and link.welcome is not None and link.lost_for_s() >= link.welcome.lease_s
        choice = succession.look(term=link.term, address=link.address, lost=lost)
        if choice.address is not None:
            self._elsewhere = [choice.address]
        elif choice.memo is not None and self._clock.monotonic() >= self._next_start_s:
            self._next_start_s = self._clock.monotonic() + _START_S
            self._log.print(f"node {self._name}: the controller is gone; starting another one here")
            take_over(choice.memo)

    def _end_ranks(self, why: str) -> None:
        attempt = self._attempt
        if attempt is None or attempt.over is not None:
            return
        self._log.print(f"node {self._name}: {why}; ending its ranks")
        self._tell_eye(Ending())
        attempt.kill()
        attempt.finish(self._name, wait_s=60.0)
        self._turn_port()

    # --- what to do ---------------------------------------------------------------------------------------------------

    def _obey(self, message: object) -> None:
        attempt = self._attempt
        match message:
            case m.Welcome(lease_s=lease_s):
                if self._guard is not None:
                    self._guard.keep_lease(lease_s)
                for number in self._asked[:1]:  # asked while there was no controller
                    self._link.send(v.Asked(number, self._name))
            case m.Memo():
                if self._succession is not None:
                    self._succession.memo = message
            case m.Tell(number=number, sentence=sentence, lines=lines):
                self._told = max(self._told, number)
                if lines:
                    self._log.print("\n".join(lines))
                self._log.print(sentence)
            case v.Start():
                if attempt is None or message.attempt > attempt.number:
                    self._start(message)
            case v.Terminate(_, number, failed):
                if attempt is not None and attempt.number == number:
                    self._tell_eye(Ending())
                    attempt.terminate(failed=failed)
            case v.Kill(_, number):
                if attempt is not None and attempt.number == number:
                    if attempt.over is not None:
                        self._link.send(attempt.over)
                    self._tell_eye(Ending())
                    attempt.kill()
                elif attempt is None or attempt.number < number:  # it never started here
                    self._link.send(v.Over(node=self._name, attempt=number))
            case v.Examine():
                self._examine(message)
            case m.Wanted(ranks):
                self._tell_eye(Wanted(ranks))
            case m.Release(exit_code=code):
                self._exit_code = code
            case _:
                pass

    def _examine(self, order: v.Examine) -> None:
        if self._examining is not None:
            self._examining.close()
        config, beat = self._config, self._link.beat
        context = Context(
            folder=config.folder,
            gone=tuple(sorted(self._gone)),
            wall_s=beat.wall_s or None,
            wall_seen_s=self._link.heard_s,
            wall_error_s=_CLOCK_ERROR_S,
        )
        self._examining = Examining(
            order,
            name=self._name,
            doctor=config.doctor,
            pair=config.pair,
            context=context,
            placement=self._placement(),
            env=self._env,
            mark=f"{self._run_mark}.checks",
            clock=self._clock,
        )

    def _be_refused(self, refused: m.Refused) -> None:
        if self._link.welcome is None and refused.exit_code == CallError.exit_code:
            raise CallError(refused.sentence)
        self._log.print(refused.sentence)
        self._exit_code = refused.exit_code

    def _start(self, order: v.Start) -> None:
        if self._attempt is not None and self._attempt.over is None:
            self._end_ranks(f"attempt {order.attempt} begins before attempt {self._attempt.number} has ended")
        attempt = NodeAttempt(order, mark=f"{self._run_mark}.{order.attempt}", clock=self._clock)
        self._attempt, self._told_step = attempt, 0
        self._lateness.begin_attempt()
        if self._standby is not None:
            self._standby.renew()
        self._agent.begin_attempt(attempt.mark)
        self._start_ranks(attempt)

    def _start_ranks(self, attempt: NodeAttempt) -> None:
        """Start the ranks, unless they are to be forked by an interpreter that is not ready yet."""
        config, order, standby = self._config, attempt.order, self._standby
        if standby is None or standby.wait():
            return
        placement = replace(
            self._placement(),
            rank=order.base,
            world=order.world,
            node=order.place,
            attempt=order.attempt,
            master_addr=order.master_addr,
            master_port=order.master_port,
            mark=attempt.mark,
            resume_must=order.resume_must,
            restore_before=order.restore_before,
            skip=order.skip,
            may_skip=order.may_skip,
        )
        ranks = tuple(range(order.base, order.base + config.node.nproc))
        self._tell_eye(Began(attempt=order.attempt, ranks=ranks))
        attempt.start(
            standby.start,
            nproc=config.node.nproc,
            placement=placement,
            env=self._env,
            max_restarts=config.max_restarts,
            stdout=self._stdout,
            stderr=self._stderr,
            log_dir=config.log_dir,
        )
        self._gone |= attempt.pids()

    def _placement(self) -> Placement:
        """What all ranks of this node have in common."""
        config = self._config
        return Placement(
            world=config.node.nproc,
            local_world=config.node.nproc,
            job=config.job,
            node_name=config.node_name,
            domain=config.node.domain or None,
        )

    def _standby_ranks(self) -> StandbyRanks:
        env = child_env(self._placement(), base=self._env, max_restarts=self._config.max_restarts)
        return StandbyRanks(
            self._config.command,
            env=env,
            run_mark=self._run_mark,
            wanted=self._config.standby,
            say=lambda sentence: self._log.print(f"node {self._name}: {sentence}"),
            calls=self._config.forked_calls,
            clock=self._clock,
        )
