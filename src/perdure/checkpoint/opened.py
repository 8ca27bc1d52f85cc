"""The run of a checkpointer, opened when it is first needed, and what its store answers; which may hang."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from perdure.checkpoint.stalls import unless_stalled
from perdure.clock import Deadline
from perdure.errors import BlobMissing
from perdure.store import Run, Store
from perdure.store.branch import newest, standing

__all__ = ["OpenedRun"]

Answer = TypeVar("Answer")
_LOOK_S = 0.2


class OpenedRun:
    """Asks the store of ``url``; each answer comes within ``stall_s`` seconds of the last one, or `DeadlineExceeded`.

    ``tell`` hears of what is damaged there, as often as it is met. Called from any thread.
    """

    def __init__(self, store: Store, *, url: str, stall_s: float, tell: Callable[[str], None]) -> None:
        self._store, self._url, self._stall_s, self._tell = store, url, stall_s, tell
        self._run: Run | None = None

    def create(self) -> Run:
        """The run, begun if the place is empty."""
        self._run = self._open(create=True)
        return self._run

    def get(self) -> Run:
        """The run. Raises `BlobMissing` if there is none yet."""
        if self._run is None:
            self._run = self._open(create=False)
        return self._run

    def steps(self) -> list[int]:
        """The committed steps of the branch that training is on, oldest first."""
        run = self._there_is()
        if run is None:
            return []
        return sorted(self._ask(lambda: {commit.step for commit in standing(run)}, "the committed steps"))

    def newest(self) -> int | None:
        """The newest committed step, None if there is none."""
        run = self._there_is()
        found = None if run is None else self._ask(lambda: newest(run), "the newest step")
        return None if found is None else found.step

    def not_gone_on_from(self) -> str | None:
        """What to tell whoever saves here and has restored nothing; None if there is no step yet."""
        found = self.newest()
        if found is None:
            return None
        return (
            f"nothing was restored, but {self._url} has steps up to {found}: this training begins a branch of its own, "
            "and the newest step is one of it from now on; call restore() first to go on from there"
        )

    def wait_for(self, *, step_after: int, timeout_s: float) -> int:
        """The newest step, once it is one after ``step_after``. Raises `DeadlineExceeded`."""
        deadline = Deadline.after(timeout_s, f"a committed step after {step_after} in {self._url}")
        while True:
            latest = self.newest()
            if latest is not None and latest > step_after:
                return latest
            deadline.check(f"the newest is {latest}")
            time.sleep(min(_LOOK_S, deadline.left()))

    def _open(self, *, create: bool) -> Run:
        return self._ask(lambda: Run.open(self._store, create=create, tell=self._tell_note), "opening the run")

    def _ask(self, question: Callable[[], Answer], what: str) -> Answer:
        return unless_stalled(lambda moved: question(), stall_s=self._stall_s, what=what)

    def _there_is(self) -> Run | None:
        try:
            return self.get()
        except BlobMissing:
            return None

    def _tell_note(self, note: Any) -> None:
        self._tell(note.message)
