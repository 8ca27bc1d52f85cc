"""Look at something that may never answer, in a thread of its own: a dead disk, a hung driver, a broken adapter.

The watcher takes what was seen last and how long the look under way has taken; it never waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from perdure.clock import SYSTEM, Clock
from perdure.errors import PerdureError

__all__ = ["Aside"]

T = TypeVar("T")


class Aside(Generic[T]):
    """Calls ``look`` each ``every_s``. A look that raises `OSError` or `PerdureError` leaves its words in `problem`."""

    def __init__(self, look: Callable[[], T], *, every_s: float, name: str, clock: Clock = SYSTEM) -> None:
        self._look = look
        self._every_s = every_s
        self._clock = clock
        self._ending = threading.Event()
        self._first = threading.Event()
        self._began_s: float | None = None
        self._good_s = clock.monotonic()
        self.latest: T | None = None
        self.problem = ""
        self._thread = threading.Thread(target=self._run, name=f"perdure-{name}", daemon=True)
        self._thread.start()

    def busy_s(self) -> float:
        """How long the look that is under way has taken; 0 if none is."""
        began = self._began_s
        return 0.0 if began is None else max(0.0, self._clock.monotonic() - began)

    def silent_s(self) -> float:
        """For how long there has been no answer: while a look hangs, and since the last that did not fail; else 0."""
        if not self.problem:
            return self.busy_s()
        return max(0.0, self._clock.monotonic() - self._good_s)

    def wait_first(self, timeout_s: float) -> bool:
        """Wait until something has been seen or could not be; whether it has."""
        return self._first.wait(timeout_s)

    def close(self, timeout_s: float = 1.0) -> None:
        """End the thread; one that hangs is left behind."""
        self._ending.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._ending.is_set():
            self._began_s = self._clock.monotonic()
            try:
                self.latest = self._look()
                self.problem = ""
                self._good_s = self._clock.monotonic()
            except (OSError, PerdureError) as error:
                self.problem = str(error)
            finally:
                self._began_s = None
                self._first.set()
            self._ending.wait(self._every_s)
