"""Progress of long work: a bar on a terminal, a plain line now and then in a log, and one when it is done.

Work without names for its phases says nothing in a log if it is over within seconds.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

__all__ = ["Bar"]

_LINE_EVERY_S = 5.0


class Bar:
    """A bar of ``total`` units on stderr; ``at(n, what)`` moves it. Use as a context manager."""

    def __init__(self, title: str, total: int) -> None:
        self.title = title
        self.total = total
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._said: tuple[float, str] = (0.0, "")
        self._n = self._last = -1  # said, and done

    def __enter__(self) -> Bar:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (TextColumn(self.title), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._progress = Progress(*columns, TextColumn("{task.fields[what]}"), console=Console(stderr=True))
            self._progress.start()
            self._task = self._progress.add_task("", total=self.total, what="")
        self._said = (time.monotonic(), "")
        return self

    def at(self, n: int, what: str) -> None:
        """Say that ``n`` units are done and ``what`` is under way."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=n, total=self.total, what=what)
            return
        self._last = n
        now, (last, said) = time.monotonic(), self._said
        if what != said or (n != self._n and now - last >= _LINE_EVERY_S):
            print(f"{self.title}: {n}/{self.total} {what}", file=sys.stderr, flush=True)
            self._said, self._n = (now, what), n

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()
        elif kind is None and self._n >= 0 and (self._n, self._n) != (self._last, self.total):
            print(f"{self.title}: {self._last}/{self.total} done", file=sys.stderr, flush=True)
