"""How fast a job is, plugged into the analyser: slow ranks, slow nodes, a slow job, and what a neighbour explains.

Records tell times as means over the steps since the look before, and ranks are looked at at different moments. So times
are gathered in *rounds*: a round of a class of equal ranks (`equals`) is over when each has told one, or one tells the
next. Left out are times with a phase of its own in them (a save, an evaluation, a restore), before, in and after which
a rank does what its peers do not, the first steps of an attempt, which compile, and means that have a pause in them.

**Who takes the processor.** A rank whose main thread waits for a processor is slow through no fault of its own machine.
If it computes r times as long as it should, the share 1 - 1 / r of its work was lost; if the threads of the ranks on
its node waited for at least half of that (`NodeSample.cpu_wait`; all of it, once the rank was told), that explains it.
Then it is the neighbour's fault if there is one (``contention``), else nobody's: ranks fight with their own helpers.

**How long.** A slow rank is told after eight steps, or six seconds if they are fast; a slow job after ten seconds, for
a job has bursts, and not while a slow rank is known, which all others wait for.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from perdure.watcher.detecting import Held
from perdure.watcher.equals import LEAST_STEPS, counts_of, equals
from perdure.watcher.evidence import Evidence
from perdure.watcher.history import StepTimes
from perdure.watcher.labels import Label
from perdure.watcher.peers import Peers
from perdure.watcher.samples import Looks, NodeSample, RankSample

__all__ = ["OfPace"]

_AMONG_STEPS: Final = frozenset({"", "forward", "step", "loading"})
_FIRST_STEPS: Final = 3
_LOOK_AGAIN: Final = 120
"""Rounds until classes are looked for again."""
_RANK_HOLDS_S: Final = 6.0
_RANK_HOLDS_STEPS: Final = 8
_JOB_HOLDS_S: Final = 10.0
_WAITS_OVER_S: Final = 10.0
_EXPLAINS: Final = 0.5
_EXPLAINED_LASTS_S: Final = 20.0
"""After a neighbour has gone, what it has done to the times is still in them for a while."""
_PAUSE: Final = 2.0
"""A mean over several steps that is this much longer has a pause in it that nobody has told of, such as a save."""
_RECENT: Final = 8
_RECENT_OF_JOB: Final = 16
_STILL_SLOW: Final = 1.04
_SURE: Final = 6.0
"""Deviations of the median of the last rounds."""
_JOB: Final = "job"
_FOREIGN_SHARE: Final = 0.25
_NO_IDLE: Final = 0.05


@dataclass(slots=True)
class _Rank:
    """What is remembered of a rank. ``skip``: so many of its next times are left out."""

    pid: int
    step: int
    skip: int = _FIRST_STEPS


@dataclass(slots=True)
class _Class:
    """Equal ranks, and the round that is under way."""

    peers: Peers
    rows: dict[int, int]
    times: dict[int, float] = field(default_factory=dict)
    step: int = 0
    ratios: deque[NDArray[np.float64]] = field(default_factory=lambda: deque(maxlen=4 * _RECENT))
    "Of the last rounds, each rank's time as a multiple of the lower quartile."

    def is_slow(self, ranks: Sequence[int]) -> bool:
        """Whether ``ranks`` are slower than the others in most of the last rounds, by more than these differ."""
        ratios = np.array(self.ratios)[:, [self.rows[rank] for rank in ranks]]
        known = ratios[np.isfinite(ratios).all(axis=1)]
        if len(known) < _RECENT:
            return False
        noise = 1.4826 * float(np.median(np.abs(np.diff(known, axis=0)))) / math.sqrt(2)
        least = max(_STILL_SLOW - 1, _SURE * 1.2533 * noise / math.sqrt(_RECENT))
        return float(np.median(known[-_RECENT:])) >= 1 + least


class _Waits:
    """How long ranks of a node waited for a processor in the last seconds, and what others took."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float, float]] = deque()

    def take(self, sample: NodeSample, now_s: float) -> None:
        """Add a sample that tells it."""
        wait = sample.cpu_wait
        if wait is None:
            wait = float(sample.cpu_idle is not None and sample.cpu_idle <= _NO_IDLE)
        self._seen.append((now_s, wait, sum(share for _, share in sample.foreign_cpu)))
        while now_s - self._seen[0][0] > _WAITS_OVER_S:
            self._seen.popleft()

    @property
    def wait(self) -> float:
        """Share of the time, 0 to 1."""
        return sum(each[1] for each in self._seen) / len(self._seen)

    @property
    def foreign(self) -> float:
        """Processors that others took."""
        return sum(each[2] for each in self._seen) / len(self._seen)


