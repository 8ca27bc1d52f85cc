"""Whether training goes on from the state that it was left in, plugged into the analyser: by the losses in the log.

A program that knows nothing of perdure counts its steps anew at each start, as the probe sees them, but prints its own:
``step 1200 loss 2.31``. So the first printed losses of an attempt are compared with the last printed ones of the
attempts before, as `perdure.watcher.loss` does it. A job that is started again by another hand, elsewhere, begins anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from perdure.watcher.evidence import Evidence
from perdure.watcher.loss import LossWatch
from perdure.watcher.of_metrics import pairs_in
from perdure.watcher.samples import Looks

__all__ = ["OfResume"]

_STEPS: Final = ("step", "global_step", "iteration", "iter", "steps")
_LOSSES: Final = ("loss", "train_loss", "train/loss", "lm_loss")


class OfResume:
    """``bad_resume``, by the log of the first rank that prints steps and losses."""

    def __init__(self) -> None:
        self._watch = LossWatch()
        self._rank: int | None = None
        self._last = -1
        self._restarted = False
        self._bad: Evidence | None = None

    def feed(self, looks: Looks, *, now_s: float) -> Iterable[Evidence]:
        """The bad resume, while the loss is not where it was."""
        for line in looks.lines:
            if line.source == "rank" and line.rank is not None and self._rank in (None, line.rank):
                self._take(line.rank, line.text, now_s)
        return [] if self._bad is None else [msgspec.structs.replace(self._bad, at_s=now_s)]

    def _take(self, rank: int, text: str, now_s: float) -> None:
        pairs = dict(pairs_in(text))
        step = next((pairs[name] for name in _STEPS if name in pairs), None)
        loss = next((pairs[name] for name in _LOSSES if name in pairs), None)
        if step is None or loss is None or not 0 <= step < 1e15 or step != int(step):
            return
        self._rank = rank
        if self._restarted:
            self._restarted = False
            if self._last >= 0:
                self._watch.restored(int(step) - 1)
        elif step <= self._last:
            return  # a part of a step, or another counter: no restore, for the ranks are the same
        self._last = int(step)
        for each in self._watch.observe(self._last, loss, at_s=now_s):
            if each.kind == "bad_resume":
                self._bad = each
            elif each.kind == "bad_resume_over":
                self._bad = None

    def restarted(self, attempt: int) -> None:
        """The next loss is the first of this attempt."""
        self._restarted, self._bad = True, None
