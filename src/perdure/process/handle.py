"""A handle on another process that never means a later one of the same number."""

from __future__ import annotations

import os
import select
import signal
import weakref
from contextlib import suppress

__all__ = ["Handle", "is_running", "is_stopped"]


class Handle:
    """The process that has number ``pid`` now; of none, or of this very process, every method does nothing."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._fd = -1
        if pid not in (0, os.getpid()):
            with suppress(OSError):  # it is gone already, or out of sight
                self._fd = os.pidfd_open(pid)
                weakref.finalize(self, os.close, self._fd)

    def stopped(self) -> bool:
        """Whether a signal or a debugger has stopped it."""
        return self._fd >= 0 and is_stopped(self.pid)

    def end(self, *, within_s: float) -> bool:
        """Kill it, stopped or not; return whether it is gone within so many seconds."""
        if self._fd < 0:
            return False
        with suppress(OSError):  # gone already, or of another user
            signal.pidfd_send_signal(self._fd, signal.SIGKILL)
        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        return bool(poller.poll(within_s * 1000))


def is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger has stopped process ``pid``."""
    return _state(pid) in ("T", "t")


def is_running(pid: int) -> bool:
    """Whether there is a process ``pid`` that has not ended."""
    return _state(pid) not in ("", "Z", "X")


def _state(pid: int) -> str:
    """The letter of /proc for what process ``pid`` does; empty if there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""
