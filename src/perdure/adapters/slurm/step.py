"""Start the step of the launchers, pass on what it is told, and say how it ended.

``srun`` kills its step at once when it gets SIGTERM itself, and prints at SIGINT. So it gets neither: it has a session
of its own, and what arrives here goes to the step by ``scancel --signal``. Where Slurm tracks processes by cgroup that
signal reaches the launchers alone; where it follows parents (``proctrack/linuxproc``) it reaches their ranks too.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from types import FrameType

from perdure.adapters.slurm.allocation import seconds_left
from perdure.adapters.slurm.engine import Start
from perdure.clock import SYSTEM, Clock, Deadline
from perdure.errors import CallError, TryAgain

__all__ = ["STARTER", "ask", "run_step", "shown_job"]

STARTER = "PERDURE_SLURM_STARTER"  # HOST:PORT at which the process that started the step lives as long as it listens
_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_ASK_S = 30.0
_LOOK_AGAIN_S = 300.0
_POLL_S = 0.2
_BACKLOG = 4096  # nobody is accepted: that the kernel answers is all that is asked


def ask(*words: str, env: Mapping[str, str], timeout_s: float = _ASK_S) -> str:
    """Run a command of Slurm's and return what it printed; raise `TryAgain` with its own words if it failed."""
    try:
        done = subprocess.run(
            words, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except FileNotFoundError:
        raise CallError(f"there is no {words[0]} on PATH; run this where Slurm's commands are") from None
    except subprocess.TimeoutExpired:
        raise TryAgain(f"{words[0]} has not answered for {timeout_s:g} s; ask whether slurmctld is up") from None
    if done.returncode != 0:
        raise TryAgain(f"{words[0]}: {done.stderr.strip() or done.stdout.strip()}", code=done.returncode)
    return done.stdout


def shown_job(shown: str) -> dict[str, str]:
    """Return the fields that ``scontrol --oneliner show job`` printed; a value ends at its first blank.

    >>> shown_job("JobId=7 JobState=RUNNING Requeue=1")["JobState"]
    'RUNNING'
    """
    fields = dict(word.split("=", 1) for word in shown.split() if "=" in word)
    if "JobState" not in fields:
        raise CallError(f"scontrol shows no job: {shown[:200]!r}; look at it with scontrol show job")
    return fields


def run_step(
    start: Start, *, job: int, address: str, notice_s: float | None, say: Callable[[str], None], clock: Clock = SYSTEM
) -> int:
    """Run the step to its end; return the highest exit code of its launchers (128 + signal for a killed one).

    ``notice_s`` before the time of the job is over the launchers get SIGTERM; None if somebody else sends it.

    SIGTERM, SIGINT and SIGUSR1 of this process go to all launchers as they are. While it lives they can reach a port
    at ``address``, which is this machine's (`perdure.adapters.slurm.ending`). To be called in the main thread.
    """
    waiting: list[int] = []
    notice = None if notice_s is None else _Notice(job, notice_s, start.env, clock)

    def note(number: int, _frame: FrameType | None) -> None:
        waiting.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)}
    sign = socket.create_server(("", 0), backlog=_BACKLOG)
    env = {**start.env, STARTER: f"{address}:{sign.getsockname()[1]}"}
    try:
        try:
            srun = subprocess.Popen(start.command, env=env, start_new_session=True, preexec_fn=_end_with(os.getpid()))
        except FileNotFoundError:
            raise CallError("there is no srun on PATH; run this where Slurm's commands are") from None
        while True:
            try:
                code = srun.wait(_POLL_S)
                return 128 - code if code < 0 else code
            except subprocess.TimeoutExpired:
                pass
            if notice is not None and notice.due():
                say(f"the time of job {job} is over soon")
                waiting.append(signal.SIGTERM)
                notice = None
            while waiting:
                _pass_on(waiting.pop(0), start, job, say, clock)
    finally:
        sign.close()
        for number, handler in before.items():
            signal.signal(number, handler)


class _Notice:
    """When a job is to be told that its time is over; Slurm is asked again then, for it may have been given more."""

    def __init__(self, job: int, notice_s: float, env: Mapping[str, str], clock: Clock) -> None:
        self._job, self._notice_s, self._env, self._clock = job, notice_s, env, clock
        self._look_s = clock.monotonic()

    def due(self) -> bool:
        """Whether it is time."""
        if self._clock.monotonic() < self._look_s:
            return False
        try:
            left_s = seconds_left(
                ask("squeue", "--noheader", f"--jobs={self._job}", "--format=%L", env=self._env).split("\n")[0]
            )
        except TryAgain:
            left_s = self._notice_s + _LOOK_AGAIN_S  # slurmctld is away: nobody can end the job now
        if left_s is not None and left_s <= self._notice_s:
            return True
        spare_s = _LOOK_AGAIN_S if left_s is None else min(left_s - self._notice_s, _LOOK_AGAIN_S)
        self._look_s = self._clock.monotonic() + spare_s
        return False


def _pass_on(number: int, start: Start, job: int, say: Callable[[str], None], clock: Clock) -> None:
    """Send a signal to the step; one that has not begun yet is awaited.

    A job that Slurm is ending has had its SIGTERM from Slurm: a second one would mean at once.
    """
    name = signal.Signals(number).name
    deadline = Deadline.after(_ASK_S, "the step of the launchers to begin", clock=clock)
    try:
        while (step := _step_id(start, job)) is None:
            deadline.check()
            clock.sleep(_POLL_S)
        if ask("squeue", "--noheader", f"--jobs={job}", "--format=%T", env=start.env).split()[:1] != ["RUNNING"]:
            say(f"{name} is not passed on: Slurm ends job {job} and tells its launchers itself")
            return
        ask("scancel", f"--signal={name.removeprefix('SIG')}", step, env=start.env)
        say(f"{name} passed on to the launchers of step {step}")
    except TryAgain as error:
        say(f"{name} could not be passed on to the launchers: {error}")


def _step_id(start: Start, job: int) -> str | None:
    listed = ask("squeue", "--steps", "--noheader", f"--jobs={job}", "--format=%i %j", env=start.env)
    for line in listed.splitlines():
        words: Sequence[str] = line.split()
        if words[1:] == [start.step_name]:
            return words[0]
    return None


def _end_with(parent: int) -> Callable[[], None]:
    """Return what srun does before it is exec'ed: ask for SIGTERM, at which it ends its step, when ``parent`` dies."""
    prctl, getppid, die = _LIBC.prctl, os.getppid, os._exit

    def before_exec() -> None:
        if prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0 or getppid() != parent:
            die(127)

    return before_exec
