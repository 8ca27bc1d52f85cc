"""What a controller has to do with its judge: findings go to the machine, looks and words of people to the judge.

Whatever a judge does, raises or fails to do, the job goes on: one that fails is told once, and done without.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from perdure.supervisor.vocabulary import Acknowledge, Event, Judged, Mute, Watching
from perdure.supervisor.watching import Judge

__all__ = ["Hearing"]

T = TypeVar("T")


class Hearing:
    """Hears ``judge``, if there is one. ``handle`` takes what it has found, ``notice`` what people should know."""

    def __init__(self, judge: Judge | None, *, handle: Callable[[Event], None], notice: Callable[[str], None]) -> None:
        self._judge, self._handle, self._notice = judge, handle, notice
        self._open: dict[str, Judged] = {}

    def hear(self) -> tuple[int, ...]:
        """Take what the judge has found; return the ranks whose stacks would help."""
        answer = self._ask(lambda judge: (judge.poll(), judge.problem()))
        if answer is None:
            return ()
        found, problem = answer
        if problem:
            self._notice(problem)
            self._handle(Watching(False))
        elif found.heard:
            self._handle(Watching(True))
        for said in found.judged:
            if said.stage == "cleared":
                self._open.pop(said.incident, None)
            else:
                self._open[said.incident] = said
            self._handle(said)
        return found.wanted

    def take(self, look: bytes) -> None:
        """A launcher has sent what its eye saw."""
        self._ask(lambda judge: judge.take(look))

    def hush(self, message: Mute | Acknowledge, *, job: str) -> str:
        """Pass on what a person says of incidents; return why not, if not."""
        if self._judge is None:
            return f"job {job} is not watched"
        if isinstance(message, Acknowledge):
            names = [name for name in self._open if name == message.incident or name.endswith(f"-{message.incident}")]
            if len(names) != 1:
                return f"there is no open incident {message.incident}; open are {', '.join(self._open) or 'none'}"
            message = Acknowledge(names[0])
        said = message
        self._ask(lambda judge: judge.tell(said))
        return ""

    def close(self) -> None:
        """The controller ends."""
        if self._judge is not None:
            self._judge.close()

    def _ask(self, asks: Callable[[Judge], T]) -> T | None:
        if self._judge is None:
            return None
        try:
            return asks(self._judge)
        except Exception as error:  # whatever has happened to it, the job goes on
            self._judge = None
            self._handle(Watching(False))
            self._notice(f"the watcher has failed ({error!r}); the job goes on unwatched")
            return None
