"""When a loop saves, and how far: every so many steps to disk, more often to memory, or as the costs and failures say.

Theory. A save costs the loop C seconds; failures come on average every M seconds and lose what was done since the last
save. The interval that wastes the least is near sqrt(2 C M) (Young 1974); Daly (2006) adds the higher orders that
matter when C is no longer small beside M. Shorter than a save takes to become durable is of no use either.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from math import sqrt
from statistics import median
from typing import Any, Literal

from perdure.checkpoint.saved import Saved
from perdure.errors import CallError

__all__ = ["GPU_HOURS_BETWEEN_FAILURES", "Rhythm", "daly_s"]

GPU_HOURS_BETWEEN_FAILURES = 50_000.0
"""Llama 3's training: 419 unexpected interruptions in 54 days of 16,384 GPUs."""

_FIRST_STEPS = 10  # until the first save, when nothing has been measured yet
_KEPT = 50
_DURABLE_MARGIN = 1.2


def daly_s(cost_s: float, between_failures_s: float) -> float:
    """Seconds of work between saves that cost ``cost_s`` each (Daly, FGCS 22, 2006, equation 37).

    >>> round(daly_s(1.0, 20_000.0)), daly_s(100.0, 10.0)
    (199, 10.0)
    """
    if cost_s >= 2 * between_failures_s:
        return between_failures_s
    share = cost_s / (2 * between_failures_s)
    return sqrt(2 * cost_s * between_failures_s) * (1 + sqrt(share) / 3 + share / 9) - cost_s


class Rhythm:
    """``every`` is a number of steps, or "auto"; ``memory_every`` a smaller one for saves to memory only, or None.

    Steps that ``remote_every`` divides are saved to disk, too: from there they are carried on.

    For "auto" ``between_failures_s`` is the job's mean time between failures, and ``agree`` gives every rank what rank
    0 says; it is called by all ranks at the same steps.
    """

    def __init__(
        self,
        every: int | Literal["auto"],
        memory_every: int | None,
        *,
        between_failures_s: float,
        agree: Callable[[list[Any]], list[Any]],
        tell: Callable[[str], None],
        remote_every: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if every != "auto" and (type(every) is not int or every < 1):
            raise CallError(f"every={every!r}: a whole number of steps, 1 or more, or 'auto'")
        if memory_every is not None and (type(memory_every) is not int or memory_every < 1):
            raise CallError(f"memory_every={memory_every!r}: a whole number of steps, 1 or more, or None")
        if type(between_failures_s) not in (int, float) or not between_failures_s > 0:
            raise CallError(f"mean time between failures is {between_failures_s!r}; give seconds, more than 0")
        self._remote_every = remote_every
        self._every, self._memory_every, self._between_failures_s = every, memory_every, between_failures_s
        self._agree, self._tell, self._clock = agree, tell, clock
        self._next: int | None = None
        self._interval = 0
        self._last: Saved | None = None
        self._costs: deque[float] = deque(maxlen=_KEPT)
        self._durable: deque[float] = deque(maxlen=_KEPT)
        self._steps: deque[float] = deque(maxlen=_KEPT)
        self._passed: tuple[int, float] | None = None

    def due(self, step: int) -> Literal["disk", "memory"] | None:
        """Where ``step``, which has just been completed, is to be saved to.

        Called once for each step, on every rank.
        """
        if self._every == "auto":
            disk = self._auto(step)
        else:
            disk = step % self._every == 0
        if disk or (self._remote_every is not None and step % self._remote_every == 0):
            return "disk"
        return "memory" if self._memory_every is not None and step % self._memory_every == 0 else None

    def saved(self, saved: Saved) -> None:
        """A durable save has begun."""
        self._last = saved

    def _auto(self, step: int) -> bool:
        now = self._clock()
        if self._passed is not None and step > self._passed[0]:
            self._steps.append((now - self._passed[1]) / (step - self._passed[0]))
        self._passed = (step, now)
        if self._next is None:
            self._next = step + _FIRST_STEPS - 1
        if self._last is not None and step > self._last.step:
            self._next = self._last.step + self._agreed(self._last)
            self._last = None
        return step >= self._next

    def _agreed(self, last: Saved) -> int:
        """How many steps after ``last`` the next save comes; the same on every rank."""
        self._costs.append(last.blocked_s)
        step_s, cost_s = median(self._steps), median(self._costs)
        ideal_s = daly_s(cost_s, self._between_failures_s)
        durable_s = max(last.durable_s or 0.0, *self._durable, 0.0) * _DURABLE_MARGIN
        if last.durable_s is not None:
            self._durable.append(last.durable_s)
        steps, step_s, cost_s = self._agree([max(1, round(max(ideal_s, durable_s) / step_s)), step_s, cost_s])
        if not self._interval / 2 < steps < 2 * max(self._interval, 1):  # else it would be told again and again
            self._interval = steps
            self._tell(
                f"from here on a save every {steps} steps: one costs the loop {cost_s:.3g} s, a step takes "
                f"{step_s:.3g} s, a failure is reckoned with every {_time(self._between_failures_s)}"
            )
        return int(steps)


def _time(seconds: float) -> str:
    return f"{seconds / 3600:.3g} h" if seconds >= 3600 else f"{seconds:.3g} s"
