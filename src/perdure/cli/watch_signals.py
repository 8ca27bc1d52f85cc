"""Pass on to a command what is sent to the process that watches it.

A terminal sends Ctrl-C to every process in its foreground, the command among them; what is sent to this process alone
reaches nobody else. The kernel says which of both it was, but not to a handler: so SIGINT is blocked, and a thread
waits for it (``sigwaitinfo``, where ``si_code`` tells). A request to end is passed on once. One that comes a moment
later, and not with the first (`timeout`, batch systems and shells send to a process and to its group), ends the command
and all that is below it by force.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final

from perdure.process.marked import stat_fields

__all__ = ["block_interrupts", "interrupts_let_through", "pass_signals_on"]

_TOGETHER_S: Final = 1.0
_FROM_KERNEL: Final = 0x80
"""``SI_KERNEL``: of SIGINT, that a terminal has sent it to its foreground."""


def block_interrupts() -> None:
    """Keep SIGINT back until `pass_signals_on`; threads that are started later do not hear it either."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


@contextmanager
def interrupts_let_through() -> Iterator[None]:
    """For a block that starts a process: it would inherit that SIGINT is kept back."""
    before = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def pass_signals_on(process: subprocess.Popen[bytes]) -> None:
    """Do so from now on, to the end of this process. To be called by the main thread, after `block_interrupts`."""
    asked_s: list[float] = []

    def send(number: int, _: FrameType | None = None) -> None:
        if process.poll() is not None:
            return
        if number not in (signal.SIGINT, signal.SIGTERM) or not asked_s:
            process.send_signal(number)
        elif time.monotonic() - asked_s[0] >= _TOGETHER_S:
            _kill(process)
        if number in (signal.SIGINT, signal.SIGTERM):
            asked_s.append(time.monotonic())

    def interrupts() -> None:
        while True:
            if signal.sigwaitinfo({signal.SIGINT}).si_code != _FROM_KERNEL:
                send(signal.SIGINT)

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, send)
    threading.Thread(target=interrupts, name="perdure-interrupts", daemon=True).start()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End it and its descendants, also those in sessions of their own, as ranks of launchers are."""
    below = _descendants(process.pid)
    process.kill()
    for pid in below:
        with suppress(OSError):  # it has ended with those above it
            os.kill(pid, signal.SIGKILL)


def _descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal() and (fields := stat_fields(int(name))) is not None:
            children.setdefault(int(fields[1]), []).append(int(name))
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found[1:]
