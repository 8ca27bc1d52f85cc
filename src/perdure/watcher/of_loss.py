"""Detectors of the loss, plugged into the analyser: what it does, and whether it is still told."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from perdure.watcher.detecting import EVENT_LASTS_S, Held
from perdure.watcher.evidence import Evidence
from perdure.watcher.loss import LossWatch, MetricWatch
from perdure.watcher.samples import Looks, RankSample

__all__ = ["OfLoss"]

_OVER_BY: Final = {
    "loss_finite_again": "loss_not_finite",
    "loss_recovered": "loss_diverged",
    "bad_resume_over": "bad_resume",
    "metric_back": "metric_lost",
}
_STATES: Final = frozenset(_OVER_BY.values())


class OfLoss:
    """`LossWatch` and `MetricWatch` over the loss of the first rank that tells one."""

    def __init__(self) -> None:
        self._watch = LossWatch()
        self._told = MetricWatch("the loss")
        self._rank: int | None = None
        self._loss_step = -1
        self._step = -1
        self._held = Held()

    def feed(self, looks: Looks, *, now_s: float) -> Iterable[Evidence]:
        """What holds of the loss."""
        if self._rank is None:
            self._rank = min((each.rank for each in looks.samples if each.loss_step is not None), default=None)
        for sample in looks.samples:
            if sample.rank == self._rank:
                self._take(sample, now_s)
        return self._held.found(now_s)

    def _take(self, sample: RankSample, now_s: float) -> None:
        new = sample.loss_step is not None and sample.loss_step != self._loss_step
        found: list[Evidence] = []
        if new and sample.loss_step is not None:
            self._loss_step = sample.loss_step
            bad = sample.loss_bad_step is not None or sample.loss is None
            found += self._watch.observe(self._loss_step, math.nan if bad else sample.loss or 0.0, at_s=now_s)
        if sample.step is not None and (new or sample.step != self._step):
            self._step = sample.step
            told = self._told.observe(self._step, reported=new, at_s=now_s)
            found += [] if told is None else [told]
        for each in found:
            self._held.drop(_OVER_BY.get(each.kind, ""))
            if each.kind not in _OVER_BY:
                until_s = math.inf if each.kind in _STATES else now_s + EVENT_LASTS_S
                self._held.keep(each.kind, each, until_s=until_s)

    def restarted(self, attempt: int) -> None:
        """The loss goes on; that its steps went back, the watch sees by itself."""
        self._held.clear()
        self._told.reset()
