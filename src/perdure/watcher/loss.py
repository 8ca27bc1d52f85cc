"""The loss: not finite, a spike that recovers, a rise that stays, training that goes on from another state, silence.

**Usual.** The median m and the robust deviation s of the last 200 losses, looked at each 16 steps and frozen while the
loss is out of bounds.

**Spike.** A loss over m + max(10 s, m / 8): ten deviations, since real losses have far heavier tails than Gaussian
ones (five happen about each 100,000 steps), and an eighth of the loss, since less costs nothing. Before 32 losses are
known, 1.5 times the median of at least two. A spike must also pass what the loss was at any time in its last 1,000
values: while it still falls fast, a set-back by a few hundred steps costs nothing and is common at the height of the
warm-up. Or a *level*: the median of the last 64 as far over m', the lowest median of a block in the last 2,000 losses:
a slow divergence, which the trailing m would follow. Small models do rise by a twentieth within thousands of steps.

**Recovered or diverged.** A spike is over when 16 steps (at least two of them logged) have passed with no loss over m
+ max(4 s, m / 32). If it is not over after 100 steps and the loss is still over half of what it rose by, it has
diverged; one that is falling back gets another 100, and another.

**Bad resume.** After a restore, steps that were done before are compared one by one (d = new - first, in units of s):
a healthy replay is nearly identical, |d| < 1.5 in real ones. Two of 32 over 5, one over 10, or a median of the first 4
to 8 over 3 in either direction (another order of the data makes d differ by 1.4 at random, its median by less than 1).
Steps that were not done before: the first 8 against the last 200 before the checkpoint: two over 5, one over 10, or a
median of 8 over 4 (neighbouring batches are alike: medians of 1.9 are healthy).
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np
from numpy.typing import NDArray

from perdure.watcher.evidence import Evidence
from perdure.watcher.labels import Label

__all__ = ["LossWatch", "MetricWatch"]

_PAST = 200
_TREND = 32
_TREND_OVER = 1.5
"A loss that has fallen by so many deviations below its median still falls: its past says nothing of its noise."
_FEW_KNOW = 1.2
"A deviation of so few values may be larger than it looks."
_LEARN = 32
_LOOK = 16
_SPIKE_NOISES = 10.0
_SPIKE_SHARE = 1 / 8
_EARLY_RATIO = 1.5
_BACK_NOISES = 4.0
_BACK_SHARE = 1 / 32
_BACK_STEPS = 16
"Two bumps within so many steps are one."
_LEVEL = 64
_LEVEL_BLOCKS = 32
_RANGE_BLOCKS = 16
_PATIENCE_STEPS = 100
_LEAST_NOISE = 1e-3
"Of the loss: what is logged with few digits has no deviation."
_FIRST = 8
_PAIRED = 32
_HISTORY = 1 << 17
"Steps of which the loss is kept, for the comparison after a restore: 16 bytes each."


class _Usual:
    """Median and robust deviation of what was usual."""

    def __init__(self) -> None:
        self.past: deque[float] = deque(maxlen=_PAST)
        self.middle = math.nan
        self.noise = math.nan
        self._since = 0
        self._block: list[float] = []
        self._blocks: deque[float] = deque(maxlen=_LEVEL_BLOCKS)

    def add(self, loss: float) -> None:
        self.past.append(loss)
        self._block.append(loss)
        if len(self._block) == _LEVEL:
            self._blocks.append(float(np.median(self._block)))
            self._block = []
        self._since += 1
        if self._since >= _LOOK or len(self.past) <= _LEARN:
            self.middle, self.noise = _spread(np.array(self.past))
            self._since = 0

    @property
    def lowest(self) -> float:
        """The lowest median of a block; NaN while there is none."""
        return min(self._blocks, default=math.nan)

    @property
    def spike_over(self) -> float:
        """A loss above this is a spike."""
        if len(self.past) < 2:
            return math.inf
        size = abs(self.middle)
        if len(self.past) < _LEARN:
            return self.middle + max(size * (_EARLY_RATIO - 1), _SPIKE_NOISES * self.noise)
        highest = max(list(self._blocks)[-_RANGE_BLOCKS:], default=-math.inf)
        return max(self.middle + max(_SPIKE_NOISES * self.noise, size * _SPIKE_SHARE), highest)

    @property
    def back_under(self) -> float:
        """A loss below this is as usual again."""
        return self.middle + max(_BACK_NOISES * self.noise, abs(self.middle) * _BACK_SHARE)

    def level_over(self) -> float:
        """A median of 64 above this is a level that was not there."""
        if len(self._blocks) < 2:
            return math.inf
        low = self.lowest
        return low + max(_SPIKE_NOISES * self.noise, abs(low) * _SPIKE_SHARE)


class LossWatch:
    """Watches the loss of a run, one number a step (or each few steps); O(1) a step, about 2 MB.

    Tells (kinds) ``loss_not_finite``, ``loss_finite_again``, ``loss_spike``, ``loss_spike_recovered``,
    ``loss_diverged``, ``loss_recovered``, ``bad_resume``, ``bad_resume_over``. It outlives restarts of the job: say
    `restored`, or let it see that steps go back.

    >>> watch = LossWatch()
    >>> losses = np.random.default_rng(0).normal(2.5, 0.02, 400)
    >>> losses[300:303] = 3.4, 3.1, 2.8
    >>> found = [e.kind for step, loss in enumerate(losses.tolist()) for e in watch.observe(step, loss, at_s=0.0)]
    >>> found
    ['loss_spike', 'loss_spike_recovered']
    """

    def __init__(self) -> None:
        self._steps: NDArray[np.int64] = np.full(_HISTORY, -1, dtype=np.int64)
        self._losses: NDArray[np.float64] = np.zeros(_HISTORY)
        self._usual = _Usual()
        self._last: int | None = None
        self._finite = True
        self._episode: _Episode | None = None
        self._recent: deque[float] = deque(maxlen=_LEVEL)
        self._resume: _Resume | None = None
        self._wrong: _Wrong | None = None

    def restored(self, step: int) -> None:
        """The job goes on from the checkpoint of ``step``: the next loss is of ``step + 1``, or a later one."""
        kept = (self._steps >= 0) & (self._steps <= step)
        steps = self._steps[kept]
        before = self._losses[kept][np.argsort(steps)][-_PAST:]
        self._resume = _Resume(before)
        self._last = step
        self._episode = self._wrong = None
        self._usual = _Usual()
        self._recent.clear()
        for loss in before.tolist():
            self._usual.add(loss)

    def observe(self, step: int, loss: float, *, at_s: float) -> tuple[Evidence, ...]:
        """Take the loss of one step; say what is new. A step that is not after the last one: the job was restored."""
        if self._last is not None and step <= self._last:
            self.restored(step - 1)
        self._last = step
        found: list[Evidence] = []
        if not math.isfinite(loss):
            if self._finite:
                self._finite = False
                found.append(_evidence("loss_not_finite", f"the loss is {loss}", step, at_s, Label.NAN, (str(loss),)))
            return tuple(found)
        if not self._finite:
            self._finite = True
            found.append(_evidence("loss_finite_again", "the loss is finite again", step, at_s, raw=(str(loss),)))
        first = self._first_pass(step)
        if self._resume is not None:
            why = self._resume.judge(loss, first)
            if why:
                found.append(_evidence("bad_resume", why, step, at_s, Label.BAD_RESUME, self._resume.raw))
                self._wrong = _Wrong(self._usual)
                self._usual = _Usual()
                self._recent.clear()
                self._episode = None
            if why or self._resume.done:
                self._resume = None
        if self._wrong is not None and self._wrong.passed(loss):
            self._wrong = None
            found.append(_evidence("bad_resume_over", "the loss is where it was before the restore", step, at_s))
        found += self._spikes(step, loss, at_s)
        self._steps[step % _HISTORY] = step
        self._losses[step % _HISTORY] = loss
        return tuple(found)

    def _first_pass(self, step: int) -> float | None:
        at = step % _HISTORY
        return float(self._losses[at]) if self._steps[at] == step else None

    def _spikes(self, step: int, loss: float, at_s: float) -> list[Evidence]:
        self._recent.append(loss)
        if self._episode is not None:
            found = self._episode.go_on(step, loss, at_s)
            if self._episode.over:
                self._episode = None
                self._recent.clear()
            return [found] if found else []
        over = loss > self._usual.spike_over
        # Only a loss that is high itself can raise the median of the last ones.
        level = self._usual.level_over()
        lasting = not over and len(self._recent) == _LEVEL and loss > level and float(np.median(self._recent)) > level
        if not over and not lasting:
            self._usual.add(loss)
            return []
        usual = self._usual
        base = usual.lowest if lasting else usual.middle
        back = base + (usual.back_under - usual.middle)
        self._episode = _Episode(step, loss, base, back)
        text = f"the loss is {loss:.4g}, and was {base:.4g}"
        return [_evidence("loss_spike", text, step, at_s, raw=(f"{loss:.6g}",), strength=_rise(loss, base))]


class _Episode:
    """A rise of the loss, until it is back."""

    def __init__(self, step: int, loss: float, base: float, back_under: float) -> None:
        self.over = False
        self._start = self._last_high = step
        self._base, self._back, self._peak = base, back_under, loss
        self._deadline = step + _PATIENCE_STEPS
        self._calm = 0
        self._diverged = False
        self._recent: deque[float] = deque([loss], maxlen=16)

    def go_on(self, step: int, loss: float, at_s: float) -> Evidence | None:
        self._recent.append(loss)
        self._peak = max(self._peak, loss)
        if loss > self._back:
            self._last_high, self._calm = step, 0
        else:
            self._calm += 1
        if self._calm >= 2 and step - self._last_high >= _BACK_STEPS:
            self.over = True
            kind = "loss_recovered" if self._diverged else "loss_spike_recovered"
            label = None if self._diverged else Label.SPIKE_RECOVERED
            text = f"the loss rose from {self._base:.4g} to {self._peak:.4g} at step {self._start} and came back"
            return _evidence(kind, text, step, at_s, label, strength=_rise(self._peak, self._base))
        if self._diverged or step < self._deadline:
            return None
        middle = float(np.median(self._recent))
        if middle - self._base <= (self._peak - self._base) / 2 and middle < self._peak - (self._back - self._base):
            # It falls back: from here on half of what is left is the measure.
            self._peak = max(middle, self._back)
            self._deadline = step + _PATIENCE_STEPS
            return None
        self._diverged = True
        text = f"the loss rose from {self._base:.4g} at step {self._start} and stays, now at {middle:.4g}"
        return _evidence("loss_diverged", text, step, at_s, Label.DIVERGENCE, strength=_rise(middle, self._base))


class _Resume:
    """The first losses after a restore, against those before."""

    def __init__(self, before: NDArray[np.float64]) -> None:
        self._middle, self._noise = _at_end(before) if len(before) >= 8 else (math.nan, math.nan)
        self._paired: list[float] = []
        self._free: list[float] = []
        self.raw: tuple[str, ...] = ()

    @property
    def done(self) -> bool:
        """Whether enough was seen to call it healthy."""
        if math.isnan(self._middle):
            return True
        return len(self._free) >= _FIRST or len(self._paired) >= _PAIRED

    def judge(self, loss: float, first: float | None) -> str:
        """Why it is a bad resume; empty if nothing says so yet."""
        if math.isnan(self._middle):
            return ""
        if first is not None:
            d = (loss - first) / self._noise
            self._paired.append(d)
            self.raw = (*self.raw, f"{loss:.6g} after {first:.6g}")[-_FIRST:]
            few = np.array(self._paired[:_FIRST])
            high = sum(x > 5 for x in self._paired)
            if high >= 2 or d > 10 or (4 <= len(self._paired) <= _FIRST and abs(float(np.median(few))) > 3):
                return f"after the restore the same steps have another loss: {loss:.4g} for {first:.4g}"
            return ""
        z = (loss - self._middle) / self._noise
        self._free.append(z)
        self.raw = (*self.raw, f"{loss:.6g}")[-_FIRST:]
        high = sum(x > 5 for x in self._free)
        if high >= 2 or z > 10 or (len(self._free) == _FIRST and float(np.median(self._free)) > 4):
            return f"after the restore the loss is {loss:.4g}; before the checkpoint it was {self._middle:.4g}"
        return ""


class _Wrong:
    """A bad resume that was told, until the loss is where it was."""

    def __init__(self, usual: _Usual) -> None:
        self._back = usual.back_under
        self._calm = 0

    def passed(self, loss: float) -> bool:
        self._calm = self._calm + 1 if loss <= self._back else 0
        return self._calm >= 2 * _BACK_STEPS


class MetricWatch:
    """Tells when a metric is not reported any more although the job goes on. Pure bookkeeping, no memory of values.

    Lost: nothing for more than 50 steps and three times the longest gap so far, once four gaps are known.

    >>> watch = MetricWatch("loss")
    >>> for step in range(0, 60, 10):
    ...     assert watch.observe(step, reported=True, at_s=0.0) is None
    >>> [e.kind for step in range(60, 140) if (e := watch.observe(step, reported=False, at_s=0.0))]
    ['metric_lost']
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._last: int | None = None
        self._longest = 0
        self._gaps = 0
        self._lost = False

    def reset(self) -> None:
        """The job was restarted: the next report is counted from anew; how often it reports is remembered."""
        self._last = None

    def observe(self, step: int, *, reported: bool, at_s: float) -> Evidence | None:
        """The job is at ``step``; was the metric reported since the last call?"""
        if self._last is not None and step < self._last:
            self._last = None
        if reported:
            if self._last is not None and not self._lost and step > self._last:
                self._longest = max(self._longest, step - self._last)
                self._gaps += 1
            self._last = step
            if self._lost:
                self._lost = False
                return _evidence("metric_back", f"{self._name} is reported again", step, at_s)
            return None
        if self._last is None:
            self._last = step
            return None
        if self._lost or self._gaps < 4 or step - self._last <= max(50, 3 * self._longest):
            return None
        self._lost = True
        text = (
            f"{self._name} has not been reported for {step - self._last} steps; it was each {self._longest} or sooner"
        )
        return _evidence("metric_lost", text, step, at_s, Label.METRIC_LOST)