class OfPace:
    """`Peers` of each class of equal ranks, and `StepTimes` of the job."""

    def __init__(self) -> None:
        self._waits: dict[str, _Waits] = {}
        self._begin()

    def _begin(self) -> None:
        self._ranks: dict[int, _Rank] = {}
        self._nodes: dict[int, str] = {}
        self._last: dict[int, RankSample] = {}
        self._before = counts_of(())
        self._partition: list[tuple[int, ...]] = []
        self._classes: list[_Class] = []
        self._class_of: dict[int, _Class] = {}
        self._rounds = 0
        self._paces_s: deque[float] = deque(maxlen=9)
        self._usual_s = np.inf
        self._recent_s: deque[float] = deque(maxlen=_RECENT_OF_JOB)
        self._job = StepTimes()
        self._job_step = -1
        self._skip_job = False
        self._step_s = 0.0
        self._work_share = 1.0
        self._since_s: dict[Hashable, float] = {}
        self._accused: set[Hashable] = set()
        self._found = Held()

    def feed(self, looks: Looks, *, now_s: float) -> Iterable[Evidence]:
        """Who is slow now, and whether a neighbour explains it."""
        for node in looks.nodes:
            self._waits.setdefault(node.node, _Waits()).take(node, now_s)
        fresh = self._fresh(looks.samples)
        self._group(looks.samples, fresh)
        for sample in fresh:
            self._compare(sample, now_s)
        for each in self._classes:
            if len(each.times) == len(each.rows):
                self._end_round(each, now_s)
        self._judge_job(fresh, now_s)
        return self._told(now_s)

    def restarted(self, attempt: int) -> None:
        """Ranks may run elsewhere."""
        self._begin()

    def _fresh(self, samples: Sequence[RankSample]) -> list[RankSample]:
        """The samples that tell times of whole steps that were not told before."""
        fresh, pace_s = [], None
        for sample in samples:
            step = sample.step
            if step is None:
                continue
            known = self._ranks.get(sample.rank)
            if known is None or known.pid != sample.pid:
                self._ranks[sample.rank] = _Rank(sample.pid, step)
                continue
            if sample.phase not in _AMONG_STEPS:
                known.skip = max(known.skip, 1)
                self._skip_job = True
            if step == known.step:
                continue
            steps, known.step = step - known.step, step
            if known.skip:
                known.skip = max(0, known.skip - max(1, steps)) if sample.phase in _AMONG_STEPS else known.skip
            elif sample.compute_s is not None and sample.step_s is not None:
                if steps == 1 or sample.step_s <= _PAUSE * self._usual_s:
                    fresh.append(sample)
                else:
                    self._skip_job = True
                pace_s = sample.step_s
        if pace_s is not None:
            self._paces_s.append(pace_s)
            self._usual_s = float(np.median(self._paces_s)) if len(self._paces_s) > 4 else np.inf
        return fresh

    def _group(self, samples: Sequence[RankSample], fresh: Sequence[RankSample]) -> None:
        """Look for classes of equal ranks, once they have done some steps, when ranks have come, and now and then."""
        new = False
        for sample in samples:
            if self._nodes.get(sample.rank) != sample.node:
                self._nodes[sample.rank] = sample.node
                new = True
            self._last[sample.rank] = sample
        if new or not self._before:
            self._before = counts_of(self._last.values())
            return
        self._rounds += bool(fresh)
        if not fresh or (self._classes and self._rounds % _LOOK_AGAIN):
            return
        now = [each for each in self._last.values() if not each.ended]
        if any(
            each.rank in self._before and (each.step or 0) - self._before[each.rank][0] < LEAST_STEPS for each in now
        ):
            return
        partition = equals(self._before, now)
        self._before = counts_of(now)
        if partition == self._partition:
            return
        self._partition = partition
        self._classes = [
            _Class(Peers(ranks, [self._nodes[rank] for rank in ranks]), {rank: row for row, rank in enumerate(ranks)})
            for ranks in partition
        ]
        self._class_of = {rank: each for each in self._classes for rank in each.rows}
        for key in [key for key in self._since_s if key != _JOB]:
            self._ends(key)

    def _compare(self, sample: RankSample, now_s: float) -> None:
        each = self._class_of.get(sample.rank)
        if each is None or sample.compute_s is None:
            return
        if sample.rank in each.times:
            self._end_round(each, now_s)
        each.times[sample.rank] = sample.compute_s
        each.step = max(each.step, sample.step or 0)

    def _end_round(self, each: _Class, now_s: float) -> None:
        times = np.full(len(each.rows), np.nan)
        for rank, time_s in each.times.items():
            times[each.rows[rank]] = time_s
        each.times.clear()
        known = np.sort(times[np.isfinite(times) & (times > 0)])
        if len(known) > 1:
            each.ratios.append(times / known[(len(known) - 1) // 4])
        for found in each.peers.observe(each.step, times, at_s=now_s):
            if found.kind != "slow_rank_over":
                self._begins((id(each), found.nodes[0]), found, now_s)
        if self._found:
            slow = {self._nodes[rank] for rank in each.peers.accused}  # none, if all learn anew
            for key, found in self._found.items():
                if found.nodes and key == (id(each), found.nodes[0]) and found.nodes[0] not in slow:
                    self._ends(key)

    def _begins(self, key: Hashable, found: Evidence, now_s: float) -> None:
        self._found.keep(key, found)
        self._since_s.setdefault(key, now_s)

    def _ends(self, key: Hashable) -> None:
        self._found.drop(key)
        self._since_s.pop(key, None)
        self._accused.discard(key)

    def _judge_job(self, fresh: Sequence[RankSample], now_s: float) -> None:
        if not fresh:
            return
        step = max(each.step or 0 for each in fresh)
        if step <= self._job_step:
            return
        self._job_step = step
        if self._skip_job:
            self._skip_job = False
            return
        self._step_s = float(np.median([each.step_s or 0.0 for each in fresh]))
        work_s = max(each.compute_s or 0.0 for each in fresh)
        self._work_share = min(1.0, work_s / self._step_s) if self._step_s > 0 else 1.0
        self._recent_s.append(self._step_s)
        found = self._job.observe(step, self._step_s, at_s=now_s)
        if found is None:
            return
        if found.kind == "slow_job":
            self._begins(_JOB, found, now_s)
        else:
            self._ends(_JOB)

    def _told(self, now_s: float) -> list[Evidence]:
        told = []
        for key, kept in self._found.items():
            each = msgspec.structs.replace(kept, at_s=now_s)
            if key == _JOB and len(self._found) > 1:
                continue
            node = each.nodes[0] if each.nodes else max(self._waits, key=self._wait_of, default="")
            waits = self._waits.get(node)
            enough = 1.0 if key in self._accused else _EXPLAINS
            if waits is not None and waits.wait >= enough * self._work_share * _lost(each):
                self._since_s[key] = now_s + _EXPLAINED_LASTS_S
                if waits.foreign >= _FOREIGN_SHARE:
                    told.append(_contention(each, node, waits, now_s))
                continue
            holds_s = _JOB_HOLDS_S if key == _JOB else max(0.0, _RANK_HOLDS_S - _RANK_HOLDS_STEPS * self._step_s)
            if now_s - self._since_s[key] >= holds_s and self._still(key, each):
                self._accused.add(key)
                told.append(each)
        return told

    def _still(self, key: Hashable, each: Evidence) -> bool:
        """Whether what was found shows in the last times, too; its end is told later than it is seen."""
        if key == _JOB:
            usual_s = self._job.usual_s or 0.0
            return float(np.median(self._recent_s)) >= _STILL_SLOW * usual_s
        return self._class_of[each.ranks[0]].is_slow(each.ranks)

    def _wait_of(self, node: str) -> float:
        return self._waits[node].wait


def _lost(each: Evidence) -> float:
    """The share of the time that was lost: 1 - 1 / ratio, from the strength, which is (ratio - 1) against 5 %."""
    excess = 0.05 * each.strength / max(1e-9, 1 - each.strength)
    return excess / (1 + excess)


def _contention(each: Evidence, node: str, waits: _Waits, now_s: float) -> Evidence:
    """What was found is a neighbour's doing."""
    text = (
        f"{node}: processes that are not of this job take {waits.foreign:.1f} processors, ranks wait {waits.wait:.0%} "
        f"of the time for one, and {each.sentence}"
    )
    return Evidence(
        kind="contention",
        at_s=now_s,
        sentence=text,
        nodes=(node,),
        strength=each.strength,
        label=Label.CONTENTION,
        raw=each.raw,
    )
