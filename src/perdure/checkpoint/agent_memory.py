"""The checkpoint memory of an agent: segments by number, made when they are wanted, within a budget.

A segment that cannot be had is refused with a sentence; nothing is made that the machine, a cgroup or the user's
budget has no room for, so that no agent is killed for want of memory.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress

from perdure.errors import CallError, PerdureError, StorageFull
from perdure.events.facts import size
from perdure.process.memory import available_nbytes
from perdure.shm import Segment

__all__ = ["MARGIN_NBYTES", "AgentMemory"]

MARGIN_NBYTES = 256 << 20
"""What stays free on the node."""


class AgentMemory:
    """``memory_bytes`` bounds all segments together; None leaves it to the node. `make` may be called on any thread."""

    def __init__(self, *, job: str) -> None:
        self._job = job
        self.memory_bytes: int | None = None
        self._segments: dict[int, Segment] = {}
        self._made: weakref.WeakSet[Segment] = weakref.WeakSet()
        self._lock = threading.RLock()

    def __getitem__(self, number: int) -> Segment:
        return self._segments[number]

    def get(self, number: int) -> Segment | None:
        """The segment of that number, if it has been made."""
        return self._segments.get(number)

    def provide(self, number: int, nbytes: int) -> None:
        """See that the segment exists and is large enough. Raises `StorageFull` if there is no room for it."""
        have = self._segments.get(number)
        if have is not None and have.nbytes >= nbytes:
            return
        if have is not None:
            del self._segments[number]  # freed once no view of it is left
            del have
        self._segments[number] = self.make(nbytes, str(number))

    def provide_spare(self, number: int, nbytes: int) -> None:
        """Make it before it is wanted, where there is plenty of room."""
        if self._available_nbytes() > 2 * nbytes + MARGIN_NBYTES:
            with suppress(PerdureError):  # made when it is needed, or refused then
                self.provide(number, nbytes)

    def make(self, nbytes: int, label: str) -> Segment:
        """A new segment without a number, named by ``label`` for people."""
        with self._lock:
            held = sum(each.nbytes for each in self._all())
            if self.memory_bytes is not None and held + nbytes > self.memory_bytes:
                raise StorageFull(
                    f"no memory for a checkpoint of {size(nbytes)}: the agent holds {size(held)} and may hold "
                    f"{size(self.memory_bytes)}; give more memory_bytes, or use more nodes",
                    file="memory",
                )
            available = self._available_nbytes()
            if nbytes + MARGIN_NBYTES > available:
                raise StorageFull(
                    f"no memory for a checkpoint of {size(nbytes)}: {size(max(available, 0))} are available on this "
                    f"node, of which {size(MARGIN_NBYTES)} stay free; give the job more memory or more nodes, or "
                    "save without an agent",
                    file="memory",
                )
            made = Segment.create(nbytes, label=f"{self._job}.{label}")
            self._made.add(made)
            return made

    def close(self) -> None:
        """Free all segments. One that a thread still reads, of a store that hangs, goes with the process."""
        with self._lock:
            for segment in self._all():
                with suppress(CallError):
                    segment.close()

    def _available_nbytes(self) -> int:
        """Memory that can be had, less what segments will still take that are not filled for the first time yet."""
        with self._lock:
            return available_nbytes() - sum(each.untouched_nbytes for each in self._all())

    def _all(self) -> Iterator[Segment]:
        return (each for each in list(self._made) if not each.closed)