def _spread(past: NDArray[np.float64]) -> tuple[float, float]:
    middle = float(np.median(past))
    noise = 1.4826 * float(np.median(np.abs(past - middle)))
    return middle, max(noise, _LEAST_NOISE * abs(middle), 1e-12)


def _at_end(past: NDArray[np.float64]) -> tuple[float, float]:
    """Where a loss is now, and its noise: of one that still falls, by the line through its last values."""
    last = past[-_TREND:]
    t = np.arange(len(last)) - (len(last) - 1.0)
    i, j = np.triu_indices(len(last), 1)
    slope = float(np.median((last[j] - last[i]) / (j - i)))
    middle, noise = _spread(last - slope * t)
    long_middle, long_noise = _spread(past)
    if long_middle - middle < _TREND_OVER * noise:
        return long_middle, long_noise
    return middle, _FEW_KNOW * noise


def _rise(loss: float, base: float) -> float:
    """0 to 1: half for a loss that is a quarter up."""
    rise = max(0.0, loss - base)
    return rise / (rise + abs(base) / 4) if rise else 0.0


def _evidence(
    kind: str,
    sentence: str,
    step: int,
    at_s: float,
    label: Label | None = None,
    raw: tuple[str, ...] = (),
    strength: float = 1.0,
) -> Evidence:
    return Evidence(kind=kind, at_s=at_s, sentence=sentence, step=step, label=label, raw=raw, strength=strength)
