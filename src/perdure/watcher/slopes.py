"""What runs out soon (memory, a disk), and clocks that jump.

**Soon full.** The slope of what is free, over the last minutes, says when nothing is left. Two estimates must agree
that this is within ``horizon_s``: the Theil-Sen slope (the median of the slopes of pairs, which needs three outliers
of ten to be wrong) of the last half of the window and that of all of it. What is freed again is no trend: the trend
must be one of the *troughs* too, that is, the lowest value of the last third of the window must be below that of the
middle third, and that below that of the first, as it is not for memory that a checkpoint takes and gives back. And it
must matter: less than 30 % free, or the fall has gone on for a whole window of at least five minutes; a program that
is loading takes memory fast, and stops.

An alarm is over when the trend is gone for as long as it took to see it, or twice the horizon is left.

**Clock.** The wall clock less the monotonic one is constant. NTP slews it by at most 500 millionths; a change by more
than half a second over that is a jump.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np
from numpy.typing import NDArray

from perdure.errors import CallError
from perdure.watcher.evidence import Evidence

__all__ = ["ClockWatch", "FillWatch"]

_POINTS = 36
"Points in the window: of more frequent samples the lowest of each interval is kept."
_LEAST_POINTS = 12
_LEAST_SHARE = 0.01
"The fall over a window must be this share of the whole: page caches and logs move less at random."
_SHORT = 0.3
_SLEW = 500e-6
_JUMP_S = 0.5


class FillWatch:
    """Tells when something that has a limit will be used up within ``horizon_s``; O(36) memory.

    ``what`` and ``node`` are for the sentence and the evidence, ``kind`` as ``memory_full_soon``. ``window_s`` is the
    time over which a trend is looked for.

    >>> watch = FillWatch("memory_full_soon", "memory of b1", node="b1")
    >>> found = [watch.observe(free=40e9 - 30e6 * t, total=64e9, at_s=float(t)) for t in range(0, 1200, 5)]
    >>> [(e.kind, e.at_s, e.nodes) for e in found if e]
    [('memory_full_soon', 735.0, ('b1',))]
    """

    def __init__(
        self, kind: str, what: str, *, node: str = "", horizon_s: float = 600.0, window_s: float = 300.0
    ) -> None:
        if not (horizon_s > 0 and window_s > 0):
            raise CallError(f"horizon_s={horizon_s}, window_s={window_s}: both must be positive")
        self._kind, self._what, self._node = kind, what, node
        self._horizon_s, self._window_s = horizon_s, window_s
        self.reset()

    def reset(self) -> None:
        """Forget the past: after a restart of the job."""
        self._points: deque[tuple[float, float]] = deque()
        self._slot: int | None = None
        self._alarm = False
        self._calm_since: float | None = None

    def observe(self, *, free: float, total: float, at_s: float) -> Evidence | None:
        """Take what is free of ``total`` now (bytes, inodes, any unit); say whether an alarm begins or ends."""
        if not (math.isfinite(free) and math.isfinite(at_s) and total > 0):
            return None
        if self._points and at_s < self._points[-1][0]:
            return None
        slot = int(at_s // (self._window_s / _POINTS))
        if slot == self._slot:
            at, low = self._points[-1]
            self._points[-1] = (at, min(low, free))
        else:
            self._points.append((at_s, free))
            self._slot = slot
        while self._points[-1][0] - self._points[0][0] > self._window_s:
            self._points.popleft()
        left_s = self._left_s(total, at_s, free)
        if not self._alarm:
            if left_s is None or left_s > self._horizon_s:
                return None
            self._alarm, self._calm_since = True, None
            text = (
                f"{self._what} will be full in {max(0.0, left_s) / 60:.1f} min: {free / total:.0%} is free, and falls"
            )
            return self._evidence(self._kind, text, at_s, min(1.0, self._horizon_s / (left_s + self._horizon_s)))
        if left_s is not None and left_s <= 2 * self._horizon_s:
            self._calm_since = None
            return None
        if self._calm_since is None:
            self._calm_since = at_s
        if at_s - self._calm_since < self._window_s / 2:
            return None
        self._alarm = False
        return self._evidence(f"{self._kind}_over", f"{self._what} does not fill up any more", at_s, 1.0)

    def _left_s(self, total: float, at_s: float, free: float) -> float | None:
        """Seconds until nothing is free; None without a trend that matters."""
        if free <= 0:
            return 0.0
        points = np.array(self._points)
        if len(points) < _LEAST_POINTS:
            return None
        t, y = points[:, 0], points[:, 1]
        third = len(y) // 3
        early, middle, late = (float(part.min()) for part in (y[:third], y[third : 2 * third], y[2 * third :]))
        spans = t[-1] - t[0] >= 0.95 * self._window_s * (1 - 1 / _POINTS)
        if not early > middle > late or early - late < _LEAST_SHARE * total:
            return None
        if free > _SHORT * total and not (spans and self._window_s >= 300):
            return None
        half = len(y) // 2
        slope = max(_slope(t, y), _slope(t[half:], y[half:]))
        return free / -slope if slope < 0 else None

    def _evidence(self, kind: str, sentence: str, at_s: float, strength: float) -> Evidence:
        nodes = (self._node,) if self._node else ()
        raw = tuple(f"{t:.1f} s: {y:.0f}" for t, y in list(self._points)[-6:])
        return Evidence(kind=kind, at_s=at_s, sentence=sentence, nodes=nodes, strength=strength, raw=raw)


class ClockWatch:
    """Tells each jump of a node's wall clock.

    >>> watch = ClockWatch("b1")
    >>> [e.sentence for t in range(4) if (e := watch.observe(wall_s=1e9 + t + 60 * (t > 2), at_s=float(t)))]
    ['the clock of b1 has jumped by +60.0 s']
    """

    def __init__(self, node: str) -> None:
        self._node = node
        self.reset()

    def reset(self) -> None:
        """Forget the past: after a reboot both clocks begin anew."""
        self._before: tuple[float, float] | None = None

    def observe(self, *, wall_s: float, at_s: float) -> Evidence | None:
        """Take both clocks of the node, read at one moment."""
        if not (math.isfinite(wall_s) and math.isfinite(at_s)):
            return None
        before, self._before = self._before, (wall_s, at_s)
        if before is None or at_s < before[1]:
            return None
        passed = at_s - before[1]
        jump = (wall_s - before[0]) - passed
        if abs(jump) <= _JUMP_S + _SLEW * passed:
            return None
        return Evidence(
            kind="clock_jump",
            at_s=at_s,
            sentence=f"the clock of {self._node} has jumped by {jump:+.1f} s",
            nodes=(self._node,),
            strength=abs(jump) / (abs(jump) + 1),
            raw=(f"{before[0]:.3f} -> {wall_s:.3f} in {passed:.3f} s",),
        )


def _slope(t: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Theil and Sen: the median of the slopes of all pairs."""
    i, j = np.triu_indices(len(t), 1)
    run = t[j] - t[i]
    apart = run > 0
    return float(np.median((y[j] - y[i])[apart] / run[apart])) if apart.any() else 0.0
