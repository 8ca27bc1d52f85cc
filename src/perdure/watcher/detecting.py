"""Rules of nodes and the watch over the loss, as the analyser asks its detectors: what holds is found at every look.

They tell what is new once (or now and then); here it is kept until they say that it is over, or for a while.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from perdure.watcher.evidence import Evidence
from perdure.watcher.loss import LossWatch
from perdure.watcher.rules import NodeRules, kernel_hangs
from perdure.watcher.samples import LogLine, NodeSample, RankSample, Stack

__all__ = ["OfLoss", "OfNodes"]

_LASTS_S: Final = 15.0
_OVER_BY: Final = {
    "loss_finite_again": "loss_not_finite",
    "loss_recovered": "loss_diverged",
    "bad_resume_over": "bad_resume",
}
_STATES: Final = frozenset(_OVER_BY.values())


class OfNodes:
    """`NodeRules` and hanging kernels."""

    def __init__(self) -> None:
        self._rules = NodeRules()
        self._kept: dict[tuple[str, tuple[str, ...], str], tuple[Evidence, float]] = {}

    def feed(
        self,
        samples: Sequence[RankSample],
        *,
        nodes: Sequence[NodeSample],
        lines: Sequence[LogLine],
        stacks: Sequence[Stack],
        now_s: float,
    ) -> Iterable[Evidence]:
        """What holds of these nodes."""
        for node in nodes:
            for each in self._rules.look(node, at_s=now_s):
                self._kept[each.kind, each.nodes, each.sentence] = each, now_s + _LASTS_S
        self._kept = {key: kept for key, kept in self._kept.items() if kept[1] > now_s}
        held = [msgspec.structs.replace(each, at_s=now_s) for each, _ in self._kept.values()]
        return [*held, *kernel_hangs(samples, at_s=now_s)]

    def restarted(self, attempt: int) -> None:
        """Nodes stay what they are."""


class OfLoss:
    """`LossWatch` over the loss of the first rank that tells one."""

    def __init__(self) -> None:
        self._watch = LossWatch()
        self._rank: int | None = None
        self._step = -1
        self._kept: dict[str, tuple[Evidence, float]] = {}

    def feed(
        self,
        samples: Sequence[RankSample],
        *,
        nodes: Sequence[NodeSample],
        lines: Sequence[LogLine],
        stacks: Sequence[Stack],
        now_s: float,
    ) -> Iterable[Evidence]:
        """What holds of the loss."""
        for each in self._new(samples, now_s):
            self._kept.pop(_OVER_BY.get(each.kind, ""), None)
            if each.kind not in _OVER_BY:
                self._kept[each.kind] = each, math.inf if each.kind in _STATES else now_s + _LASTS_S
        self._kept = {kind: kept for kind, kept in self._kept.items() if kept[1] > now_s}
        return [msgspec.structs.replace(each, at_s=now_s) for each, _ in self._kept.values()]

    def _new(self, samples: Sequence[RankSample], now_s: float) -> Iterator[Evidence]:
        telling = [each for each in samples if each.loss_step is not None]
        if self._rank is None and telling:
            self._rank = min(each.rank for each in telling)
        for each in telling:
            if each.rank == self._rank and each.loss_step is not None and each.loss_step != self._step:
                self._step = each.loss_step
                bad = each.loss_bad_step is not None or each.loss is None
                yield from self._watch.observe(self._step, math.nan if bad else each.loss or 0.0, at_s=now_s)

    def restarted(self, attempt: int) -> None:
        """The loss goes on; that its steps went back, the watch sees by itself."""
        self._kept.clear()
