"""Find and kill every process that carries a mark; and the guard, a process that does so when its launcher dies.

A launcher puts ``PERDURE_MARK=<run>.<attempt>`` into the environment of its ranks. The kernel keeps what a process was
exec'ed with readable in /proc/<pid>/environ, and a fork copies it: children, daemons that forked twice and took a
session of their own carry it all the same. A process that was exec'ed without it (the agent) is exempt, on purpose. A
mark matches itself and every mark below it: ``<run>`` matches ``<run>.0`` and ``<run>.1``. Where launchers nest the
variable holds all marks, ``outer:inner``.

This file imports the standard library only and runs as a script with the guard's pipe as its stdin::

    python -I -S marked.py <run>

The guard ignores polite signals and waits on the pipe, whose other end the launcher alone holds. A full stop means that
the launcher has ended its attempts itself; end of file without it means that the launcher was killed, and so is all
that it started. ``L`` and a double tell the seconds of its lease: a launcher that is stopped (SIGSTOP, a debugger) for
that long cannot end its ranks although their places may be given away, so the guard does.
"""

import os
import select
import signal
import struct
import sys
import time
from collections.abc import Container, Iterable, Iterator

__all__ = ["guard", "ignore_polite_signals", "kill_pid", "pids_marked", "stat_fields", "sweep", "zombies"]

_VARIABLE = b"PERDURE_MARK="
_EMPTY_SCANS = 2
_PAUSE_S = 0.002
_GUARD_S = 30.0
_LOOK_S = 0.25
_EARLY_S = 2 * _LOOK_S  # than the lease: it has been stopped for up to one look before that is seen


def pids_marked(mark: str, *, sessions: Container[int] = ()) -> list[int]:
    """Return the live processes that carry ``mark`` or belong to one of ``sessions``; never this process.

    Zombies carry nothing. A process of another user, or one that vanishes while it is looked at, is left out.
    """
    return list(_pids_marked(mark, sessions))


def kill_pid(pid: int, number: int, mark: str, *, sessions: Container[int] = ()) -> bool:
    """Send signal ``number`` to ``pid`` if it still is a process of ``mark``, not another with a used-up number."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False  # gone
    try:
        if not (_carries(pid, mark) or _in_session(pid, sessions)):
            return False
        signal.pidfd_send_signal(handle, number)
        return True
    except OSError:
        return False  # gone, or not ours to kill
    finally:
        os.close(handle)


def sweep(mark: str, *, sessions: Container[int] = (), timeout_s: float) -> tuple[set[int], list[int]]:
    """Kill the processes of ``mark`` until none is found twice in a row; return those killed and those left.

    One may fork while it is looked for, hence the second look. Left are processes that a SIGKILL has not ended within
    ``timeout_s`` (they hang in the kernel).
    """
    killed: set[int] = set()
    give_up = time.monotonic() + timeout_s
    n_empty = 0
    while n_empty < _EMPTY_SCANS:
        found = []
        for pid in _pids_marked(mark, sessions):  # killed as they are found: less time to fork
            found.append(pid)
            if kill_pid(pid, signal.SIGKILL, mark, sessions=sessions):
                killed.add(pid)
        n_empty = 0 if found else n_empty + 1
        if time.monotonic() > give_up:
            return killed, found
        time.sleep(_PAUSE_S)
    return killed, []


def ignore_polite_signals() -> None:
    """Ignore what terminals and operators send. Inherited through exec: called before the guard's, so that no moment is
    left.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)


def guard(run_mark: str) -> None:
    """Wait for the launcher's word or its death; on death kill all of ``run_mark``, also if it is stopped too long."""
    ignore_polite_signals()
    launcher, lease_s, stopped_s = os.getppid(), float("inf"), None
    while True:
        if select.select([0], [], [], _LOOK_S)[0]:
            said = os.read(0, 1)
            if said == b"L":
                (lease_s,) = struct.unpack("<d", os.read(0, 8))
                continue
            if said == b"":
                sweep(run_mark, timeout_s=_GUARD_S)
            return
        fields = stat_fields(launcher)
        if fields is None or fields[0] not in (b"T", b"t"):
            stopped_s = None
            continue
        now = time.monotonic()
        stopped_s = now if stopped_s is None else stopped_s
        if now - stopped_s >= lease_s - _EARLY_S:
            sweep(run_mark, timeout_s=_GUARD_S)
            lease_s = float("inf")  # until it goes on, and says how long it may be silent


def _pids_marked(mark: str, sessions: Container[int]) -> Iterator[int]:
    own = os.getpid()
    for name in os.listdir("/proc"):
        if name.isdigit() and (pid := int(name)) != own and (_carries(pid, mark) or _in_session(pid, sessions)):
            yield pid


def _carries(pid: int, mark: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            environ = file.read()
    except OSError:
        return False  # gone, or another user's
    if _VARIABLE not in environ:
        return False
    wanted = mark.encode()
    return any(
        token == wanted or token.startswith(wanted + b".")
        for entry in environ.split(b"\0")
        if entry.startswith(_VARIABLE)
        for token in entry[len(_VARIABLE) :].split(b":")
    )


def _in_session(pid: int, sessions: Container[int]) -> bool:
    if sessions == ():
        return False
    fields = stat_fields(pid)
    return fields is not None and int(fields[3]) in sessions and fields[0] not in (b"Z", b"X")


def stat_fields(pid: int) -> list[bytes] | None:
    """Return the fields of /proc/<pid>/stat after the name: state, parent, group, session, ...; None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return None


def zombies(candidates: Iterable[int]) -> list[int]:
    """Return those of ``candidates`` that are dead and wait to be reaped."""
    return [pid for pid in candidates if (fields := stat_fields(pid)) is not None and fields[0] == b"Z"]


if __name__ == "__main__":
    guard(sys.argv[1])
