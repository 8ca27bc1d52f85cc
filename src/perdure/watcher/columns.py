"""What was last seen of every rank, as columns: the analyser's memory between two looks.

A look costs a few list comprehensions and some numpy, so that one core keeps up with tens of thousands of ranks.
``still_s`` is the heart of it: for how long a rank was *looked at* without any change of its step, phase or collective
numbers. Only looks that were on time count (as in `perdure.progress.lateness`): when a node, or whoever looks at it,
stood still, the time in between is nobody's, and the count of its ranks begins anew. Times of a node are subtracted
only from times of the same node. When a node itself is not heard of, the analyser's own clock says for how long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perdure.progress import Phase
from perdure.progress.lateness import LATE_LOOK_S
from perdure.watcher.samples import GroupState, RankSample

__all__ = ["Columns", "Floats", "Ints", "Mask"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

_PHASES: Mapping[str, int] = {phase.name.lower(): int(phase) for phase in Phase} | {
    "": int(Phase.FORWARD),
    "loading": int(Phase.FORWARD),
}
_STATES: Mapping[str, int] = {letter: ord(letter) for letter in "RSDTtZXIWKPx"} | {"": 0}
_NONE = -1
_NO_CODE = -(1 << 31)
_FRESH_S = 3.5
"""A rank whose newest look is older than this is not known now."""
_MOST_A_LOOK_S = 2.0
_FIRST_STEPS = 2
"""So many steps of a process are its first ones: they compile, connect and fill caches."""
_LOOKS_AT_CALLS = 10
"""A process that was seen to go on so often without a step has a loop whose steps nobody counts."""


class Columns:
    """One row a rank of ``ranks_of_nodes``; ``ranks[i]`` is the rank of row i. `look` takes what was seen."""

    def __init__(self, ranks_of_nodes: Mapping[str, Sequence[int]]) -> None:
        self.nodes: list[str] = list(ranks_of_nodes)
        self.ranks: list[int] = []
        self.row_of: dict[int, int] = {}
        node_of: list[int] = []
        for number, node in enumerate(self.nodes):
            for rank in ranks_of_nodes[node]:
                self.row_of[rank] = len(self.ranks)
                self.ranks.append(rank)
                node_of.append(number)
        self._node_number = {node: number for number, node in enumerate(self.nodes)}
        self.node_of: Ints = np.array(node_of, np.int64)
        n = len(self.ranks)

        def ints(fill: int) -> Ints:
            return np.full(n, fill, np.int64)

        def floats(fill: float = 0.0) -> Floats:
            return np.full(n, fill, np.float64)

        self.at_s = floats(-np.inf)
        self.heard_s = floats(-np.inf)
        self.pid, self.step, self.calls = ints(0), ints(_NONE), ints(0)
        self.own_steps = ints(_NONE)
        "Steps that this process has done, by its own count; -1 if it tells none."
        self.calls_looks = ints(0)
        "In how many looks its calls had gone on, in steps of which it has done none."
        self.from_step = ints(_NONE)
        "The step at which it was first seen: what counts for a process that tells no ``own_steps``."
        self.phase, self.beat, self.state = ints(int(Phase.ABSENT)), ints(0), ints(0)
        self.phase_s, self.allowed_s, self.beat_age_s = floats(), floats(np.nan), floats(np.nan)
        self.waits = ints(_NONE)
        "Whether its main thread waits in a collective: 1, 0, or -1 if that is not known."
        self.exit_code, self.exit_signal = ints(_NO_CODE), ints(_NONE)
        self.finished: Mask = np.zeros(n, bool)
        self.still_s, self.calls_still_s, self.beat_still_s, self.stopped_s = floats(), floats(), floats(), floats()
        self.phase_known: Mask = np.zeros(n, bool)
        self._forgiven: Mask = np.zeros(n, bool)
        self.gap_ended_s = floats(np.nan)
        "How long a rank among its later steps had been still when it went on, in the look just taken; NaN otherwise."
        self.own_phase_ended_s = floats(np.nan)
        self.phase_before = ints(int(Phase.ABSENT))
        self.done_phases = ints(0)
        "A bit for each phase that a rank has been through."
        self.groups: list[tuple[GroupState, ...]] = [()] * n
        self.last: list[RankSample | None] = [None] * n

    def __len__(self) -> int:
        return len(self.ranks)

    def node(self, row: int) -> str:
        """The node of a row."""
        return self.nodes[int(self.node_of[row])]

    def ranks_at(self, rows: Sequence[int] | Ints) -> tuple[int, ...]:
        """The ranks of some rows, in order."""
        return tuple(sorted(self.ranks[int(row)] for row in rows))

    def nodes_at(self, rows: Sequence[int] | Ints) -> tuple[str, ...]:
        """The nodes of some rows, each once, in order."""
        return tuple(sorted({self.node(int(row)) for row in rows}))

    def look(self, samples: Sequence[RankSample], now_s: float) -> None:
        """Take the newest samples; a rank that is not of this job as it is now is added to it."""
        self.gap_ended_s[:] = np.nan
        self.own_phase_ended_s[:] = np.nan
        if not samples:
            return
        self._admit(samples)
        newest = {sample.rank: sample for sample in samples}
        some = list(newest.values()) if len(newest) < len(samples) else list(samples)
        rows: Ints = np.array([self.row_of[s.rank] for s in some], np.int64)
        at_s = np.array([s.at_s for s in some], np.float64)
        pid = np.array([s.pid for s in some], np.int64)
        numbers = self._node_number
        node = np.array([numbers[s.node] for s in some], np.int64)
        anew = (self.pid[rows] != pid) | (self.node_of[rows] != node) | ~np.isfinite(self.at_s[rows])
        self.node_of[rows] = node
        gap = np.where(anew, 0.0, at_s - np.where(np.isfinite(self.at_s[rows]), self.at_s[rows], 0.0))
        news = anew | (gap > 0)  # the same look told again is no look
        if not news.all():
            keep = np.flatnonzero(news)
            some = [some[i] for i in keep]
            rows, at_s, pid, anew, gap = rows[keep], at_s[keep], pid[keep], anew[keep], gap[keep]
            if not some:
                return
        self._take(some, rows, at_s, pid, anew, gap, now_s)

    def _admit(self, samples: Sequence[RankSample]) -> None:
        strangers = [s for s in samples if s.rank not in self.row_of or s.node not in self._node_number]
        if not strangers:
            return
        by_node: dict[str, list[int]] = {node: [] for node in self.nodes}
        for row, rank in enumerate(self.ranks):
            by_node[self.node(row)].append(rank)
        for sample in strangers:
            by_node.setdefault(sample.node, [])
            if sample.rank not in self.row_of:
                by_node[sample.node].append(sample.rank)
                self.row_of[sample.rank] = _NONE
        grown = Columns(by_node)
        rows = np.array([grown.row_of[rank] for rank in self.ranks], np.int64)
        for name, column in vars(self).items():
            if isinstance(column, np.ndarray) and name != "node_of":
                getattr(grown, name)[rows] = column
        for old, new in enumerate(rows):
            grown.groups[new], grown.last[new] = self.groups[old], self.last[old]
        for name, value in vars(grown).items():
            setattr(self, name, value)

    def _take(
        self, some: list[RankSample], rows: Ints, at_s: Floats, pid: Ints, anew: Mask, gap: Floats, now_s: float
    ) -> None:
        def ints(values: list[Any]) -> Ints:
            return np.array(values, np.int64)

        step = ints([_NONE if s.step is None else s.step for s in some])
        own_steps = ints([_NONE if s.own_steps is None else s.own_steps for s in some])
        phase = ints([_PHASES.get(s.phase, 1) for s in some])
        # Steps are told at once, a phase by the next beat, which never comes from who has been stopped.
        phase = np.where((phase == Phase.STARTING) & (own_steps > 0), int(Phase.FORWARD), phase)
        calls = ints([sum([g.enqueued + g.completed for g in s.groups]) for s in some])
        told = np.array([bool(s.groups) for s in some], bool)
        beat = ints([s.beat for s in some])
        state = ints([_STATES.get(s.state, 0) for s in some])
        calls = np.where(told | anew, calls, self.calls[rows])

        called = anew | (calls != self.calls[rows])
        went_on = called | (step != self.step[rows]) | (phase != self.phase[rows])
        on_time = gap <= LATE_LOOK_S
        counts = np.where(on_time, gap, np.where(self._forgiven[rows], LATE_LOOK_S, 0.0))
        anew_count = ~on_time & ~self._forgiven[rows]
        self._forgiven[rows] = ~went_on & (self._forgiven[rows] | anew_count)

        # Of a rank that was in its first steps at the look before, the gap was a compilation.
        moved = went_on & ~anew & on_time & (self.phase[rows] == phase) & ~self.at_first[rows]
        self.gap_ended_s[rows[moved]] = self.still_s[rows[moved]]
        left = ~anew & (self.phase[rows] != phase)
        self.own_phase_ended_s[rows[left]] = self.still_s[rows[left]]
        self.phase_before[rows] = np.where(anew, phase, self.phase[rows])
        self.done_phases[rows] = np.where(anew, 0, self.done_phases[rows])
        self.done_phases[rows[left]] |= 1 << self.phase[rows[left]]

        over = self.ended[rows] & ~anew  # who has ended keeps what it had when it did

        def count(column: Floats, holds: Mask, most_s: float = np.inf) -> None:
            counted = np.where(holds & ~anew_count, column[rows] + np.minimum(counts, most_s), 0.0)
            column[rows] = np.where(over, column[rows], counted)

        count(self.still_s, ~went_on)
        count(self.calls_still_s, ~called)
        # One look alone, however late, proves nobody dumb.
        count(self.beat_still_s, ~anew & (beat > 0) & (beat == self.beat[rows]), _MOST_A_LOOK_S)
        stopped_before = (self.state[rows] == ord("T")) | (self.state[rows] == ord("t"))
        stopped = (state == ord("T")) | (state == ord("t"))
        count(self.stopped_s, ~anew & stopped_before & stopped, _MOST_A_LOOK_S)

        before = self.phase[rows]
        starts = anew | (before == Phase.STARTING) | (before == Phase.RESTORING) | (before == Phase.ABSENT)
        self.from_step[rows] = np.where(starts, step, self.from_step[rows])  # what is restored sets it
        self.own_steps[rows] = own_steps
        in_steps = (phase == Phase.FORWARD) | (phase == Phase.STEP)
        goes_on = np.where(anew, 0, self.calls_looks[rows] + (called & in_steps & (own_steps == 0)))
        self.calls_looks[rows] = goes_on
        self.pid[rows], self.step[rows], self.phase[rows], self.calls[rows] = pid, step, phase, calls
        self.beat[rows], self.state[rows], self.at_s[rows], self.heard_s[rows] = beat, state, at_s, now_s
        self.phase_known[rows] = [bool(s.phase) for s in some]
        self.phase_s[rows] = [s.phase_s for s in some]
        self.allowed_s[rows] = [np.nan if s.phase_allowed_s is None else s.phase_allowed_s for s in some]
        self.beat_age_s[rows] = [np.nan if s.beat_age_s is None else s.beat_age_s for s in some]
        self.waits[rows] = [_NONE if s.in_collective is None else int(s.in_collective) for s in some]
        self.exit_code[rows] = [_NO_CODE if s.exit_code is None else s.exit_code for s in some]
        self.exit_signal[rows] = [_NONE if s.exit_signal is None else s.exit_signal for s in some]
        self.finished[rows] = [s.finished or s.phase == "finished" for s in some]
        for row, sample in zip(rows.tolist(), some, strict=True):
            self.last[row] = sample
            if sample.groups:
                self.groups[row] = sample.groups
        some_of = dict(zip(rows[anew].tolist(), [s for s, new in zip(some, anew, strict=True) if new], strict=True))
        for row in some_of:
            self.groups[row] = some_of[row].groups

    # What follows from the columns.

    @property
    def seen(self) -> Mask:
        """Ranks of which anything was ever seen."""
        return np.isfinite(self.at_s)

    @property
    def zombie(self) -> Mask:
        """Ranks whose process is gone and was not waited for."""
        gone: Mask = (self.state == ord("Z")) | (self.state == ord("X")) | (self.state == ord("x"))
        return gone

    @property
    def ended(self) -> Mask:
        """Ranks whose process is gone."""
        gone: Mask = (self.exit_code != _NO_CODE) | (self.exit_signal != _NONE) | self.zombie
        return gone

    @property
    def ended_badly(self) -> Mask:
        """Ranks that ended with a signal or a code other than 0."""
        bad: Mask = (self.exit_signal > 0) | ((self.exit_code != _NO_CODE) & (self.exit_code != 0))
        return bad

    @property
    def left(self) -> Mask:
        """Ranks that are done, by what they said or by exit code 0."""
        done: Mask = (self.finished | (self.exit_code == 0)) & ~self.ended_badly
        return done

    def fresh(self, now_s: float) -> Mask:
        """Ranks that were heard of lately enough to say what they do now."""
        heard: Mask = now_s - self.heard_s <= _FRESH_S
        return heard

    def alive(self, now_s: float) -> Mask:
        """Ranks that are known to be at work now."""
        at_work: Mask = self.fresh(now_s) & ~self.ended & ~self.finished & (self.phase != Phase.ABSENT)
        return at_work

    @property
    def in_steps(self) -> Mask:
        """Ranks in a phase in which a rank may wait for others."""
        waiting: Mask = (self.phase == Phase.FORWARD) | (self.phase == Phase.STEP)
        return waiting

    @property
    def stopped(self) -> Mask:
        """Ranks whose process is stopped or traced (state T or t)."""
        still: Mask = (self.state == ord("T")) | (self.state == ord("t"))
        return still

    @property
    def at_first(self) -> Mask:
        """Ranks in the first of their steps, or in a phase for the first time.

        A process that counts its steps is believed, whoever looks and since when. Only of one that does not (a log, an
        exporter) do the steps count that were seen.
        """
        counted = self.own_steps >= 0
        own = (self.own_steps < _FIRST_STEPS) & (self.calls_looks < _LOOKS_AT_CALLS)
        few = (self.step >= 0) & (self.step < self.from_step + _FIRST_STEPS)
        unknown = (self.step < 0) & (self.calls == 0)
        of_steps = np.where(counted, own, few | unknown)
        again = (self.done_phases >> np.clip(self.phase, 0, 60)) & 1
        first: Mask = np.where(self.in_steps, of_steps, again == 0)
        return first
