"""Start a job as a user would, follow its ranks and its events, kill parts of it: what demo and campaigns do."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from perdure.checkpoint.link import socket_prefix
from perdure.checkpoint.messages import MAX_MESSAGE_BYTES, PROTOCOL, Hello, Message
from perdure.clock import Deadline
from perdure.errors import DeadlineExceeded, PerdureError, RankFailed
from perdure.events import Committed, Fact, read_log
from perdure.process.runtime_dir import runtime_dir
from perdure.progress import Page, Snapshot
from perdure.wire import connect

__all__ = ["JobWatch"]

_POLL_S = 0.005
_MEET_S = 5.0


class JobWatch:
    """One ``perdure run`` as a child process, its output in ``log``, its events in ``events``."""

    def __init__(self, job: str, *, nproc: int, command: Sequence[str], folder: Path) -> None:
        self.job = job
        self.events = folder / f"{job}.events.jsonl"
        self.log = folder / f"{job}.log"
        self.agent_pid = 0
        env = {**os.environ, "PERDURE_EVENTS": str(self.events)}
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "perdure", "run", "--nproc", str(nproc), "--job", job, "--", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=env,
                start_new_session=True,
            )
        self._page: Page | None = None
        self._gone: set[int] = set()  # pids of ranks whose attempt is over

    def wait_for_step(self, step: int, deadline: Deadline, tick: Callable[[int], None] | None = None) -> float:
        """Wait until every rank of a live attempt has completed ``step``; return the monotonic time of seeing it."""
        while True:
            done = self.step()
            if tick is not None:
                tick(done)
            if done >= step:
                return time.monotonic()
            self._check_alive(deadline, f"step {step}, at {done} now")
            time.sleep(_POLL_S)

    def wait_for_commit(self, step: int, deadline: Deadline) -> None:
        """Wait until ``step`` is durable."""
        while not any(isinstance(fact, Committed) and fact.step >= step for fact in self.facts()):
            self._check_alive(deadline, f"the commit of step {step}")
            time.sleep(0.05)

    def wait(self, deadline: Deadline, tick: Callable[[int], None] | None = None) -> None:
        """Wait until the job has succeeded; raise `RankFailed` with the end of its output if it has not."""
        while (code := self.process.poll()) is None:
            if tick is not None:
                tick(self.step())
            deadline.check("the end of the job")
            time.sleep(0.05)
        if code != 0:
            raise self._failed(code)

    def step(self) -> int:
        """The step that all ranks have completed; 0 while there are none."""
        ranks = self.ranks()
        return min((rank.step for rank in ranks), default=0)

    def ranks(self) -> list[Snapshot]:
        """What the ranks of the live attempt are doing."""
        if self._page is None:
            self._meet()
        found = [] if self._page is None else [rank for rank in self._page.snapshot() if rank.pid]
        if found and any(rank.pid in self._gone for rank in found):
            self._page = None  # the page of an attempt that we know to be over
            return []
        return found

    def kill_rank(self, rank: int) -> float:
        """``kill -9`` one rank, without warning; return the monotonic time."""
        ranks = self.ranks()
        victim = next(each for each in ranks if each.rank == rank)
        self._gone |= {each.pid for each in ranks}
        at = time.monotonic()
        os.kill(victim.pid, signal.SIGKILL)
        return at

    def kill_everything(self) -> float:
        """``kill -9`` the launcher, the agent and all ranks; return the monotonic time."""
        ranks = self.ranks()
        at = time.monotonic()
        for pid in [self.process.pid, self.agent_pid, *(rank.pid for rank in ranks)]:
            with contextlib.suppress(ProcessLookupError):  # it may have ended with the one before
                os.kill(pid, signal.SIGKILL)
        self.process.wait(10)
        return at

    def facts(self) -> list[Fact]:
        """Every event of the job so far, in order."""
        return [entry.fact for entry in read_log(self.events)] if self.events.exists() else []

    def close(self) -> None:
        """Leave nothing behind."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill_everything()

    def _meet(self) -> None:
        for path in runtime_dir().glob(f"{socket_prefix(self.job)}*.sock"):
            try:
                deadline = Deadline.after(_MEET_S, "the agent")
                with connect(
                    path, deadline=Deadline(0.0, "the agent"), type=Message, max_body_bytes=MAX_MESSAGE_BYTES
                ) as link:
                    link.send(Hello(protocol=PROTOCOL, role="launcher", job=self.job), deadline=deadline)
                    welcome, fds = link.recv(deadline)
                    self.agent_pid = link.peer_pid
                    if welcome.page:
                        self._page = Page.attach(fds[0])
            except PerdureError:
                continue  # an agent that is starting, or gone

    def _check_alive(self, deadline: Deadline, what: str) -> None:
        code = self.process.poll()
        if code is not None:
            raise self._failed(code)
        if deadline.passed():
            raise DeadlineExceeded(
                f"gave up waiting for {what}; the job's output is in {self.log}", what=what, missing=""
            )

    def _failed(self, code: int) -> RankFailed:
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
        return RankFailed(f"the job {self.job} ended with {code}; the end of {self.log}:\n{tail}", code=code)
