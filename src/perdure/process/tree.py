"""The process tree of an attempt: start its ranks so that they cannot outlive the launcher, and end all of it for
certain.

Three nets, because each has a hole. PR_SET_PDEATHSIG kills a rank with its launcher, but not the rank's children. The
guard kills whatever carries the mark once the launcher is gone, but may be killed itself. The launcher kills the mark
and the sessions of its ranks at the end of each attempt, and as subreaper it inherits and reaps what lost its parent.

A dead rank is noticed without being reaped (`Rank.poll`): its pid, and so its session's number, stays taken until
`Rank.reap`, which comes after the kill. So a session is never mistaken for another.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from perdure.clock import SYSTEM, Clock, Deadline
from perdure.errors import Bug, CallError, StorageError
from perdure.process import marked

__all__ = [
    "Ending",
    "Guard",
    "Killed",
    "Rank",
    "Standby",
    "become_subreaper",
    "die_with",
    "is_subreaper",
    "kill_attempt",
    "reap_orphans",
    "stop_attempt",
]

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a process ended: with ``code``, or by ``signal``."""

    code: int | None = None
    signal: int | None = None

    @property
    def well(self) -> bool:
        """Whether it exited with code 0."""
        return self.code == 0


@dataclass(frozen=True, slots=True)
class Killed:
    """What an attempt's end took: processes that had to be killed, and those that even SIGKILL has not ended."""

    killed: frozenset[int] = frozenset()
    left: tuple[int, ...] = ()


class Standby(Protocol):
    """A process that forks ranks which need not import any more: `perdure.process.zygote.Zygote`."""

    def fork(
        self, command: Sequence[str], *, env: Mapping[str, str], stdout: int, stderr: int, deadline: Deadline
    ) -> int:
        """Return the pid of a new rank: a child of this process in a session of its own, that dies with it."""
        ...


class Rank:
    """A process that this launcher started, in a session of its own, and that dies with the launcher.

    ``stdout`` and ``stderr`` are descriptors of what it prints, the rank's until `close`.
    """

    def __init__(self, pid: int, *, stdout: int, stderr: int, wait: Callable[[], object]) -> None:
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)
        self.stdout = stdout
        self.stderr = stderr
        self.ending: Ending | None = None
        self._wait = wait

    @classmethod
    def start(cls, command: Sequence[str], *, env: Mapping[str, str], cwd: str | None = None) -> Rank:
        """Start ``command``; its stdin is empty, its output comes through `stdout` and `stderr`.

        Called from the main thread alone: the kernel kills the rank when the *thread* that started it ends.
        Raises `CallError` if there is no such command.
        """
        if threading.current_thread() is not threading.main_thread():
            raise Bug("ranks must be started from the main thread")
        with _Pipes() as pipes:
            try:
                process = subprocess.Popen(
                    list(command),
                    env=dict(env),
                    cwd=cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=pipes.writers[0],
                    stderr=pipes.writers[1],
                    start_new_session=True,
                    preexec_fn=die_with(os.getpid()),
                )
            except OSError as error:
                raise CallError(f"cannot start {command[0]}: {error.strerror}", command=list(command)) from error
            stdout, stderr = pipes.keep_readers()
        return cls(process.pid, stdout=stdout, stderr=stderr, wait=process.wait)

    @classmethod
    def fork(cls, standby: Standby, command: Sequence[str], *, env: Mapping[str, str], deadline: Deadline) -> Rank:
        """Start ``command`` through ``standby``, in the folder that this stands in; else as `start`.

        Called from the main thread alone, as `start`. Raises what ``standby.fork`` raises; no rank is left then, and
        `start` is the way.
        """
        if threading.current_thread() is not threading.main_thread():
            raise Bug("ranks must be started from the main thread")
        with _Pipes() as pipes:
            pid = standby.fork(command, env=env, stdout=pipes.writers[0], stderr=pipes.writers[1], deadline=deadline)
            stdout, stderr = pipes.keep_readers()
        return cls(pid, stdout=stdout, stderr=stderr, wait=lambda: os.waitpid(pid, 0))

    def poll(self) -> Ending | None:
        """Return how it ended, or None while it runs. Does not reap."""
        if self.ending is None:
            info = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if info is not None:
                exited = info.si_code == os.CLD_EXITED
                self.ending = Ending(code=info.si_status) if exited else Ending(signal=info.si_status)
        return self.ending

    def send(self, number: int) -> None:
        """Send a signal to the rank alone: its children (data loaders) are for the rank to end."""
        if self.ending is None:
            signal.pidfd_send_signal(self.pidfd, number)

    def reap(self) -> None:
        """Give the pid back, once it has ended and its session is gone."""
        self._wait()

    def close(self) -> None:
        """Close the descriptors, the output's too; twice is fine."""
        for descriptor in (self.stdout, self.stderr, self.pidfd):
            if descriptor >= 0:
                os.close(descriptor)
        self.stdout = self.stderr = self.pidfd = -1


