"""The run of a checkpointer, opened when it is first needed, and what its store answers; which may hang."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from perdure.checkpoint.copies import Copies
from perdure.checkpoint.remote import Remote
from perdure.checkpoint.stalls import unless_stalled
from perdure.clock import Deadline
from perdure.errors import BlobMissing, PerdureError
from perdure.store import Run, Store
from perdure.store.branch import newest, standing

__all__ = ["OpenedRun"]

Answer = TypeVar("Answer")
_LOOK_S = 0.2


class OpenedRun:
    """Asks the store of ``url``; each answer comes within ``stall_s`` seconds of the last one, or `DeadlineExceeded`.

    ``tell`` hears of what is damaged there, as often as it is met. ``remote`` is the store behind it. Called from any
    thread.
    """

    def __init__(
        self, store: Store, *, url: str, stall_s: float, tell: Callable[[str], None], remote: Remote | None = None
    ) -> None:
        self._store, self._url, self._stall_s, self._tell, self._remote = store, url, stall_s, tell, remote
        self._run: Run | None = None
        self._away: PerdureError | None = None

    def create(self) -> Run:
        """The run, begun if the place is empty: anew, or as the run that lies in the remote store."""
        remote = self._remote
        if remote is not None:
            what = "the run in the remote store"
            self._away = self._ask(lambda: remote.bring_home(self._store, self._tell_note), what)
        self._run = self._open(create=True)
        return self._run

    def get(self) -> Run:
        """The run. Raises `BlobMissing` if there is none yet."""
        if self._run is None:
            self._run = self._open(create=False)
        return self._run

    def steps(self) -> list[int]:
        """The committed steps of the branch that training is on, oldest first, those of the remote store among them."""
        run = self._there_is()
        if run is None:
            return []
        if self._remote is not None:
            return sorted(self._ask(lambda: {each.step for each in self.copies().chain()}, "the committed steps"))
        return sorted(self._ask(lambda: {commit.step for commit in standing(run)}, "the committed steps"))

    def latest(self) -> int | None:
        """The newest committed step, in the remote store if home was lost; None if there is none."""
        found = self.newest()
        if found is not None or self._remote is None or self._there_is() is None:
            return found
        there = self._ask(lambda: self.copies().chain(most=1), "the newest step of the remote store")
        return there[0].step if there else None

    def copies(self) -> Copies:
        """Where committed steps are restored from: the store, and the remote one behind it."""
        remote = self._remote
        if remote is None:
            return Copies(self.get())
        away, self._away = self._away, None

        def far() -> Run:
            if away is not None:  # it was asked a moment ago, and may have kept us waiting long enough
                raise away
            return remote.opened(self._tell_note)

        return Copies(self.get(), far, place=remote.url)

    def newest(self) -> int | None:
        """The newest committed step of the store that commits, None if there is none."""
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
            begun = "no step is committed there yet" if self._there_is() is not None else "there is no run there yet"
            deadline.check(begun if latest is None else f"the newest is {latest}")
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
