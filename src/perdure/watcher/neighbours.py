"""Processes of others that take processor time on this node, found without looking at every process each second.

A look spends a fixed time, some milliseconds, on the next processes of a round, the youngest first, and always looks
again at those that were busy. A process has to be seen twice before its share is known. Where processors are short the
looks are longer, for then a hog matters. Nothing here needs rights; a container sees the processes of its own
namespace.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["Belonging", "Neighbours"]

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_KERNEL_THREAD: Final = 0x00200000
_GENERATIONS: Final = 32
_BUSY_SHARE: Final = 0.05
_MOST_BUSY: Final = 16
_APART_S: Final = 0.5
_ROUND_S: Final = 5.0
_AT_LEAST: Final = 16
_MOST_PROCESSES: Final = 1 << 17
_NAME_LENGTH: Final = 64


@dataclass(frozen=True, slots=True)
class _Stat:
    """What /proc/<pid>/stat tells of a process."""

    name: str
    parent: int
    session: int
    kernel: bool
    ticks: int
    started: int


class Belonging:
    """Whether a process is of this job: one of the processes that ``own`` returns, of their session, below one of them,
    or with ``mark`` (or a mark below it) in its environment. This process belongs too, with its children but those that
    have a session of their own.
    """

    def __init__(self, own: Callable[[], Collection[int]], *, mark: str | None = None, root: Path = Path("/")) -> None:
        self._own = own
        self._mark = mark
        self._proc = str(root / "proc")
        self._session = os.getsid(0)

    def __call__(self, pid: int) -> bool:
        own, watcher, one = set(self._own()), os.getpid(), pid
        for _ in range(_GENERATIONS):
            if one in own or one == watcher:
                return True
            stat = _stat(self._proc, one)
            if stat is None:
                break
            if stat.session in own:
                return True
            stranger = stat.parent == watcher and watcher not in own and stat.session != self._session
            if stat.parent <= 1 or stranger:
                break
            one = stat.parent
        return self._mark is not None and self._marked(pid)

    def own(self) -> Collection[int]:
        """The processes that were named."""
        return self._own()

    def _marked(self, pid: int) -> bool:
        try:
            with open(f"{self._proc}/{pid}/environ", "rb") as file:
                words = file.read(1 << 18).split(b"\0")
        except OSError:
            return False  # gone, or of another user
        marks = [word.partition(b"=")[2] for word in words if word.startswith(b"PERDURE_MARK=")]
        wanted = (self._mark or "").encode()
        return any(one == wanted or one.startswith(wanted + b".") for mark in marks for one in mark.split(b":"))


class Neighbours:
    """Busy processes that are not of the job; ``look`` is called about once a second."""

    def __init__(
        self,
        belongs: Callable[[int], bool],
        *,
        root: Path = Path("/"),
        budget_s: float = 0.002,
        hurried_s: float = 0.02,
    ) -> None:
        self._belongs = belongs
        self._proc = str(root / "proc")
        self._budget_s = budget_s
        self._hurried_s = hurried_s
        self._queue: list[int] = []
        self._round_at_s = float("-inf")
        self._seen: dict[int, tuple[int, int, float]] = {}
        self._round: dict[int, tuple[int, int, float]] = {}
        self._busy: dict[int, tuple[str, float]] = {}

    def look(self, now_s: float, *, hurry: bool = False) -> tuple[tuple[str, float], ...]:
        """Name and share of one processor of each, the busiest first. ``hurry``: processors are short."""
        end = time.perf_counter() + (self._hurried_s if hurry else self._budget_s)
        for pid in list(self._busy):
            self._visit(pid, now_s)
        visited = 0
        while visited < _AT_LEAST or time.perf_counter() < end:
            if not self._queue and not self._begin_round(now_s):
                break
            self._visit(self._queue.pop(), now_s)
            visited += 1
        return tuple(sorted(self._busy.values(), key=lambda each: -each[1])[:_MOST_BUSY])

    def _begin_round(self, now_s: float) -> bool:
        if now_s - self._round_at_s < _ROUND_S:
            return False
        try:
            pids = sorted(int(name) for name in os.listdir(self._proc) if name.isdecimal())
        except OSError:
            return False
        self._queue = pids[-_MOST_PROCESSES:]
        self._seen, self._round = self._round, {}
        self._round_at_s = now_s
        return bool(self._queue)

    def _visit(self, pid: int, now_s: float) -> None:
        stat = _stat(self._proc, pid)
        if stat is None or stat.kernel:
            self._busy.pop(pid, None)
            return
        before = self._round.get(pid) or self._seen.get(pid)
        if before is not None and before[0] == stat.started:
            passed_s = now_s - before[2]
            if passed_s < _APART_S:
                return
            share = (stat.ticks - before[1]) / _TICKS / passed_s
            if share >= _BUSY_SHARE and not self._belongs(pid):
                self._busy[pid] = (f"{stat.name} (pid {pid})", round(share, 3))
            else:
                self._busy.pop(pid, None)
        else:
            self._busy.pop(pid, None)
        self._round[pid] = (stat.started, stat.ticks, now_s)
        if len(self._busy) > _MOST_BUSY:
            del self._busy[min(self._busy, key=lambda one: self._busy[one][1])]


def _stat(proc: str, pid: int) -> _Stat | None:
    """None if it is gone, or its file is not what the kernel writes."""
    try:
        fd = os.open(f"{proc}/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.read(fd, 4096)
        finally:
            os.close(fd)
    except OSError:
        return None
    left, right = data.find(b"("), data.rfind(b")")
    fields = data[right + 2 :].split()
    if left < 0 or right < left or len(fields) < 20:
        return None
    try:
        name = "".join(c for c in data[left + 1 : right].decode(errors="replace") if c.isprintable())[:_NAME_LENGTH]
        return _Stat(
            name=name,
            parent=int(fields[1]),
            session=int(fields[3]),
            kernel=bool(int(fields[6]) & _KERNEL_THREAD),
            ticks=int(fields[11]) + int(fields[12]),
            started=int(fields[19]),
        )
    except ValueError:
        return None
