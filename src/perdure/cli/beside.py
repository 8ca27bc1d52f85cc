"""A process of ours that works beside another: a launcher's or a controller's, which must never wait for it.

Messages go both ways in frames (four bytes of length, little-endian) over a socket of the two. The owner's side is
`Beside`: it starts the process when there is something for it to do, again if it dies or is silent for a minute, three
times in all, and drops what does not fit into its memory while nobody reads. The process itself uses `Frames`, and ends
when its owner is gone.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from perdure.clock import SYSTEM, Clock
from perdure.process.environ import without_mark

__all__ = ["Beside", "Frames"]

_HEADER: Final = 4
_MOST_BYTES: Final = 16 << 20
_MOST_QUEUED_BYTES: Final = 16 << 20
_SILENT_S: Final = 60.0
_LATE_S: Final = 5.0
_AGAIN_S: Final = 10.0
_MOST_DEATHS: Final = 3
_READ_BYTES: Final = 1 << 20


class Frames:
    """One end of the socket. Raises ``EOFError`` once the other end is gone, or has sent what is no frame."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._heard = bytearray()

    def fileno(self) -> int:
        """A descriptor to wait on."""
        return self._sock.fileno()

    def send(self, body: bytes) -> None:
        """Send a frame; waits until the other end takes it."""
        try:
            self._sock.setblocking(True)
            self._sock.sendall(len(body).to_bytes(_HEADER, "little") + body)
        except OSError as error:
            raise EOFError from error

    def receive(self) -> list[bytes]:
        """The frames that have arrived; never waits."""
        self._sock.setblocking(False)
        ended = False
        while not ended:
            try:
                data = self._sock.recv(_READ_BYTES)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            ended = not data
            self._heard += data
        found = []
        while len(self._heard) >= _HEADER:
            size = int.from_bytes(self._heard[:_HEADER], "little")
            if size > _MOST_BYTES:
                raise EOFError
            if len(self._heard) < _HEADER + size:
                break
            found.append(bytes(self._heard[_HEADER : _HEADER + size]))
            del self._heard[: _HEADER + size]
        if ended and not found:
            raise EOFError
        return found


class Beside:
    """The process that runs ``module`` (``python -m module FD``), as its owner has it. For one thread.

    ``first`` gives what a process is told when it starts, ``what`` names it for people. `begin` has it started by the
    next `poll`; nothing here blocks, and nothing raises because of it.
    """

    def __init__(self, module: str, *, first: Callable[[], Iterable[bytes]], what: str, clock: Clock = SYSTEM) -> None:
        self._module, self._first, self._what, self._clock = module, first, what, clock
        self._process: subprocess.Popen[bytes] | None = None
        self._sock: socket.socket | None = None
        self._frames: Frames | None = None
        self._words = -1
        self._out: deque[memoryview] = deque()
        self._queued_bytes = 0
        self._wanted_s: float | None = None
        self._heard_s = self._polled_s = 0.0
        self._deaths = 0
        self._problem = ""
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The process, while there is one."""
        return None if self._process is None else self._process.pid

    def begin(self, *, in_s: float = 0.0) -> None:
        """Have it started after ``in_s``, or at once if that was asked for later; without effect while it runs."""
        at_s = self._clock.monotonic() + in_s
        if self._process is None and self._deaths == 0:
            self._wanted_s = at_s if self._wanted_s is None else min(self._wanted_s, at_s)

    def send(self, body: bytes) -> None:
        """Give it a message; one too many, while it does not read, is dropped."""
        if self._process is None or self._queued_bytes + len(body) > _MOST_QUEUED_BYTES:
            return
        self._out.append(memoryview(len(body).to_bytes(_HEADER, "little") + body))
        self._queued_bytes += len(body) + _HEADER
        self._flush()

    def poll(self) -> list[bytes]:
        """What it has said since the last call."""
        now = self._clock.monotonic()
        if self._process is None:
            if self._wanted_s is not None and now >= self._wanted_s and not self._closed:
                self._start(now)
            return []
        if now - self._polled_s > _LATE_S:  # we were paused, not it
            self._heard_s += now - self._polled_s
        self._polled_s = now
        self._flush()
        try:
            found = [] if self._frames is None else self._frames.receive()
        except EOFError:
            self._died("has ended")
            return []
        if found:
            self._heard_s = now
        elif now - self._heard_s >= _SILENT_S:
            self._died(f"has said nothing for {_SILENT_S:g} s")
        return found

    def problem(self) -> str:
        """What went wrong since the last call; empty if nothing did."""
        said, self._problem = self._problem, ""
        return said

    def close(self) -> None:
        """End it. Twice is fine."""
        self._closed = True
        self._end()

    def _start(self, now: float) -> None:
        ours, theirs = socket.socketpair()
        self._words = os.memfd_create("perdure-beside")
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._module, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=self._words,
                stderr=self._words,
                env=without_mark(),
                cwd="/",
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            os.close(self._words)
            self._give_up(f"cannot be started: {error.strerror}")
            return
        finally:
            theirs.close()
        self._sock, self._frames, self._wanted_s = ours, Frames(ours), None
        self._heard_s = self._polled_s = now
        for body in self._first():
            self.send(body)

    def _flush(self) -> None:
        if self._sock is None:
            return
        self._sock.setblocking(False)
        try:
            while self._out:
                n = self._sock.send(self._out[0])
                self._queued_bytes -= n
                if n == len(self._out[0]):
                    self._out.popleft()
                else:
                    self._out[0] = self._out[0][n:]
        except BlockingIOError:
            pass
        except OSError:  # it has ended, which the next look at what it says finds
            self._out.clear()
            self._queued_bytes = 0

    def _died(self, how: str) -> None:
        how += self._last_words()
        self._end()
        self._deaths += 1
        if self._deaths < _MOST_DEATHS:
            self._problem = self._problem or f"{self._what} {how}; another one is started, and the job goes on"
            self._wanted_s = self._clock.monotonic() + _AGAIN_S
        else:
            self._give_up(how)

    def _give_up(self, how: str) -> None:
        self._wanted_s, self._deaths = None, _MOST_DEATHS
        self._problem = f"{self._what} {how}; the job goes on without it"

    def _last_words(self) -> str:
        """The last line that it printed, as the tail of a sentence."""
        size = os.fstat(self._words).st_size
        lines = os.pread(self._words, 4096, max(0, size - 4096)).decode(errors="replace").strip().splitlines()
        return f" ({lines[-1][:200]})" if lines else ""

    def _end(self) -> None:
        if self._process is None:
            return
        if self._sock is not None:
            self._sock.close()
        self._process.kill()
        try:
            self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            pass  # the kernel holds it, and lets it go when it can: it has no more to say to us
        os.close(self._words)
        self._process = self._sock = self._frames = None
        self._out.clear()
        self._queued_bytes = 0
