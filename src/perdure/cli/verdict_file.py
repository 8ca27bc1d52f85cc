"""The file in a job's folder that holds every verdict with its evidence, one line of JSON each.

A line is a `perdure.watcher.evidence.Verdict` with the run, the attempt and the wall time beside it, and, where it was
one that is acted on, the nodes on which it showed: from those the watcher's past is made again after a restart of its
own. A file that has grown to its bound is put aside as ``verdicts.jsonl.1``, which replaces the one before it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from perdure.errors import CallError
from perdure.watcher.evidence import Verdict
from perdure.watcher.incidents import Entry, Past

__all__ = ["Line", "VerdictFile", "incident_of", "past_of", "read_lines"]

_MOST_BYTES: Final = 32 << 20


class Line(Verdict, frozen=True, kw_only=True):
    """A verdict as it was told; ``wall_s`` are seconds since 1970."""

    run: str
    attempt: int
    wall_s: float
    where: tuple[str, ...] | None = None
    "The nodes on which it showed, of a verdict that is acted on."


class VerdictFile:
    """Appends to ``path``, mode 0600. Raises ``OSError`` if it cannot."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, lines: Iterable[Line]) -> None:
        """Write ``lines`` at once."""
        data = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        if not data:
            return
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(self._path, flags, 0o600)
        try:
            size = os.fstat(fd).st_size
            if size and os.pread(fd, 1, size - 1) != b"\n":
                data = b"\n" + data  # the last one was cut short
            os.write(fd, data)
        finally:
            os.close(fd)
        if size + len(data) > _MOST_BYTES:
            os.replace(self._path, self._path.with_name(f"{self._path.name}.1"))


def read_lines(path: Path) -> list[Line]:
    """All lines of ``path`` and of what was put aside of it, oldest first; those that were cut short are left out."""
    found = []
    for each in (path.with_name(f"{path.name}.1"), path):
        try:
            data = each.read_bytes()
        except FileNotFoundError:
            continue
        for line in data.splitlines():
            try:
                found.append(msgspec.json.decode(line, type=Line))
            except msgspec.MsgspecError:
                continue
    return found


def past_of(lines: Sequence[Line], *, now_s: float, wall_s: float) -> Past:
    """What was acted on, on a clock that says ``now_s`` when it is ``wall_s``."""
    past = Past()
    for line in lines:
        if line.where is not None:
            past = past.after(Entry(now_s - (wall_s - line.wall_s), line.label, line.action, line.where))
    return past


def incident_of(lines: Sequence[Line], name: str, *, where: str) -> list[Line]:
    """The lines of incident ``name``, or of the last run's that ends with it. Raises `CallError` if there is none."""
    exact = [line for line in lines if line.incident == name]
    if exact or not lines:
        return exact or _missing(lines, name, where)
    ends = [line for line in lines if line.run == lines[-1].run and line.incident.endswith(f"-{name}")]
    return ends or _missing(lines, name, where)


def _missing(lines: Sequence[Line], name: str, where: str) -> list[Line]:
    known = ", ".join(dict.fromkeys(line.incident for line in lines)) or "none"
    raise CallError(f"{where} has no incident {name}; it has {known}")
