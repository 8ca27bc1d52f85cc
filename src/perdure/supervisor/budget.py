"""How often a job may start again, and how long it waits before. A plain value: journaled, and back after a crash.

Only restarts *without progress* count. Progress is a step beyond the best of all attempts before: steps done again
after a restore are none. Nothing else gives restarts back: no time, no other controller, no node that joins.

There is no bound on restarts *with* progress. A job of thousands of GPUs is interrupted several times a day for two
months, and each of its attempts gets on: a bound that stops a job which crawls would stop that one too, and a count
cannot tell them apart. So ``total`` is counted to be shown, and goodput says what it costs.

The wait: the first restart without progress is immediate, the next waits 1 s, then 2, 4, ... up to 30, each times 0.5
to 1.5 by chance, so that jobs which lost the same store do not come back in step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["Budget", "backoff_s"]

_BACKOFF_S, _MAX_BACKOFF_S = 1.0, 30.0


@dataclass(frozen=True, slots=True)
class Budget:
    """What was spent of a job's restarts: ``restarts`` in a row have brought no new step, ``total`` were all.

    >>> budget, delay_s = Budget().spend(chance=0.5)
    >>> budget.spent(1), budget.progressed().spent(1)
    (True, False)
    """

    restarts: int = 0
    total: int = 0

    def progressed(self) -> Budget:
        """The budget after a step beyond the best of all attempts."""
        return replace(self, restarts=0)

    def spent(self, max_restarts: int) -> bool:
        """Whether ``max_restarts`` in a row have brought no new step."""
        return self.restarts >= max_restarts

    def spend(self, *, chance: float) -> tuple[Budget, float]:
        """The budget after one more restart, and how long that waits, in seconds; ``chance`` is in 0 .. 1."""
        return Budget(self.restarts + 1, self.total + 1), backoff_s(self.restarts, chance=chance)


def backoff_s(n_before: int, *, chance: float) -> float:
    """Return how long to wait after ``n_before`` restarts without progress; ``chance`` is in 0 .. 1.

    >>> [backoff_s(n, chance=0.5) for n in (0, 1, 2, 3, 9)]
    [0.0, 1.0, 2.0, 4.0, 30.0]
    """
    if n_before == 0:
        return 0.0
    return min(_MAX_BACKOFF_S, _BACKOFF_S * 2.0 ** min(n_before - 1, 10)) * (0.5 + chance)
