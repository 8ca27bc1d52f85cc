"""What a load shares between threads: the work, and a bounded amount of staging memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue

import numpy as np
import numpy.typing as npt

__all__ = ["Buffers", "work_off"]

_PAGE_BYTES = 4096


class Buffers:
    """Staging buffers that are used again; together they have at most ``budget_bytes``.

    One buffer that is larger than the whole budget is given out while no other is.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._free: list[npt.NDArray[np.uint8]] = []
        self._nbytes = 0  # of all buffers, free ones among them
        self._out = 0
        self._changed = threading.Condition()
        self.high_nbytes = 0
        """the most bytes that all buffers together ever had"""

    def shrink(self, budget_bytes: int) -> None:
        """Have at most ``budget_bytes`` from now on; before any is taken."""
        self._budget_bytes = budget_bytes

    @contextmanager
    def take(self, nbytes: int) -> Iterator[memoryview]:
        """A buffer of ``nbytes`` bytes, page-aligned; waits until others have given back enough."""
        with self._changed:
            while (buffer := self._find(nbytes)) is None:
                self._changed.wait()
            self._out += 1
        try:
            yield buffer.data[:nbytes]
        finally:
            with self._changed:
                self._out -= 1
                self._free.append(buffer)
                self._changed.notify_all()

    def _find(self, nbytes: int) -> npt.NDArray[np.uint8] | None:
        for number, buffer in enumerate(self._free):
            if buffer.size >= nbytes:
                return self._free.pop(number)
        while self._free and self._nbytes + nbytes > self._budget_bytes:
            self._nbytes -= self._free.pop().size
        if self._out and self._nbytes + nbytes > self._budget_bytes:
            return None
        self._nbytes += nbytes
        self.high_nbytes = max(self.high_nbytes, self._nbytes)
        room = np.empty(nbytes + _PAGE_BYTES, np.uint8)
        skip = -int(room.__array_interface__["data"][0]) % _PAGE_BYTES
        return room[skip : skip + nbytes]


def work_off(jobs: Iterable[Callable[[], None]], *, threads: int) -> None:
    """Do all ``jobs``, in order, on at most ``threads`` threads, the calling one among them.

    After the first error, or Ctrl-C, no further job is begun; it is raised when those that run have ended, so no thread
    is left behind.
    """
    todo = iter(jobs)
    turn = threading.Lock()
    failures: list[BaseException] = []
    ended: SimpleQueue[None] = SimpleQueue()

    def work() -> None:
        try:
            while True:
                with turn:
                    job = None if failures else next(todo, None)
                if job is None:
                    return
                job()
        except BaseException as error:  # raised by the calling thread
            failures.append(error)

    def help_out() -> None:
        work()
        ended.put(None)

    helpers = [threading.Thread(target=help_out, name=f"perdure-load-{number}") for number in range(1, threads)]
    started: list[threading.Thread] = []
    with turn:  # nobody takes a job until it is known who is there
        try:
            for helper in helpers:
                helper.start()
                started.append(helper)
        except RuntimeError:  # the system refuses more threads: those that there are do the work
            pass
        except BaseException as error:
            failures.append(error)
    work()
    # Not by `join` alone: one that Ctrl-C interrupts takes the thread for ended, up to Python 3.12.
    waiting = len(started)
    while waiting:
        try:
            ended.get()
            waiting -= 1
        except KeyboardInterrupt as error:
            failures.append(error)
    for helper in started:
        helper.join()
    if failures:
        raise failures[0]
