"""The restart budget: restarts without progress are counted, and wait longer each time. Pure."""

from __future__ import annotations

import msgspec

__all__ = ["Budget", "backoff_s"]

_BACKOFF_S, _MAX_BACKOFF_S = 1.0, 30.0


class Budget(msgspec.Struct, frozen=True):
    """``restarts`` in a row have brought no new step."""

    restarts: int = 0

    def progressed(self) -> Budget:
        return Budget(0)

    def spent(self, max_restarts: int) -> bool:
        return self.restarts >= max_restarts

    def spend(self, *, chance: float) -> tuple[Budget, float]:
        return Budget(self.restarts + 1), backoff_s(self.restarts, chance=chance)


def backoff_s(n_before: int, *, chance: float) -> float:
    """Return how long to wait after ``n_before`` restarts without progress; ``chance`` is in 0 .. 1.

    >>> [backoff_s(n, chance=0.5) for n in (0, 1, 2, 3, 9)]
    [0.0, 1.0, 2.0, 4.0, 30.0]
    """
    if n_before == 0:
        return 0.0
    return min(_MAX_BACKOFF_S, _BACKOFF_S * 2.0 ** min(n_before - 1, 10)) * (0.5 + chance)
