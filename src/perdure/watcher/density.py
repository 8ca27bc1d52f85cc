"""Any one metric: how rare is this value in the metric's own past?

    score = -log10((c + 0.2) / n) + min(3, 4 overshoot / range)

c of the last n <= 4,000 values lie within a fiftieth of their range of the new one: 3 is one in a thousand. A value
outside the past range is the rarer the farther out it is. No shape is assumed, so bounded, multi-modal and bursty
metrics are alike; what is rare only in its order (a period that is missed) is not seen.

The default threshold 4.5 is more than any value within the past range can have (log10(4000 / 0.2) = 4.3), so it takes
one that lies outside by a twentieth of the range or more: of independent values, Gaussian to heavy-tailed (Student's t
with 4 degrees of freedom), that is 1 in 7,500 to 1 in 2,500. At 3.5, where values inside the range can be told, it is
1 in 800. For 100 samples after a score only what is rarer still counts: one incident is told once. On its own it is
weak evidence, and never a verdict.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque

from perdure.errors import CallError
from perdure.watcher.evidence import Evidence

__all__ = ["Density"]

_LEARN = 10
_BAND = 50
_PRIOR = 0.2
_OUTSIDE_MOST = 3.0
_OUTSIDE = 4.0


class Density:
    """A streaming detector of rare values; O(window) memory, O(log window) comparisons a sample.

    ``threshold`` is how rare a value must be, in powers of ten; for ``quiet`` samples after a score only a higher one
    counts; the first ``learn`` values are never told.

    >>> density = Density("gpu 3 temperature", node="b1")
    >>> found = [density.observe(60 + t % 7, at_s=float(t)) for t in range(1000)] + [density.observe(85, at_s=1000.0)]
    >>> [(e.kind, e.at_s) for e in found if e]
    [('rare_value', 1000.0)]
    """

    def __init__(
        self,
        metric: str,
        *,
        node: str = "",
        window: int = 4000,
        quiet: int = 100,
        threshold: float = 4.5,
        learn: int = 200,
    ) -> None:
        if window < 2 * _LEARN or quiet < 0 or learn < _LEARN:
            raise CallError(
                f"window={window}, quiet={quiet}, learn={learn}: the window needs {2 * _LEARN} samples or more, "
                f"learn {_LEARN} or more, and quiet cannot be negative"
            )
        self._metric, self._node = metric, node
        self._window, self._quiet, self._threshold, self._learn = window, quiet, threshold, learn
        self.reset()

    def reset(self) -> None:
        """Forget the past: after the metric's meaning has changed."""
        self._sorted: list[float] = []
        self._order: deque[float] = deque()
        self._count = 0
        self._peaks: deque[tuple[int, float]] = deque()

    def score(self, value: float) -> float:
        """How rare ``value`` is, 0 upward, and take it into the past.

        0 for what is not finite, while fewer than ten values are known, and for what is no rarer than a value of the
        last ``quiet`` samples was.
        """
        if not math.isfinite(value):
            return 0.0
        rarity = self._rarity(value)
        insort(self._sorted, value)
        self._order.append(value)
        if len(self._order) > self._window:
            del self._sorted[bisect_left(self._sorted, self._order.popleft())]
        self._count += 1
        while self._peaks and self._peaks[0][0] < self._count - self._quiet:
            self._peaks.popleft()
        highest = self._peaks[0][1] if self._peaks else -1.0
        while self._peaks and self._peaks[-1][1] <= rarity:
            self._peaks.pop()
        self._peaks.append((self._count, rarity))
        return max(0.0, rarity) if rarity > highest else 0.0

    def observe(self, value: float, *, at_s: float) -> Evidence | None:
        """Take one value; evidence if it is rarer than the threshold, once ``learn`` values are known."""
        known = self._count
        low, high = (self._sorted[0], self._sorted[-1]) if self._sorted else (math.nan, math.nan)
        score = self.score(value)
        if known < self._learn or score < self._threshold:
            return None
        return Evidence(
            kind="rare_value",
            at_s=at_s,
            sentence=f"{self._metric} is {value:.6g}, which is rare: the last {min(known, self._window)} values were "
            f"between {low:.6g} and {high:.6g}",
            nodes=(self._node,) if self._node else (),
            strength=min(1.0, score / (2 * self._threshold)),
            raw=(f"score {score:.2f}",),
        )

    def _rarity(self, value: float) -> float:
        past = self._sorted
        if len(past) <= _LEARN:
            return 0.0
        low, high = past[0], past[-1]
        spread = high - low
        band = spread / _BAND
        near = bisect_right(past, value + band) - bisect_left(past, value - band)
        outside = max(value - high, low - value, 0.0)
        if spread > 0:
            far = min(_OUTSIDE_MOST, _OUTSIDE * outside / spread)
        else:
            far = _OUTSIDE_MOST if outside > 0 else 0.0
        return -math.log10((near + _PRIOR) / len(past)) + far
