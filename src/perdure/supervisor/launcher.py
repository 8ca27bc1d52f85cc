"""The launcher of one node: carries out what `perdure.supervisor.policy` decides.

It waits on the ranks' pidfds and on its own signals, so that a death or a signal is noticed at once; progress and
agents are looked at every ``monitor_s``. Everything happens in the main thread but the passing on of output.
"""

from __future__ import annotations

import os
import random
import select
import signal
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from perdure.clock import SYSTEM, Clock
from perdure.events import AttemptStarted, AttemptStopped, JobFailed, JobStopped, JobSucceeded, Log, Notice, RankDied
from perdure.events.facts import how_it_ended
from perdure.process.environ import Placement, child_env
from perdure.process.ports import ReservedPort
from perdure.process.tree import Ending, Guard, Rank, become_subreaper, kill_attempt, reap_orphans
from perdure.progress import Page, Phase
from perdure.supervisor import policy as p
from perdure.supervisor.agent import AgentLink, NoAgent
from perdure.supervisor.causes import Death
from perdure.supervisor.config import RunConfig
from perdure.supervisor.output import Output

__all__ = ["Launcher"]

_ASKS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_KILL_S = 15.0
_OUTPUT_S = 2.0
_SHOWN_LINES = 30


class Launcher:
    """Runs one job on this node. ``env`` is what ranks inherit. For the main thread of a process of its own: it takes
    over SIGTERM, SIGINT and SIGHUP, becomes subreaper, and reaps orphans.
    """

    def __init__(
        self,
        config: RunConfig,
        *,
        env: Mapping[str, str],
        log: Log,
        agent: AgentLink | None = None,
        clock: Clock = SYSTEM,
        rng: random.Random | None = None,
        stdout: BinaryIO | None = None,
        stderr: BinaryIO | None = None,
    ) -> None:
        self._config = config
        self._env = env
        self._log = log
        self._agent = agent or NoAgent()
        self._clock = clock
        self._policy = p.Policy(config, rng=rng or random.Random())
        self._stdout = stdout or sys.stdout.buffer
        self._stderr = stderr or sys.stderr.buffer
        self._run_mark = uuid.uuid4().hex
        self._ranks: list[Rank] = []
        self._told: set[int] = set()
        self._output: Output | None = None
        self._port: ReservedPort | None = None
        self._page: Page | None = None
        self._guard: Guard | None = None
        self._began_s = clock.monotonic()
        self._stopping_since_s = self._began_s
        self._exit_code: int | None = None

    def run(self) -> int:
        """Run the job to its end; return the exit code: 0, that of the rank that failed, or 128 + the signal that
        stopped it.

        Raises `CallError` if the command cannot be started. Nothing of the job is left when it returns or raises.
        """
        become_subreaper()
        with _signals() as pipe:
            self._guard = Guard(self._run_mark)
            try:
                self._carry_out(self._policy.begin())
                while self._exit_code is None:
                    self._wait(pipe)
                    for event in self._happened(pipe):
                        self._handle(event)
                return self._exit_code
            finally:
                self._end_attempt()
                self._agent.release()
                self._guard.dismiss()
                reap_orphans(keep=())

    # --- what happened -----------------------------------------------------------------------------------------------

    def _wait(self, pipe: int) -> None:
        poller = select.poll()
        poller.register(pipe, select.POLLIN)
        for rank in self._ranks:
            if rank.ending is None:
                poller.register(rank.pidfd, select.POLLIN)
        poller.poll(self._config.monitor_s * 1000)

    def _signalled(self, pipe: int) -> list[p.Event]:
        try:
            return [p.Asked(number) for number in os.read(pipe, 64) if number in _ASKS]
        except BlockingIOError:
            return []

    def _happened(self, pipe: int) -> Iterator[p.Event]:
        """What the signals, the page, the ranks and the clock say. Lazy, because one event may end the attempt of the
        next.
        """
        yield from self._signalled(pipe)
        self._agent.poll()
        yield from self._progressed()
        ranks = self._ranks
        for number, rank in enumerate(ranks):
            if number not in self._told and (ending := rank.poll()) is not None:
                self._told.add(number)
                yield self._ended(number, ending)
                if self._ranks is not ranks:
                    return
        self._keep_house()
        yield p.Tick()

    def _progressed(self) -> list[p.Event]:
        self._page = self._agent.page() or self._page
        if self._page is None or not self._ranks:
            return []
        return [p.Progressed(max(record.step for record in self._page.records()))]

    def _keep_house(self) -> None:
        guard = self._guard
        reap_orphans(keep={rank.pid for rank in self._ranks} | ({guard.pid} if guard else set()))
        if guard is not None and not guard.alive():
            self._log.emit(Notice(text="somebody killed the guard process; starting another"))
            guard.dismiss()
            self._guard = Guard(self._run_mark)

    def _ended(self, number: int, ending: Ending) -> p.RankEnded:
        record = None
        if self._page is not None and number < self._page.local_world:
            record = self._page.rank(number)
        finished = record is not None and record.phase is Phase.FINISHED
        event = p.RankEnded(number, ending.code, ending.signal, finished)
        ours = self._policy.state in (p.State.STOPPING, p.State.DRAINING) and ending.signal == signal.SIGTERM
        if not ending.well and not ours:
            self._log.emit(
                RankDied(
                    rank=number,
                    attempt=self._policy.attempt,
                    code=ending.code,
                    signal=ending.signal,
                    step=record.step if record is not None and record.phase is not Phase.ABSENT else None,
                    excused=p.excuse(event),
                )
            )
        return event

    # --- what to do --------------------------------------------------------------------------------------------------

    def _handle(self, event: p.Event) -> None:
        self._carry_out(self._policy.handle(event, self._clock.monotonic()))

    def _carry_out(self, actions: list[p.Action]) -> None:
        for action in actions:
            match action:
                case p.StartAttempt(attempt):
                    self._start_attempt(attempt)
                case p.Terminate():
                    self._stopping_since_s = self._clock.monotonic()
                    for rank in self._ranks:
                        if rank.poll() is None:
                            rank.send(signal.SIGTERM)
                case p.KillTree():
                    for event in self._progressed():  # the last steps before the end count too
                        self._handle(event)
                    self._handle(self._end_attempt())
                case p.Retry(cause, others, delay_s):
                    self._show(cause, others)
                    when = "at once" if delay_s == 0 else f"in {delay_s:.1f} s"
                    self._log.emit(Notice(text=f"starting all ranks again {when}"))
                case p.Succeed():
                    took_s = self._clock.monotonic() - self._began_s
                    self._log.emit(JobSucceeded(attempts=self._policy.attempt + 1, seconds=took_s))
                    self._exit_code = 0
                case p.Fail(reason, cause, others):
                    self._fail(reason, cause, others)
                case p.Stop(number, killed):
                    took_s = self._clock.monotonic() - self._stopping_since_s
                    self._log.emit(JobStopped(signal=number, seconds=took_s, killed=killed))
                    self._exit_code = 128 + number

    def _start_attempt(self, attempt: int) -> None:
        mark = f"{self._run_mark}.{attempt}"
        self._told = set()
        self._page = None
        self._agent.begin_attempt(mark)
        self._port = ReservedPort()
        for number in range(self._config.nproc):
            placement = Placement(
                rank=number,
                world=self._config.nproc,
                local_rank=number,
                local_world=self._config.nproc,
                job=self._config.job,
                attempt=attempt,
                master_addr="127.0.0.1",
                master_port=self._port.number,
                mark=mark,
            )
            env = child_env(placement, base=self._env, max_restarts=self._config.max_restarts)
            self._ranks.append(Rank.start(self._config.command, env=env))
        log_dir = self._config.log_dir
        self._output = Output(
            stdouts={number: rank.stdout for number, rank in enumerate(self._ranks)},
            stderrs={number: rank.stderr for number, rank in enumerate(self._ranks)},
            to_stdout=self._stdout,
            to_stderr=self._stderr,
            log_dir=None if log_dir is None else Path(log_dir) / f"attempt-{attempt}",
        )
        self._log.emit(AttemptStarted(attempt=attempt, world=self._config.nproc, job=self._config.job))

    def _end_attempt(self) -> p.TreeGone:
        """Kill, reap and let go of everything of the attempt; fine if there is none."""
        if not self._ranks:
            return p.TreeGone()
        began_s = self._clock.monotonic()
        attempt = self._policy.attempt
        sessions = [rank.pid for rank in self._ranks]
        killed = kill_attempt(f"{self._run_mark}.{attempt}", sessions=sessions, timeout_s=_KILL_S)
        for rank in self._ranks:
            if rank.poll() is not None:
                rank.reap()
        tails = self._close_output()
        self._ranks = []
        reason = f"{killed.left} cannot be killed" if killed.left else "none of its processes is left"
        took_s = self._clock.monotonic() - began_s
        self._log.record(AttemptStopped(attempt=attempt, reason=reason, seconds=took_s, killed=len(killed.killed)))
        return p.TreeGone(tails=tails, killed=len(killed.killed), left=killed.left)

    def _close_output(self) -> dict[int, tuple[str, ...]]:
        tails = {}
        if self._output is not None:
            self._output.finish(timeout_s=_OUTPUT_S)
            tails = self._output.tails()
            self._output = None
        for rank in self._ranks:
            rank.close()
        if self._port is not None:
            self._port.close()
            self._port = None
        return tails

    # --- what to tell ------------------------------------------------------------------------------------------------

    def _fail(self, reason: str, cause: Death | None, others: tuple[Death, ...]) -> None:
        if cause is None:
            self._log.emit(JobFailed(reason=reason, attempts=self._policy.attempt + 1))
            self._exit_code = 1
            return
        self._show(cause, others)
        self._log.emit(
            JobFailed(
                reason=reason,
                attempts=self._policy.attempt + 1,
                rank=cause.rank,
                code=cause.code,
                signal=cause.signal,
            )
        )
        self._exit_code = cause.exit_code

    def _show(self, cause: Death, others: tuple[Death, ...]) -> None:
        """Put the last words of the rank that failed first in front; fold those of the ranks that fell with it."""
        lines = [f"rank {cause.rank} failed first: it {how_it_ended(cause.code, cause.signal)}"]
        if cause.tail:
            lines[0] += "; the end of its stderr:"
            lines += [f"  | {line}" for line in cause.tail[-_SHOWN_LINES:]]
        if others:
            ends = ", ".join(f"rank {death.rank} {how_it_ended(death.code, death.signal)}" for death in others[:8])
            more = f" and {len(others) - 8} more" if len(others) > 8 else ""
            lines.append(f"perdure: after it: {ends}{more}")
        self._log.print("\n".join(lines))


@contextmanager
def _signals() -> Iterator[int]:
    """Turn the signals that ask to stop into bytes on a pipe; yield its reading end. What was set before comes back."""
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    os.set_blocking(write_end, False)
    # Started under nohup, SIGHUP is ignored, and stays so: the job is to outlive its terminal.
    heard = [number for number in _ASKS if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, _ignore) for number in heard}
    fd_before = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    try:
        yield read_end
    finally:
        signal.set_wakeup_fd(fd_before)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(read_end)
        os.close(write_end)


def _ignore(number: int, frame: object) -> None:
    """The wake-up pipe has the signal's number; nothing else is to be done."""
