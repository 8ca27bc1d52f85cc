"""A thread that does jobs one after another: a checkpointer copies on one and drains on another.

The thread is a daemon: at interpreter exit the checkpointer waits for it first.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from perdure.errors import PerdureError, from_wire, to_wire

__all__ = ["Worker"]

_Job = tuple[Callable[[], None], Callable[[PerdureError], None]]


class Worker:
    """Runs jobs one after another on a thread of its own."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], None], on_error: Callable[[PerdureError], None]) -> None:
        """Run ``job`` after those before it; ``on_error`` gets what it raises."""
        self._jobs.put((job, on_error))

    def end(self, *, within_s: float = 0.0) -> None:
        """Let the thread end after the jobs that were submitted; what a later one would do is not done.

        Waits for that ``within_s`` seconds at most.
        """
        self._jobs.put(None)
        self._thread.join(within_s)

    def _run(self) -> None:
        while (given := self._jobs.get()) is not None:
            job, on_error = given
            try:
                job()
            except PerdureError as error:
                on_error(error)
            except Exception as error:  # whoever waits for the save must hear of a bug too
                on_error(from_wire(to_wire(error)))
            del given, job, on_error  # they hold the tensors of the save; nothing may, while the thread waits
