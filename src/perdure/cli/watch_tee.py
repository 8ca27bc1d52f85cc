"""Read what a command writes to its stderr, and pass it on as it comes.

The command's stderr is a pipe: a thread takes from it and writes to ours what it has taken, byte for byte and at once,
and only then looks for lines in it, of which a bounded number is kept until they are asked for. If ours does not take
more, the thread waits, and the command with it, as it would without the pipe; if ours is closed, the pipe is closed,
and the command is told (SIGPIPE) as it would be. A command whose stderr is a terminal keeps it, for programs draw on
terminals what they do not write to pipes: then there are no lines to read.
"""

from __future__ import annotations

import os
import select
import subprocess
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from perdure.cli.watch_signals import interrupts_let_through
from perdure.watcher.samples import LogLine
from perdure.watcher.tailing import plain

__all__ = ["Tee", "start"]

_CHUNK_BYTES: Final = 1 << 16
_MOST_HALF: Final = 1000
_LINE_BYTES: Final = 1 << 14
_REST_S: Final = 1.0


class Tee:
    """Passes on what comes from ``source`` to ``sink``, both file descriptors; ``source`` is closed at its end, and
    so is ``sink`` if it ``owns`` it.

    `lines` gives what was written since it was called last: of a storm the first and the last thousand lines;
    ``dropped`` counts the others.
    """

    def __init__(self, source: int, sink: int = 2, *, node: str = "", owns: bool = False) -> None:
        self.dropped = 0
        self._source, self._sink, self._node, self._owns = source, sink, node, owns
        self._first: list[bytes] = []
        self._last: deque[bytes] = deque()
        self._partial = b""
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._pass_on, name="perdure-tee", daemon=True)
        self._thread.start()

    def lines(self) -> list[LogLine]:
        """Whole lines that were written since the last call."""
        with self._lock:
            taken = [*self._first, *self._last]
            self._first.clear()
            self._last.clear()
        now_s = time.monotonic()
        return [LogLine(text=text, at_s=now_s, node=self._node) for each in taken if (text := plain(each))]

    def finish(self, timeout_s: float = _REST_S) -> None:
        """The command has ended: wait for what is left in the pipe, and no longer for others that still hold it."""
        self._thread.join(timeout_s)

    def _pass_on(self) -> None:
        try:
            while data := os.read(self._source, _CHUNK_BYTES):
                _write(self._sink, data)
                self._keep(data)
        except OSError:  # nobody reads what the command says
            pass
        os.close(self._source)
        if self._owns:
            os.close(self._sink)

    def _keep(self, data: bytes) -> None:
        pieces = (self._partial + data).split(b"\n")
        self._partial = pieces.pop()[-_LINE_BYTES:]
        with self._lock:
            for piece in pieces:
                if len(self._first) < _MOST_HALF:
                    self._first.append(piece)
                    continue
                if len(self._last) == _MOST_HALF:
                    self._last.popleft()
                    self.dropped += 1
                self._last.append(piece)


def start(
    command: Sequence[str], *, env: Mapping[str, str], node: str = "", instead: Mapping[int, int] = MappingProxyType({})
) -> tuple[subprocess.Popen[bytes], Tee | None]:
    """Start ``command``, and read its stderr unless that is a terminal.

    ``instead`` maps its stdout (1) and stderr (2) to other descriptors, which are closed here: stderr is read on the
    way there. Raises ``OSError`` if it cannot be started; then nothing is closed.
    """
    sink = instead.get(2, 2)
    if os.isatty(sink):
        with interrupts_let_through():
            process, tee = subprocess.Popen(command, env=env, stdout=instead.get(1)), None
    else:
        source, theirs = os.pipe()
        try:
            with interrupts_let_through():
                process = subprocess.Popen(command, env=env, stdout=instead.get(1), stderr=theirs)
        except OSError:
            os.close(source)
            raise
        finally:
            os.close(theirs)
        tee = Tee(source, sink, node=node, owns=2 in instead)
    if 1 in instead:
        os.close(instead[1])
    return process, tee


def _write(sink: int, data: bytes) -> None:
    """Write all of it; a sink that does not block is waited for."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(sink, view) :]
        except BlockingIOError:
            select.select([], [sink], [])
