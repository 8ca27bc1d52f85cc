"""Threads that write at the same moment share one commit, and so one fsync.

Who comes while nobody leads, leads: it takes all that wait, writes them in one transaction, and wakes them. Who comes
meanwhile stands in line. Who has led hands the lead to the first in line that is not done yet, so that nobody who
comes back at once goes before it; and who is done never waits for another commit than its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from perdure.errors import DeadlineExceeded, TryAgain

__all__ = ["GroupCommit"]

_INTERRUPTED: Final = (
    "the thread that wrote for this one was interrupted; do it again with the same key, or the same time"
)
W = TypeVar("W")
R = TypeVar("R")


class _Place(Generic[W, R]):
    """A place in line: with work to be done by whoever leads, or for a transaction of its own (no ``work``)."""

    __slots__ = ("done", "error", "leads", "result", "work")

    def __init__(self, work: W | None) -> None:
        self.work = work
        self.leads = False
        self.done = False
        self.result: R | None = None
        self.error: BaseException | None = None


class GroupCommit(Generic[W, R]):
    """``write(works, until)`` makes works durable together, and returns for each its result or its own error."""

    def __init__(self, write: Callable[[Sequence[W], float], Sequence[R | BaseException]], *, most: int = 1000) -> None:
        self._write = write
        self._most = most
        self._changed = threading.Condition(threading.Lock())
        self._leading = False
        self._line: list[_Place[W, R]] = []

    def waiting(self) -> int:
        """How many stand in line."""
        with self._changed:
            return len(self._line)

    def submit(self, work: W, *, until: float) -> R:
        """Return the result of ``work`` once it is durable; ``until`` is a moment of `time.monotonic`.

        Raises `DeadlineExceeded` where it was not written, or where it is not known yet whether it was.
        """
        place: _Place[W, R] = _Place(work)
        if self._stand_in_line(place, until):
            batch = [place]
            try:
                with self._changed:
                    batch += [each for each in self._line if each.work is not None][: self._most - 1]
                    self._line = [each for each in self._line if each not in batch]
                self._lead(batch, until)
            finally:
                self._hand_over(batch)
        if place.error is not None:
            raise place.error
        return place.result  # type: ignore[return-value]

    def lead(self, *, until: float) -> bool:
        """Wait in line for a transaction that is not shared, until `follow`; False when it is too late."""
        try:
            return self._stand_in_line(_Place(None), until)
        except DeadlineExceeded:
            return False

    def follow(self) -> None:
        """Let the next lead."""
        self._hand_over([])

    def _stand_in_line(self, place: _Place[W, R], until: float) -> bool:
        """Wait until ``place`` leads (True) or is done."""
        with self._changed:
            if not self._leading:
                self._leading = place.leads = True
                return True
            self._line.append(place)
            try:
                while not (place.leads or place.done):
                    left = until - time.monotonic()
                    if left <= 0:
                        self._give_up(place)
                    self._changed.wait(left)
            except BaseException:
                if place in self._line:
                    self._line.remove(place)
                if place.leads:
                    self._pass_on()
                raise
            return place.leads

    def _lead(self, batch: list[_Place[W, R]], until: float) -> None:
        try:
            results = self._write([each.work for each in batch if each.work is not None], until)
            for place, result in zip(batch, results, strict=True):
                if isinstance(result, BaseException):
                    place.error = result
                else:
                    place.result = result
        except BaseException as error:
            # What interrupts this thread (Ctrl-C) is not for the others to raise.
            others = error if isinstance(error, Exception) else TryAgain(_INTERRUPTED)
            for place in batch[1:]:
                place.error = others
            batch[0].error = error

    def _hand_over(self, batch: Sequence[_Place[W, R]]) -> None:
        with self._changed:
            for place in batch:
                place.done = True
            self._pass_on()

    def _pass_on(self) -> None:
        if self._line:
            self._line.pop(0).leads = True
        else:
            self._leading = False
        self._changed.notify_all()

    def _give_up(self, place: _Place[W, R]) -> None:
        if place in self._line:
            raise DeadlineExceeded(
                "other threads of this process were writing all the time; nothing was kept: do it again"
            )
        raise DeadlineExceeded(
            "the disk has not answered in time, and it is not known whether this was kept; tell it again with the"
            " same key, or the same time, which keeps it once"
        )
