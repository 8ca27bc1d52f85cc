"""Pass on what the ranks print: one thread, whole lines, each with its rank in front; and remember how each rank's
stderr ended.
"""

from __future__ import annotations

import io
import os
import selectors
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from perdure.errors import StorageError

__all__ = ["LOG_BYTES", "Output"]

LOG_BYTES = 64 << 20

_READ_BYTES = 1 << 16
_LONGEST_LINE_BYTES = 1 << 16
_TAIL_LINES = 40
_POLL_S = 0.05
_RECENT_LINES = 200  # of a node, in about a second
_SHOWN_BYTES = 1000


@dataclass(slots=True)
class _Stream:
    """One pipe of one rank."""

    rank: int
    to: BinaryIO
    tail: deque[bytes] | None
    log: _Log | None
    partial: bytearray = field(default_factory=bytearray)


class Output:
    """The output of one attempt. ``stdouts`` and ``stderrs`` map rank to a pipe's descriptor (not owned).

    With ``log_dir``, what rank 3 prints also goes to ``<log_dir>/rank-3.log``; a log of `LOG_BYTES` is renamed to
    ``rank-3.log.1`` (and that to ``.2``, of which there is no more) and begun anew.
    """

    def __init__(
        self,
        *,
        stdouts: Mapping[int, int],
        stderrs: Mapping[int, int],
        to_stdout: BinaryIO,
        to_stderr: BinaryIO,
        log_dir: Path | None = None,
    ) -> None:
        each = max(4, _RECENT_LINES // max(1, len(stdouts)))
        self._recent: dict[int, deque[bytes]] = {rank: deque(maxlen=each) for rank in stdouts}
        self._tails: dict[int, deque[bytes]] = {rank: deque(maxlen=_TAIL_LINES) for rank in stderrs}
        self._logs = {} if log_dir is None else _open_logs(log_dir, list(stdouts))
        self._selector = selectors.DefaultSelector()
        for pipes, to, tails in ((stdouts, to_stdout, {}), (stderrs, to_stderr, self._tails)):
            for rank, fd in pipes.items():
                os.set_blocking(fd, False)
                stream = _Stream(rank, to, tails.get(rank), self._logs.get(rank))
                self._selector.register(fd, selectors.EVENT_READ, stream)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._pump, name="perdure-output", daemon=True)
        self._thread.start()

    def finish(self, *, timeout_s: float) -> None:
        """Pass on what is still in the pipes and end; called once no rank is left. Twice is fine.

        A pipe that somebody else still holds open is left after it has been silent for a moment. If whoever reads our
        own output does not, the thread is left behind after ``timeout_s``.
        """
        self._ending.set()
        self._thread.join(timeout_s)

    def tails(self) -> dict[int, tuple[str, ...]]:
        """The last lines of each rank's stderr; complete after `finish`."""
        return {rank: tuple(line.decode(errors="replace") for line in tail) for rank, tail in self._tails.items()}

    def new_lines(self) -> tuple[tuple[int, str], ...]:
        """What ranks have printed since the last call, each line with its rank; of many the last, of long the front."""
        found = []
        for rank, recent in self._recent.items():
            while recent:
                found.append((rank, recent.popleft()[:_SHOWN_BYTES].decode(errors="replace").rstrip()))
        return tuple(found)

    def _pump(self) -> None:
        while self._selector.get_map():
            ready = self._selector.select(_POLL_S)
            if not ready and self._ending.is_set():
                break
            for key, _ in ready:
                self._read(key.fd, key.data)
        for key in list(self._selector.get_map().values()):
            self._pass_on(key.data, bytes(key.data.partial))
        self._selector.close()
        for log in self._logs.values():
            log.close()

    def _read(self, fd: int, stream: _Stream) -> None:
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        stream.partial += data
        if not data:
            self._selector.unregister(fd)
            cut = len(stream.partial)
        else:
            cut = max(stream.partial.rfind(b"\n"), stream.partial.rfind(b"\r")) + 1
            if cut == 0 and len(stream.partial) >= _LONGEST_LINE_BYTES:
                cut = len(stream.partial)
        whole = bytes(memoryview(stream.partial)[:cut])
        del stream.partial[:cut]
        self._pass_on(stream, whole)

    def _pass_on(self, stream: _Stream, text: bytes) -> None:
        lines = text.replace(b"\r\n", b"\n").splitlines(keepends=True)
        if not lines:
            return
        if not lines[-1].endswith((b"\n", b"\r")):
            lines[-1] += b"\n"
        self._recent[stream.rank].extend(lines)
        if stream.tail is not None:
            stream.tail.extend(line.rstrip() for line in lines)
        if stream.log is not None:
            complaint = stream.log.write(b"".join(lines))
            if complaint:
                _write(stream.to, b"perdure: %s\n" % complaint.encode())
        prefix = b"[%d] " % stream.rank
        _write(stream.to, b"".join(prefix + line for line in lines))


def _write(to: BinaryIO, data: bytes) -> None:
    try:
        to.write(data)
        to.flush()
    except (OSError, ValueError):
        pass  # nobody reads our output any more: the ranks must go on all the same


class _Log:
    """A rank's log, which never takes more than three times `LOG_BYTES`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = io.FileIO(path, "ab")
        self._nbytes = self._file.tell()
        self._complained = False

    def write(self, data: bytes) -> str:
        """Append. What cannot be written is left out; return what a person is to be told of that, once."""
        if self._nbytes > 0 and self._nbytes + len(data) > LOG_BYTES:
            self._turn()
        self._nbytes += len(data)
        try:
            if self._file.write(data) == len(data):
                return ""
            reason = "no room"
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
        if self._complained:
            return ""
        self._complained = True
        return f"{self._path} cannot be written ({reason}): what is printed from here on is not all in it"

    def _turn(self) -> None:
        first, second = (self._path.with_name(f"{self._path.name}.{i}") for i in (1, 2))
        try:
            if first.exists():
                os.replace(first, second)
            os.replace(self._path, first)
            fresh = io.FileIO(self._path, "ab")
        except OSError:
            self._nbytes = 0  # the folder is gone, or full: go on in the same file, and look again later
            return
        self._file.close()
        self._file, self._nbytes = fresh, 0

    def close(self) -> None:
        """No more is written."""
        self._file.close()


def _open_logs(folder: Path, ranks: list[int]) -> dict[int, _Log]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return {rank: _Log(folder / f"rank-{rank}.log") for rank in ranks}
    except OSError as error:
        raise StorageError(
            f"cannot write logs in {folder}: {error.strerror}", file=str(folder), errno=error.errno
        ) from error
