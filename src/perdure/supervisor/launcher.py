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
from typing import BinaryIO

import msgspec

from perdure.clock import SYSTEM, Clock
from perdure.errors import CallError
from perdure.events import Log
from perdure.process.environ import Placement, child_env
from perdure.process.ports import ReservedPort
from perdure.process.tree import Guard, become_subreaper, reap_orphans
from perdure.supervisor import messages as m
from perdure.supervisor import vocabulary as v
from perdure.supervisor.agent import AgentLink, NoAgent
from perdure.supervisor.config import checked_nproc
from perdure.supervisor.controller_link import ControllerLink
from perdure.supervisor.job import NodeFacts
from perdure.supervisor.node import NodeAttempt
from perdure.supervisor.signals import asking_signals
from perdure.supervisor.standby import StandbyRanks
from perdure.wire import Address

__all__ = ["Launcher", "LauncherConfig"]

_PROGRESS_S = 0.2
_START_S = 20.0
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
    standby: bool = True
    "Whether ranks may be forked from an interpreter that has imported what they need."


class Launcher:
    """Runs this node's part of a job. ``env`` is what ranks inherit, ``addresses`` tells where a controller may be, and
    ``start_controller`` starts one (None: that is for others). For the main thread of a process of its own: it takes
    over SIGTERM, SIGINT and SIGHUP, becomes subreaper, and reaps orphans.
    """

    def __init__(
        self,
        config: LauncherConfig,
        *,
        secret: bytes,
        addresses: Callable[[], list[Address]],
        start_controller: Callable[[], None] | None,
        env: Mapping[str, str],
        log: Log,
        agent: AgentLink | None = None,
        clock: Clock = SYSTEM,
        stdout: BinaryIO | None = None,
        stderr: BinaryIO | None = None,
    ) -> None:
        checked_nproc(config.node.nproc)
        self._config, self._env, self._log, self._clock = config, env, log, clock
        self._agent = agent or NoAgent()
        self._start_controller = start_controller
        self._stdout = stdout or sys.stdout.buffer
        self._stderr = stderr or sys.stderr.buffer
        self._run_mark = uuid.uuid4().hex
        self._attempt: NodeAttempt | None = None
        self._port = ReservedPort()
        self._next_port: ReservedPort | None = None
        self._asked: list[int] = []
        self._asked_s = 0.0
        self._told_step = 0
        self._next_progress_s = self._next_report_s = self._next_start_s = clock.monotonic()
        self._guard: Guard | None = None
        self._standby: StandbyRanks | None = None
        self._exit_code: int | None = None
        self._link = ControllerLink(job=config.job, secret=secret, hello=self._hello, addresses=addresses, clock=clock)

    def run(self) -> int:
        """Run until the controller says that the job is over; return the exit code that it gives.

        Raises `CallError` if the command cannot be started or the controller refuses this node. Nothing of the job is
        left on this node when it returns or raises.
        """
        become_subreaper()
        with asking_signals() as pipe:
            self._guard = Guard(self._run_mark)
            self._standby = self._standby_ranks()
            try:
                while self._exit_code is None:
                    self._wait(pipe)
                    self._look(pipe)
                return self._exit_code
            finally:
                if self._attempt is not None:
                    self._attempt.kill()
                    self._attempt.finish(self._name, wait_s=60.0)
                self._standby.close()
                self._link.drop()
                self._agent.release()
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
        node = msgspec.structs.replace(self._config.node, port=self._port.number, pid=os.getpid())
        return m.Hello(
            protocol=m.PROTOCOL,
            job=self._config.job,
            term=term,
            node=node,
            holding=holding,
            listens=self._config.speaks,
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
        if self._link.refused is not None:
            self._be_refused(self._link.refused)
        self._agent.poll()
        self._look_at_ranks()
        self._keep_house()
        self._keep_the_lease()

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
        if not attempt.started and attempt.over is None:
            self._start_ranks(attempt)
        attempt.look(self._agent.page())
        now = self._clock.monotonic()
        if attempt.step > self._told_step and now >= self._next_progress_s:
            self._next_progress_s = now + _PROGRESS_S
            self._tell_progress(attempt)
        for ended in attempt.poll(self._name):
            self._tell_progress(attempt)  # the last steps before the end count too
            self._link.send(ended)
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
                )
            )

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
        standby = None if self._standby is None else self._standby.pid
        reap_orphans(keep=ours | ({guard.pid} if guard else set()) | ({standby} if standby else set()))
        if guard is not None and not guard.alive():
            self._log.print("somebody killed the guard process; starting another")
            guard.dismiss()
            self._guard = Guard(self._run_mark)
        if self._attempt is None and self._clock.monotonic() >= self._next_report_s:
            self._next_report_s = self._clock.monotonic() + 0.5
            self._link.send(m.Report())

    def _keep_the_lease(self) -> None:
        """End the ranks if their places may be given away; start a controller if there is none; give up at last."""
        now = self._clock.monotonic()
        welcome = self._link.welcome
        if self._link.linked:
            if welcome is not None and self._link.silent_s() >= welcome.lease_s:
                self._end_ranks(f"nothing was heard of the controller for {welcome.lease_s:g} s")
                self._link.drop()
            return
        if self._start_controller is not None and self._link.dead and now >= self._next_start_s:
            self._next_start_s = now + 1.0
            self._start_controller()
        lost_s = self._link.lost_for_s()
        if welcome is None:
            if lost_s >= _START_S * (1 if self._start_controller else 10):
                raise CallError(f"found no controller of job {self._config.job} within {lost_s:.0f} s; see its log")
        elif not self._link.dead and self._link.silent_s() >= welcome.lease_s:
            self._end_ranks(f"the controller could not be reached for {welcome.lease_s:g} s")
        if welcome is not None and lost_s >= welcome.orphan_s:
            self._end_ranks(f"there was no controller for {welcome.orphan_s:g} s")
            self._exit_code = _NO_CONTROLLER
        if self._asked and now - self._asked_s >= _STOP_ALONE_S:
            self._end_ranks("there is no controller, and the job was asked to stop")
            self._exit_code = 128 + self._asked[0]

    def _end_ranks(self, why: str) -> None:
        attempt = self._attempt
        if attempt is None or attempt.over is not None:
            return
        self._log.print(f"node {self._name}: {why}; ending its ranks")
        attempt.kill()
        attempt.finish(self._name, wait_s=60.0)
        self._turn_port()

    # --- what to do ---------------------------------------------------------------------------------------------------

    def _obey(self, message: object) -> None:
        attempt = self._attempt
        match message:
            case m.Welcome():
                for number in self._asked[:1]:  # asked while there was no controller
                    self._link.send(v.Asked(number, self._name))
            case m.Tell(sentence=sentence, lines=lines):
                if lines:
                    self._log.print("\n".join(lines))
                self._log.print(sentence)
            case v.Start():
                if attempt is None or message.attempt > attempt.number:
                    self._start(message)
            case v.Terminate(_, number):
                if attempt is not None and attempt.number == number:
                    attempt.terminate()
            case v.Kill(_, number):
                if attempt is not None and attempt.number == number:
                    if attempt.over is not None:
                        self._link.send(attempt.over)
                    attempt.kill()
                elif attempt is None or attempt.number < number:  # it never started here
                    self._link.send(v.Over(node=self._name, attempt=number))
            case v.Examine():
                self._link.send(v.Examined(node=self._name, round=message.round))
            case m.Release(exit_code=code):
                self._exit_code = code
            case _:
                pass

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
        )
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
            clock=self._clock,
        )
