"""Lines that a thread writes: whoever gives them never waits, whatever hangs or is full at the other end.

A terminal that is paused, a pipe that nobody reads, a file server that is gone and a full disk all look alike to the
giver: `LineWriter.problem` says so. Lines without room are counted. After a line that was written in part only, the
next one begins on a line of its own.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Final

__all__ = ["LineWriter"]

_MOST_WAITING: Final = 4096


class LineWriter:
    """Writes lines to a copy of the file descriptor ``fd``. ``most`` lines may wait."""

    def __init__(self, fd: int, *, most: int = _MOST_WAITING) -> None:
        self._fd, self._most = os.dup(fd), most
        self._waiting: deque[bytes] = deque()
        self._more = threading.Condition()
        self._busy = self._ending = False
        self.dropped = 0
        self.problem = ""
        "Why the last line could not be written; empty if it was."
        self._thread = threading.Thread(target=self._run, name="perdure-line-writer", daemon=True)
        self._thread.start()

    def write(self, line: bytes) -> None:
        """Have ``line`` written, without its end."""
        with self._more:
            if len(self._waiting) >= self._most:
                self.dropped += 1
                self.problem = self.problem or "what is written is not taken"
                return
            self._waiting.append(line + b"\n")
            self._more.notify_all()

    def drain(self, timeout_s: float) -> bool:
        """Wait until everything is written, or given up; whether it is."""
        with self._more:
            return self._more.wait_for(lambda: not self._waiting and not self._busy, timeout_s)

    def close(self, timeout_s: float = 2.0) -> None:
        """Write what waits, for at most ``timeout_s``, and end."""
        self.drain(timeout_s)
        with self._more:
            self._ending = True
            self._more.notify_all()
        self._thread.join(0.2)

    def _run(self) -> None:
        torn = b""
        while True:
            with self._more:
                self._busy = False
                self._more.notify_all()
                self._more.wait_for(lambda: bool(self._waiting) or self._ending)
                if not self._waiting:
                    os.close(self._fd)
                    return
                line = self._waiting.popleft()
                self._busy = True
            written, problem = self._put(torn + line)
            if problem:
                self.dropped += 1
                torn = b"\n" if written > len(torn) or (torn and not written) else b""
            else:
                torn = b""
            self.problem = problem

    def _put(self, data: bytes) -> tuple[int, str]:
        """How many bytes were written, and why not all; empty if they were."""
        at = 0
        try:
            while at < len(data):
                at += os.write(self._fd, data[at:])
        except OSError as error:
            return at, error.strerror or "it failed"
        return at, ""
