"""The segments of a rank that saves without an agent: two, so that one is filled while the other is written.

A third save waits until one is free, as it would with an agent: memory stays bounded when the disk is slower than the
loop.
"""

from __future__ import annotations

import threading

from perdure.clock import Deadline
from perdure.errors import DeadlineExceeded
from perdure.shm import Segment

__all__ = ["Pool"]

SEGMENTS = 2


class Pool:
    """Lends segments; ``label`` names them for people who look at the process. Safe from any thread."""

    def __init__(self, *, label: str) -> None:
        self._label = label
        self._changed = threading.Condition()
        self._free: list[Segment] = []
        self._lent: list[Segment] = []

    def take(self, nbytes: int, deadline: Deadline) -> Segment:
        """A segment of ``nbytes`` or more, to be given back.

        Raises `DeadlineExceeded` if none becomes free, `StorageFull` if there is no memory for it.
        """
        with self._changed:
            while len(self._lent) >= SEGMENTS:
                if not self._changed.wait(deadline.left()) and deadline.passed():
                    raise DeadlineExceeded(
                        f"gave up waiting for {deadline.what}: earlier steps are still being written",
                        what=deadline.what,
                        missing="memory",
                    )
            found = next((each for each in self._free if each.nbytes >= nbytes), None)
            if found is None:
                self._free.clear()  # too small: the tree has grown
                found = Segment.create(nbytes, label=self._label)
            else:
                self._free.remove(found)
            self._lent.append(found)
            return found

    def give_back(self, segment: Segment) -> None:
        """Nobody uses ``segment`` any more; twice is fine."""
        with self._changed:
            if segment in self._lent:
                self._lent.remove(segment)
                self._free.append(segment)
                self._changed.notify()
