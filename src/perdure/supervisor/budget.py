"""How often a job may start again, and how long it waits before. A plain value: journaled, and back after a crash.

Only restarts *without progress* count. Progress is a step beyond the best of all attempts before: steps done again
after a restore are none. Nothing else gives restarts back: no time, no other controller, no node that joins.

There is no bound on restarts *with* progress by default. A job of thousands of GPUs is interrupted several times a day
for two months, and each of its attempts gets on: a bound that stops a job which crawls would stop that one too, and a
count cannot tell them apart. So ``n_total`` is counted and shown, goodput says what it costs, and who pays may set
``max_total``.

The wait: the first restart without progress is immediate, the next waits 1 s, then 2, 4, ... up to 30, each times 0.5
to 1.5 by chance, so that jobs which lost the same store do not come back in step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from perdure.errors import CallError

__all__ = ["Budget", "backoff_s"]

_BACKOFF_S, _MAX_BACKOFF_S = 1.0, 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What is left of a job's restarts.

    >>> budget = Budget(max_restarts=1).spend()
    >>> budget.refusal
    '1 restart in a row brought no new step'
    >>> budget.reached(7).refusal is None
    True
    """

    max_restarts: int
    "Restarts in a row that may end without a new step."
    max_total: int | None = None
    "Restarts of the job altogether; None for any number."
    best_step: int = 0
    "The furthest step that any attempt has completed."
    n_in_a_row: int = 0
    "Restarts since the last new step."
    n_total: int = 0
    "All restarts."

    def __post_init__(self) -> None:
        if self.max_restarts < 0 or (self.max_total is not None and self.max_total < 0):
            raise CallError(f"restarts may be 0 or more, not {self.max_restarts} in a row, {self.max_total} altogether")

    def reached(self, step: int) -> Budget:
        """The budget after an attempt has completed ``step``."""
        return self if step <= self.best_step else replace(self, best_step=step, n_in_a_row=0)

    @property
    def refusal(self) -> str | None:
        """Why there may be no other restart, as a sentence; None if there may."""
        if self.max_restarts == 0:
            return "no restart is allowed (max_restarts is 0)"
        if self.n_in_a_row >= self.max_restarts:
            return f"{_restarts(self.n_in_a_row)} in a row brought no new step"
        if self.max_total is not None and self.n_total >= self.max_total:
            return f"{_restarts(self.n_total)} have been made, and no more are allowed (max_total)"
        return None

    def delay_s(self, *, chance: float) -> float:
        """How long the next restart waits; ``chance`` is in 0 .. 1."""
        return backoff_s(self.n_in_a_row, chance=chance)

    def spend(self) -> Budget:
        """The budget after one more restart. Raises `CallError` if there may be none."""
        if (refusal := self.refusal) is not None:
            raise CallError(f"there may be no other restart: {refusal}")
        return replace(self, n_in_a_row=self.n_in_a_row + 1, n_total=self.n_total + 1)


def backoff_s(n_before: int, *, chance: float) -> float:
    """Return how long to wait after ``n_before`` restarts without progress; ``chance`` is in 0 .. 1.

    >>> [backoff_s(n, chance=0.5) for n in (0, 1, 2, 3, 9)]
    [0.0, 1.0, 2.0, 4.0, 30.0]
    """
    if n_before == 0:
        return 0.0
    return min(_MAX_BACKOFF_S, _BACKOFF_S * 2.0 ** min(n_before - 1, 10)) * (0.5 + chance)


def _restarts(n: int) -> str:
    return f"{n} restart" if n == 1 else f"{n} restarts"