class _Pipes:
    """The two pipes of a rank's output; closes what has not been kept."""

    def __init__(self) -> None:
        self._readers: list[int] = []
        self.writers: list[int] = []

    def __enter__(self) -> _Pipes:
        try:
            for _ in range(2):
                reader, writer = os.pipe()
                self._readers.append(reader)
                self.writers.append(writer)
        except OSError as error:
            self.__exit__()
            raise StorageError(f"cannot make a pipe for a rank: {error.strerror}", errno=error.errno) from error
        return self

    def keep_readers(self) -> tuple[int, int]:
        """Hand over the reading ends: stdout's and stderr's."""
        stdout, stderr = self._readers
        self._readers = []
        return stdout, stderr

    def __exit__(self, *_: object) -> None:
        for descriptor in (*self._readers, *self.writers):
            os.close(descriptor)


class Guard:
    """The guard of one launcher run: kills all that carries ``run_mark`` when this process dies before `dismiss`."""

    def __init__(self, run_mark: str) -> None:
        read_end, self._pipe = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(marked.__file__), run_mark],
                env={"PATH": os.defpath},  # without any mark: it must not find itself
                cwd="/",
                stdin=read_end,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=marked.ignore_polite_signals,
            )
        except OSError as error:
            os.close(self._pipe)
            raise StorageError(f"cannot start the guard process: {error.strerror}", errno=error.errno) from error
        finally:
            os.close(read_end)

    @property
    def pid(self) -> int:
        """Process of the guard."""
        return self._process.pid

    def keep_lease(self, lease_s: float) -> None:
        """From here on all is killed, too, once this process has been stopped for ``lease_s`` seconds."""
        with suppress(BrokenPipeError):  # somebody killed it
            os.write(self._pipe, b"L" + struct.pack("<d", lease_s))

    def alive(self) -> bool:
        """Whether the guard still stands."""
        return self._process.poll() is None

    def dismiss(self) -> None:
        """Tell the guard that all is ended, and wait until it is gone; twice is fine."""
        if self._pipe < 0:
            return
        try:
            os.write(self._pipe, b".")
        except BrokenPipeError:
            pass  # somebody killed it
        os.close(self._pipe)
        self._pipe = -1
        try:
            self._process.wait(timeout=5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def kill_attempt(mark: str, *, sessions: Iterable[int], timeout_s: float = 10.0) -> Killed:
    """Kill every process of the attempt ``mark`` and of ``sessions`` (pids of its unreaped ranks); return when none is
    left.

    What has not gone within ``timeout_s`` of SIGKILL is in ``left``.
    """
    killed, left = marked.sweep(mark, sessions=frozenset(sessions), timeout_s=timeout_s)
    return Killed(frozenset(killed), tuple(left))


def stop_attempt(
    ranks: Sequence[Rank], mark: str, *, grace_s: float, timeout_s: float = 10.0, clock: Clock = SYSTEM
) -> Killed:
    """Ask the ranks to stop (SIGTERM), give them ``grace_s``, kill what is left of the attempt, reap. For plain
    callers.

    The launcher does the same step by step, because it has more to look at meanwhile.
    """
    for rank in ranks:
        if rank.poll() is None:
            rank.send(signal.SIGTERM)
    give_up = clock.monotonic() + grace_s
    while any(rank.poll() is None for rank in ranks) and clock.monotonic() < give_up:
        clock.sleep(0.005)
    killed = kill_attempt(mark, sessions=[rank.pid for rank in ranks], timeout_s=timeout_s)
    for rank in ranks:
        if rank.poll() is not None:
            rank.reap()
        rank.close()
    return killed


def become_subreaper() -> None:
    """Make this process the parent of every descendant that loses its own; `reap_orphans` then has to be called now and
    then.
    """
    if _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise Bug(f"PR_SET_CHILD_SUBREAPER was refused: {os.strerror(ctypes.get_errno())}")


def is_subreaper() -> bool:
    """Whether `become_subreaper` has been called in this process."""
    answer = ctypes.c_int(0)
    return _LIBC.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(answer), 0, 0, 0) == 0 and answer.value == 1


def reap_orphans(*, keep: Container[int]) -> list[int]:
    """Reap the dead children of this process that are not in ``keep`` (its own ranks and guard); return their pids."""
    try:
        with open(f"/proc/self/task/{threading.main_thread().native_id}/children", "rb") as file:
            children = [int(word) for word in file.read().split()]
    except OSError:
        return []  # a kernel without CONFIG_PROC_CHILDREN: they stay zombies until the launcher ends
    gone = []
    for pid in marked.zombies(child for child in children if child not in keep):
        try:
            gone.append(os.waitpid(pid, os.WNOHANG)[0])
        except ChildProcessError:
            pass  # reaped by whoever started it
    return gone


def die_with(parent: int) -> Callable[[], None]:
    """Return what a new process does before it execs: ask for SIGKILL at the parent's death, and check that it still
    lives.

    Runs between fork and exec, where only this thread exists: nothing here imports, locks or allocates more than an
    int.
    """
    prctl, getppid, die = _LIBC.prctl, os.getppid, os._exit

    def before_exec() -> None:
        if prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0 or getppid() != parent:
            die(127)

    return before_exec
