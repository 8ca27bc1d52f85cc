"""A job that has become slow: step times against the job's own past.

One slow step says nothing: in healthy jobs about one in 400 takes three times as long. What counts is a shift that
lasts. With m and s, the median and the robust deviation of earlier steps, z = (t - m) / s is clipped at 4 and summed,

    S = max(0, S + z - k)        k = 1, alarm at S > h = 12         (Page 1954)

For Gaussian noise the mean time to a false alarm is about exp(2 k h) = 3e10 steps; a step three times as long adds 3,
so four of them would have to follow each other almost at once, for each healthy step takes 1 back. A slowdown of 5 %
is found after about 12 / (min(0.05 / s, 4) - 1) steps: 8 at 2 % noise, 4 or 5 at 1 %.

The reference (m, s) is frozen between two looks at the past, and in alarm. A look moves m by at most 0.2 %, so that it
follows a drift, while a creeping slowdown runs ahead of it. The median of the last 8 steps must also be 3 % over m:
less is not worth an alarm, whatever its z. What makes steps lastingly *faster* is no fault, but is the new reference.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from perdure.errors import CallError
from perdure.watcher.evidence import Evidence

__all__ = ["StepTimes"]

_CLIP = 4.0
_SLACK = 1.0
_LIMIT = 12.0
_LEARN = 64
"Steps until there is a reference: the median of so many is within 0.16 s of the truth."
_PAST = 200
_LOOK = 100
"Steps between two looks at the past."
_MOVE = 0.002
"So far a look may move the reference, as a share of it."
_LEAST_NOISE = 0.01
"A quieter job is judged as if it had 1 % noise: smaller changes are of no interest."
_RECENT = 8
_ACCEPT = 1000
"After so many steps in alarm the job is as it is, and its speed is the new reference."


class StepTimes:
    """Tells when a job's steps take longer than they did; O(1) a step, O(200) memory.

    Hand in whole steps of training in order: no compilation, no time in which the job was stopped. ``least`` is the
    smallest slowdown that is told, as a share.

    >>> watch = StepTimes()
    >>> times = np.random.default_rng(0).normal(0.2, 0.002, 400)
    >>> times[300:] *= 1.05
    >>> found = [watch.observe(step, t, at_s=float(step)) for step, t in enumerate(times.tolist())]
    >>> [(e.kind, e.step) for e in found if e]
    [('slow_job', 304)]
    """

    def __init__(self, *, least: float = 0.03) -> None:
        if not 0 < least < 1:
            raise CallError(f"least={least}: give the smallest slowdown that is to be told as a share, as 0.03")
        self._least = least
        self.reset()

    def reset(self) -> None:
        """Forget the past: after a restart on other nodes or with another batch."""
        self._past: deque[float] = deque(maxlen=_PAST)
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._usual: float | None = None
        self._noise = 0.0
        self._slower = 0.0
        self._faster = 0.0
        self._since_look = 0
        self._alarm_steps = 0
        self._slow = False

    @property
    def slow(self) -> bool:
        """Whether an episode is under way."""
        return self._slow

    @property
    def usual_s(self) -> float | None:
        """What a step usually takes; None until that is known."""
        return self._usual

    def observe(self, step: int, step_s: float, *, at_s: float) -> Evidence | None:
        """Take the time of one step, in seconds; say whether an episode begins or ends. What is no time is skipped."""
        if not (math.isfinite(step_s) and step_s > 0):
            return None
        self._recent.append(step_s)
        if self._usual is None:
            self._past.append(step_s)
            if len(self._past) >= _LEARN:
                self._usual, self._noise = self._look()
            return None
        z = max(-_CLIP, min(_CLIP, (step_s - self._usual) / self._noise))
        self._slower = min(2 * _LIMIT, max(0.0, self._slower + z - _SLACK))
        self._faster = min(2 * _LIMIT, max(0.0, self._faster - z - _SLACK))
        return self._in_alarm(step, at_s) if self._slow else self._calm(step, step_s, at_s)

    def _calm(self, step: int, step_s: float, at_s: float) -> Evidence | None:
        assert self._usual is not None
        if self._slower > _LIMIT:
            ratio = self._middle() / self._usual
            if ratio > 1 + self._least:
                self._slow, self._alarm_steps = True, 0
                return self._evidence("slow_job", f"steps take {ratio:.2f} times as long as before", ratio, step, at_s)
            self._slower = _LIMIT
        if self._slower < _LIMIT / 2:
            self._past.append(step_s)
        if self._faster > _LIMIT:
            recent = list(self._recent)
            self.reset()
            self._past.extend(recent)
            return None
        self._since_look += 1
        if self._since_look >= _LOOK and self._slower < _LIMIT / 2:
            usual, self._noise = self._look()
            most = _MOVE * self._usual
            self._usual += max(-most, min(most, usual - self._usual))
            self._since_look = 0
        return None

    def _in_alarm(self, step: int, at_s: float) -> Evidence | None:
        assert self._usual is not None
        ratio = self._middle() / self._usual
        self._alarm_steps += 1
        if self._slower == 0.0:
            self._slow = False
            return self._evidence("slow_job_over", "steps are as fast as before again", ratio, step, at_s)
        if self._alarm_steps >= _ACCEPT:
            self.reset()
            text = f"steps have taken {ratio:.2f} times as long for {_ACCEPT} steps: this is what is usual from now on"
            return self._evidence("slow_job_lasts", text, ratio, step, at_s)
        return None

    def _middle(self) -> float:
        return float(np.median(self._recent))

    def _look(self) -> tuple[float, float]:
        past = np.array(self._past)
        usual = float(np.median(past))
        spread = 1.4826 * float(np.median(np.abs(past - usual)))
        return usual, max(spread, _LEAST_NOISE * usual)

    def _evidence(self, kind: str, sentence: str, ratio: float, step: int, at_s: float) -> Evidence:
        excess = max(0.0, ratio - 1)
        return Evidence(
            kind=kind,
            at_s=at_s,
            sentence=sentence,
            strength=excess / (excess + 0.05),
            step=step,
            raw=tuple(f"{t:.6g} s" for t in self._recent),
        )
