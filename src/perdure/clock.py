"""Time, handed in: a clock that tests can fake, and deadlines that say what they were waiting for.

Durations and deadlines use monotonic seconds only; wall time is for people to read.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

from perdure.errors import DeadlineExceeded

__all__ = ["SYSTEM", "Clock", "Deadline", "SystemClock"]


class Clock(Protocol):
    """What a system needs of time."""

    def monotonic(self) -> float:
        """Seconds on a clock that never jumps."""
        ...

    def wall(self) -> float:
        """Seconds since 1970, for people to read; never compared between machines."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let ``seconds`` pass."""
        ...


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


SYSTEM: Clock = SystemClock()


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point in monotonic time by which ``what`` must have happened.

    >>> deadline = Deadline.after(5.0, "the parts of step 100")
    >>> 0 < deadline.left() <= 5
    True
    """

    at: float
    what: str
    clock: Clock = SYSTEM

    @classmethod
    def after(cls, seconds: float, what: str, *, clock: Clock = SYSTEM) -> Deadline:
        """The deadline ``seconds`` from now."""
        return cls(clock.monotonic() + seconds, what, clock)

    def left(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.at - self.clock.monotonic())

    def passed(self) -> bool:
        """Whether the time is over."""
        return self.clock.monotonic() >= self.at

    def check(self, missing: str = "") -> None:
        """Raise `DeadlineExceeded`, naming ``missing``, if the time is over."""
        if self.passed():
            tail = f"; still missing: {missing}" if missing else ""
            raise DeadlineExceeded(f"gave up waiting for {self.what}{tail}", what=self.what, missing=missing)
