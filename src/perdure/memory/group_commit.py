"""Threads that write at the same moment share one commit, and so one fsync.

Who comes while nobody leads, leads: it takes all that wait, writes them in one transaction, and wakes them. Who comes
meanwhile waits, and is written by the next leader; who is done never waits for another commit than its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from perdure.errors import DeadlineExceeded, TryAgain

__all__ = ["GroupCommit"]

_INTERRUPTED = "the thread that wrote for this one was interrupted; do it again with the same key, or the same time"
W = TypeVar("W")
R = TypeVar("R")


class _Job(Generic[W, R]):
    __slots__ = ("done", "error", "result", "work")

    def __init__(self, work: W) -> None:
        self.work = work
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
        self._waiting: list[_Job[W, R]] = []

    def submit(self, work: W, *, until: float) -> R:
        """Return the result of ``work`` once it is durable; ``until`` is a moment of `time.monotonic`.

        Raises `DeadlineExceeded` where it was not written, or where it is not known yet whether it was.
        """
        job: _Job[W, R] = _Job(work)
        with self._changed:
            self._waiting.append(job)
            while self._leading and not job.done:
                left = until - time.monotonic()
                if left <= 0:
                    self._give_up(job)
                self._changed.wait(left)
            leads = not job.done
            if leads:
                self._leading = True
                rest = [each for each in self._waiting if each is not job]
                batch = [job, *rest[: self._most - 1]]
                self._waiting = rest[self._most - 1 :]
        if leads:
            self._lead(batch, until)
        if job.error is not None:
            raise job.error
        return job.result  # type: ignore[return-value]

    def lead(self, *, until: float) -> bool:
        """Wait until nobody leads and lead, for a transaction that is not shared; False when it is too late."""
        with self._changed:
            while self._leading:
                left = until - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
            self._leading = True
            return True

    def follow(self) -> None:
        """Let another lead."""
        with self._changed:
            self._leading = False
            self._changed.notify_all()

    def _lead(self, batch: list[_Job[W, R]], until: float) -> None:
        try:
            results = self._write([each.work for each in batch], until)
            for job, result in zip(batch, results, strict=True):
                if isinstance(result, BaseException):
                    job.error = result
                else:
                    job.result = result
        except BaseException as error:
            # What interrupts this thread (Ctrl-C) is not for the others to raise.
            others = error if isinstance(error, Exception) else TryAgain(_INTERRUPTED)
            for job in batch[1:]:
                job.error = others
            batch[0].error = error
        finally:
            with self._changed:
                for job in batch:
                    job.done = True
                self._leading = False
                self._changed.notify_all()

    def _give_up(self, job: _Job[W, R]) -> None:
        try:
            self._waiting.remove(job)
        except ValueError:
            raise DeadlineExceeded(
                "the disk has not answered in time, and it is not known whether this was kept; tell it again with the"
                " same key, or the same time, which keeps it once"
            ) from None
        raise DeadlineExceeded("another thread of this process was writing all the time; nothing was kept: do it again")
