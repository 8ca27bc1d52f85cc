"""Whose turn it is to write, among the processes that have one space open.

SQLite lets one process write at a time, and lets the others look again after sleeps that grow to 100 ms: who has just
written comes in again before them, and under load some wait for seconds. Here they stand in a line of two places.
Byte 0 of the lock file is the *gate*, byte 1 the *turn*: who wants to write takes the gate, then the turn, then lets
the gate go. Who has just written finds the gate taken by the next and cannot pass it; and as only one waits for the
turn, it may look often. Both are locks of an open file (OFD): they end with the process, however that ends. The file
names who has the turn, for the message of who waits in vain.

SQLite's own lock still guards the data: a program that does not know of turns can be slow, but does no harm.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time
from pathlib import Path
from typing import Final

from perdure.errors import DeadlineExceeded
from perdure.memory.sqlite_files import explained_sqlite

__all__ = ["Turns"]

_GATE: Final = 0
_TURN: Final = 1
_FLOCK: Final = "hhqqi4x"
_BUSY: Final = (errno.EAGAIN, errno.EACCES)


class Turns:
    """The lock file ``path``. One thread of a process at a time may take a turn."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with explained_sqlite(path):
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._fd = os.open(path, flags, 0o600)
        self._me = f"{os.getpid():<20d}\n".encode()

    def take(self, until: float) -> None:
        """Wait for a turn until the moment ``until`` of `time.monotonic`.

        Raises `DeadlineExceeded`, which names who has it.
        """
        self._wait(_GATE, until, first_s=2e-4)
        try:
            self._wait(_TURN, until, first_s=5e-5)
        finally:
            self._set(fcntl.F_UNLCK, _GATE)
        try:
            os.pwrite(self._fd, self._me, 0)
        except OSError:  # a full disk: the name is for a message only, and SQLite tells what is the matter
            pass

    def give(self) -> None:
        """Let the next have its turn."""
        self._set(fcntl.F_UNLCK, _TURN)

    def holder(self) -> str:
        """Who has the turn, in words."""
        try:
            pid = int(os.pread(self._fd, 20, 0))
            name = Path(f"/proc/{pid}/comm").read_text().strip()
        except ValueError:
            return "another process"
        except OSError:
            return f"process {pid}"
        return f"process {pid} ({name})"

    def close(self) -> None:
        """Close the file, which gives up all that is held; twice is fine."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _wait(self, place: int, until: float, *, first_s: float) -> None:
        began = time.monotonic()
        while not self._set(fcntl.F_WRLCK, place):
            now = time.monotonic()
            if now >= until:
                who = self.holder()
                raise DeadlineExceeded(
                    f"gave up waiting to write in {self.path.parent} after {now - began:.1f} s: {who} has the turn;"
                    " do it again, or see why that process does not go on",
                    missing=[str(self.path)],
                    holder=who,
                )
            # A commit takes less than a millisecond; whoever holds on longer is looked at less often.
            time.sleep(min(max(first_s, (now - began) / 50), 0.005, until - now))

    def _set(self, kind: int, place: int) -> bool:
        try:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, kind, os.SEEK_SET, place, 1, 0))
        except OSError as error:
            if error.errno in _BUSY:
                return False
            with explained_sqlite(self.path):
                raise
        return True
