"""A job is watched: the looks of its nodes go in, verdicts come out. The analyser with every detector that there is.

It does no I/O. It runs in `perdure watch`, which only tells, or in the controller of a job, which acts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from perdure.watcher.analyser import Analyser, Detector, Settings
from perdure.watcher.evidence import Verdict
from perdure.watcher.incidents import Past
from perdure.watcher.labels import Label
from perdure.watcher.of_lines import OfLines
from perdure.watcher.of_loss import OfLoss
from perdure.watcher.of_metrics import OfMetrics
from perdure.watcher.of_nodes import OfFills, OfNodes
from perdure.watcher.of_pace import OfPace
from perdure.watcher.of_resume import OfResume
from perdure.watcher.samples import NodeLook

__all__ = ["JobWatch", "detectors"]

_JUDGED_S: Final = 2.2
_MOST_WAITING: Final = 1 << 15


def detectors() -> tuple[Detector, ...]:
    """New ones of every kind, for one `Analyser`."""
    return OfNodes(), OfFills(), OfPace(), OfLoss(), OfLines(), OfMetrics(), OfResume()


class JobWatch:
    """Watches one job on any number of nodes. ``past`` is what was acted on before (`past` afterwards), ``more`` are
    detectors of the caller's own.
    """

    def __init__(
        self, settings: Settings | None = None, *, past: Past | None = None, more: Sequence[Detector] = ()
    ) -> None:
        self._analyser = Analyser({}, settings, detectors=(*detectors(), *more), past=past)
        self._attempt: int | None = None
        self._waiting: deque[NodeLook] = deque(maxlen=_MOST_WAITING)
        self._dead: set[int] = set()
        self._died_s = -_JUDGED_S

    @property
    def past(self) -> Past:
        """What was acted on; to be given to whoever watches after this one."""
        return self._analyser.past

    @property
    def attempt(self) -> int | None:
        """The attempt that is judged now; None before the first look."""
        return self._attempt

    @property
    def open(self) -> tuple[Verdict, ...]:
        """All incidents that are open, as they were told last."""
        return self._analyser.open

    def feed(self, looks: Sequence[NodeLook], *, now_s: float) -> list[Verdict]:
        """Take the looks that have arrived since the last call; return the incidents that are new or have changed.

        To be called about once a second, also if nothing has arrived: a node that is silent is found so. The highest
        attempt counts; looks at one before it are left out. After a death the watcher takes a moment to see what the
        others and the logs say of it, and restarts are faster than that: looks at the next attempt wait until then.
        """
        self._waiting += looks
        newest = max((each.attempt for each in self._waiting), default=self._attempt)
        if self._attempt is None:
            self._attempt = newest
        elif newest is not None and newest > self._attempt and now_s - self._died_s >= _JUDGED_S:
            self._attempt, self._dead = newest, set()
            now = [each for each in self._waiting if each.attempt == newest]
            ranks = {each.node: sorted(sample.rank for sample in each.samples) for each in now}
            self._analyser.restarted(newest, ranks)
        looks = [each for each in self._waiting if each.attempt == self._attempt]
        later = [each for each in self._waiting if self._attempt is not None and each.attempt > self._attempt]
        self._waiting = deque(later, maxlen=_MOST_WAITING)
        dead = {sample.rank for each in looks for sample in each.samples if sample.ended}
        if dead and not self._dead:
            self._died_s = now_s
        self._dead |= dead
        return self._analyser.feed(
            [sample for each in looks for sample in each.samples],
            [each.host for each in looks if each.host is not None],
            [line for each in looks for line in each.lines],
            [stack for each in looks for stack in each.stacks],
            now_s=now_s,
        )

    def wants_stacks(self) -> tuple[int, ...]:
        """The ranks whose stacks would help now; each is asked for once in a while, so ask after every `feed`."""
        return self._analyser.wants_stacks()

    def mute(
        self,
        *,
        label: Label | None = None,
        node: str | None = None,
        rank: int | None = None,
        until_s: float | None = None,
    ) -> None:
        """Tell no verdicts that agree with all that is given. Raises `CallError` if nothing is."""
        self._analyser.mute(label=label, node=node, rank=rank, until_s=until_s)

    def acknowledge(self, incident: str) -> None:
        """Tell of ``incident`` only when it is to be acted on more gravely, or over; `CallError` if it is not open."""
        self._analyser.acknowledge(incident)
