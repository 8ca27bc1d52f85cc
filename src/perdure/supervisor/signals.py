"""The signals that ask a job to stop, as bytes on a pipe, so that a loop hears them among other things."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["asking_signals"]

_ASKS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@contextmanager
def asking_signals() -> Iterator[int]:
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
