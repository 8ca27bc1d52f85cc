"""The log: tells each fact to the person (a sentence on stderr) and to machines (a JSON line in one file).

All processes of a job append to the same file. Each line is one ``write`` to a descriptor opened for appending, which
Linux keeps whole on a local file system. What cannot be told must not stop training: a closed stderr is ignored, and a
file that cannot be written is named once and given up.
"""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import dataclass
from typing import Any, TextIO

import msgspec

from perdure.clock import SYSTEM, Clock
from perdure.errors import StorageError
from perdure.events.facts import Fact, Other

__all__ = ["Entry", "Log", "read_log"]

_OWN = ("at", "monotonic", "pid", "rank")


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a log: ``fact`` happened at ``at`` (seconds since 1970) in process ``pid``, which is ``rank`` if it
    is one.

    ``monotonic`` is comparable between processes of one machine, ``at`` between nothing.
    """

    at: float
    monotonic: float
    pid: int
    rank: int | None
    fact: Fact


class Log:
    """Tells facts; safe from any thread. ``path`` None means no file; ``stream`` None means whatever stderr is then."""

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        rank: int | None = None,
        stream: TextIO | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self._path = None if path is None else os.fspath(path)
        self._rank = rank
        self._stream = stream
        self._clock = clock
        self._lock = threading.Lock()
        self._fd = -1

    def emit(self, fact: Fact) -> None:
        """Print ``perdure: <sentence>`` and append the line."""
        self.print(str(fact))
        self.record(fact)

    def print(self, sentence: str) -> None:
        """Print ``perdure: <sentence>`` without a line in the file."""
        who = "" if self._rank is None else f" rank {self._rank}:"
        with self._lock:
            try:
                stream = self._stream or sys.stderr
                stream.write(f"perdure:{who} {sentence}\n")
                stream.flush()
            except (OSError, ValueError):
                pass  # nobody reads stderr any more: there is nobody to tell

    def record(self, fact: Fact) -> None:
        """Append the line without a sentence on stderr (for facts that come often)."""
        if self._path is None:
            return
        own = {"at": self._clock.wall(), "monotonic": self._clock.monotonic(), "pid": os.getpid(), "rank": self._rank}
        fields: dict[str, Any] = msgspec.to_builtins(fact)
        if fields.keys() & own.keys() == {"rank"}:
            own["rank"], fields["of_rank"] = self._rank, fields.pop("rank")
        line = msgspec.json.encode(own | fields) + b"\n"
        with self._lock:
            path = self._path
            try:
                if self._fd < 0:
                    self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
                os.write(self._fd, line)
                return
            except OSError as error:
                self._path = None
                reason = error.strerror
        self.print(f"no more events are written to {path}: {reason}")

    def close(self) -> None:
        """Close the file; twice is fine. A later fact opens it again."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1


def read_log(path: str | os.PathLike[str]) -> list[Entry]:
    """Return the entries of the log at ``path``, in the order they were written.

    A line that was cut short (a full disk, a machine that died) is left out. Raises `StorageError` if the file cannot
    be read.
    """
    try:
        with open(path, "rb") as file:
            lines = file.read().split(b"\n")
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}", file=str(path), errno=error.errno) from error
    return [entry for line in lines if (entry := _parse(line)) is not None]


def _parse(line: bytes) -> Entry | None:
    try:
        fields = msgspec.json.decode(line, type=dict[str, Any])
        at, monotonic, pid, rank = (fields.pop(name) for name in _OWN)
        kind = fields["kind"]
    except (msgspec.DecodeError, KeyError):
        return None
    if "of_rank" in fields:
        fields["rank"] = fields.pop("of_rank")
    try:
        fact = msgspec.convert(fields, type=_BY_KIND[kind])
    except (KeyError, msgspec.ValidationError):
        fact = Other(name=str(kind), fields=fields)
    return Entry(at, monotonic, pid, rank, fact)


_BY_KIND: dict[Any, type[Fact]] = {cls.__struct_config__.tag: cls for cls in Fact.__subclasses__()}
