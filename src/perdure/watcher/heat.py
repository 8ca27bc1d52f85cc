"""What ranks did over time, in a space that does not grow: the data of the heat map. Pure.

Of each rank a look keeps three small numbers:

* the *ratio*: its own time in a step (without waiting for others) over the median of that of its peers. Waiting evens
  out the time of a step on all ranks; own time does not, and whoever is slow stands out in it.
* what it was *doing* (`Doing`), the gravest of what was seen.
* its *waiting share*: of its step, the part in which it waited for others. The slow one waits least.

Two maps have at most `COLUMNS` columns: the *recent* one has one a second and forgets; the *whole* one doubles the time
of its columns whenever it is full, so it always spans the run. With more than `ROWS` ranks a row is a node, and with
more nodes a block of 2, 4, ... of them; where cells are joined the highest ratio, the gravest doing, the least waiting
of ranks, and the mean waiting over time stay.
"""

from __future__ import annotations

import base64
import enum
import math
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from perdure.watcher.equals import LEAST_STEPS, Counts, counts_of, equals
from perdure.watcher.samples import RankSample

__all__ = ["COLUMNS", "ROWS", "Doing", "Heat", "HeatMap", "HeatRecord", "HeatRow", "Now", "cells_of", "doing_of"]

COLUMNS: Final = 600
ROWS: Final = 512
_ONE: Final = 128
_OCTAVE: Final = 48
"A ratio r is kept as 128 + 48 log2(r), 1 to 255: to 1.5 %, from a sixth to six times; 0 is not known."
_SILENT_S: Final = 3.5
_MOST_WORST: Final = 16
_KNOWN_S: Final = 60.0
_AGAIN_S: Final = 30.0

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Doing(enum.IntEnum):
    """What a rank does, the gravest last. In a cell ``WAITS`` means that it did nothing but wait."""

    UNKNOWN = 0
    FINISHED = 1
    WAITS = 2
    WORKS = 3
    STARTS = 4
    EVALUATES = 5
    SAVES = 6
    LOADS = 7
    IN_KERNEL = 8
    SILENT = 9
    STOPPED = 10
    GONE = 11


_BY_PHASE: Final = {
    "starting": Doing.STARTS,
    "restoring": Doing.STARTS,
    "closing": Doing.STARTS,
    "evaluating": Doing.EVALUATES,
    "copying": Doing.SAVES,
    "saving": Doing.SAVES,
    "loading": Doing.LOADS,
    "finished": Doing.FINISHED,
}


def doing_of(sample: RankSample) -> Doing:
    """What a rank does, as one word.

    >>> doing_of(RankSample(rank=0, node="a", at_s=0.0, state="T"))
    <Doing.STOPPED: 10>
    """
    if sample.finished:
        return Doing.FINISHED
    if sample.ended or sample.state in ("X", "Z"):
        return Doing.GONE
    if sample.state in ("T", "t"):
        return Doing.STOPPED
    if sample.beat and sample.beat_age_s is not None and sample.beat_age_s > _SILENT_S:
        return Doing.SILENT
    if sample.state == "D":
        return Doing.IN_KERNEL
    known = _BY_PHASE.get(sample.phase)
    if known is not None:
        return known
    return Doing.WAITS if sample.in_collective else Doing.WORKS


class HeatRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a map. ``node`` of a rank is where it ran last."""

    name: str
    node: str = ""


class HeatMap(msgspec.Struct, frozen=True, kw_only=True):
    """One map. Column c spans ``every_s`` seconds from ``first_s + c * every_s`` on the clock of who has recorded it.

    ``cells`` are zlib in base64: the ratios row by row, then what was doing, then waiting (0 not known, else 1 + %).
    """

    every_s: float
    first_s: float
    columns: int
    cells: str


class Now(msgspec.Struct, frozen=True, kw_only=True):
    """A rank as it was last. ``ratio`` and ``waits`` are None where they are not known."""

    rank: int
    node: str
    doing: str
    at_s: float
    step: int | None = None
    step_s: float | None = None
    ratio: float | None = None
    waits: float | None = None


class HeatRecord(msgspec.Struct, frozen=True, kw_only=True):
    """All that is kept. ``now_s`` (CLOCK_MONOTONIC) and ``wall_s`` (since 1970) are the same moment."""

    job: str
    now_s: float
    wall_s: float
    ranks: int
    rows_are: str
    "``rank``, ``node`` or ``nodes``"
    rows: tuple[HeatRow, ...]
    recent: HeatMap
    whole: HeatMap
    worst: tuple[Now, ...] = ()
    "Those of the last look that stand out most: by what they do, then by their ratio."
    doings: tuple[str, ...] = tuple(each.name.lower() for each in Doing)
    form: int = 1


class _Map:
    """``cells[kind, row, column]``; column 0 is slot ``first``, a slot being ``every_s`` long."""

    def __init__(self, every_s: float, columns: int) -> None:
        self.every_s, self.first, self.used = every_s, 0, 0
        self.cells: Bytes = np.zeros((3, 0, columns), np.uint8)

    def regroup(self, into: Ints, rows: int) -> None:
        """Row r becomes part of row ``into[r]`` of ``rows``."""
        _, _, columns = self.cells.shape
        old, new = self.cells, np.zeros((3, rows, columns), np.uint8)
        for kind in (0, 1):
            np.maximum.at(new[kind], into, old[kind])
        new[2] = 255
        np.minimum.at(new[2], into, np.where(old[2] == 0, 255, old[2]).astype(np.uint8))
        new[2][new[2] == 255] = 0
        self.cells = new

    def put(self, seen: Bytes, at_s: float, make_room: Callable[[_Map, int], None]) -> None:
        """Join ``seen[kind, row]`` into the column of ``at_s`` seconds since the beginning."""
        columns = self.cells.shape[2]
        while (column := int(at_s // self.every_s) - self.first) >= columns:
            make_room(self, column)
        if column < 0:
            return
        self.cells[:, :, column] = _joined(self.cells[:, :, column], seen)
        self.used = max(self.used, column + 1)


def _joined(one: Bytes, other: Bytes) -> Bytes:
    """Cells of the same rows at two times, as one; axis 0 is the kind."""
    joined: Bytes = np.maximum(one, other)
    both = (one[2] > 0) & (other[2] > 0)
    mean = (one[2].astype(np.int64) + other[2] + 1) // 2
    joined[2] = np.where(both, mean, joined[2])
    return joined


def _forget(heat: _Map, column: int) -> None:
    """Forget the oldest tenth, or as much as it takes."""
    columns = heat.cells.shape[2]
    by = max(columns // 10, column - columns + 1)
    kept = heat.cells[:, :, by:]
    heat.cells = np.concatenate([kept, np.zeros((*kept.shape[:2], columns - kept.shape[2]), np.uint8)], axis=2)
    heat.first += by
    heat.used = max(0, heat.used - by)


def _halve(heat: _Map, column: int) -> None:
    """Make columns twice as long."""
    pairs = _joined(heat.cells[:, :, 0::2], heat.cells[:, :, 1::2])
    heat.cells = np.concatenate([pairs, np.zeros_like(pairs)], axis=2)
    heat.every_s *= 2
    heat.used = (heat.used + 1) // 2


class Heat:
    """Keeps the two maps of one job. Peers are ranks that do equal work (`perdure.watcher.equals`); until that is
    known, those whose parameters are replicas.

    Costs O(ranks) a look, and at most 2 x 3 x ``rows`` x ``columns`` bytes; ``columns`` must be even.
    """

    def __init__(
        self,
        *,
        job: str = "",
        rows: int = ROWS,
        columns: int = COLUMNS,
    ) -> None:
        self.job, self._most_rows = job, rows
        self._recent, self._whole = _Map(1.0, columns), _Map(1.0, columns)
        self._began_s: float | None = None
        self._rank_at: dict[int, int] = {}
        self._node_at: dict[str, int] = {}
        self._where: dict[int, str] = {}
        self._block = 0
        "Nodes in a row; 0 while rows are ranks."
        self._newest: dict[int, RankSample] = {}
        self._before: Counts = {}
        self._class_of: dict[int, int] | None = None
        self._again_s = -math.inf
        self.now: dict[int, Now] = {}
        "Each rank as it was last; those that are not seen any more are left out after a while."

    def feed(self, samples: Sequence[RankSample], *, now_s: float) -> None:
        """Take a look at some or all ranks; ``now_s`` is CLOCK_MONOTONIC of whoever records."""
        if not samples:
            return
        if self._began_s is None:
            self._began_s = now_s
        doing = [doing_of(each) for each in samples]
        self._compare(samples, now_s)
        ratio, waits = self._numbers(samples, doing)
        for each, what, own, wait in zip(samples, doing, ratio.tolist(), waits.tolist(), strict=True):
            self._where[each.rank] = each.node
            self.now[each.rank] = Now(
                rank=each.rank, node=each.node, doing=what.name.lower(), at_s=now_s, step=each.step, step_s=each.step_s,
                ratio=None if math.isnan(own) else own, waits=None if math.isnan(wait) else wait,
            )  # fmt: skip
        for rank in [rank for rank, now in self.now.items() if now_s - now.at_s > _KNOWN_S]:
            del self.now[rank]
            self._newest.pop(rank, None)
        self._make_rows(samples)
        at = self._rows_of(samples)
        seen = np.zeros((3, self._n_rows()), np.uint8)
        np.maximum.at(seen[0], at, _ratio_bytes(ratio))
        np.maximum.at(seen[1], at, np.array([int(each) for each in doing], np.uint8))
        seen[2] = 255
        np.minimum.at(seen[2], at, np.where(np.isnan(waits), 255, 1 + np.rint(100 * np.nan_to_num(waits))).astype("u1"))
        seen[2][seen[2] == 255] = 0
        self._recent.put(seen, now_s - self._began_s, _forget)
        self._whole.put(seen, now_s - self._began_s, _halve)

    def _compare(self, samples: Sequence[RankSample], now_s: float) -> None:
        """Find out again who does equal work, now and then."""
        self._newest.update((each.rank, each) for each in samples)
        if now_s < self._again_s:
            return
        alive = [each for each in self._newest.values() if not each.ended and each.step is not None]
        done = [(each.step or 0) - self._before[each.rank][0] for each in alive if each.rank in self._before]
        if not done or min(done) < 0:
            self._before = counts_of(alive)
        elif min(done) >= LEAST_STEPS:
            found = equals(self._before, alive)
            self._class_of = {rank: number for number, ranks in enumerate(found) for rank in ranks}
            self._before, self._again_s = {}, now_s + _AGAIN_S

    def _numbers(self, samples: Sequence[RankSample], doing: Sequence[Doing]) -> tuple[Floats, Floats]:
        """Ratios and waiting shares, NaN where they are not known."""
        own = np.array([_positive(each.compute_s) for each in samples], np.float64)
        step = np.array([_positive(each.step_s) for each in samples], np.float64)
        wait = np.array([math.nan if each.wait_s is None else each.wait_s for each in samples], np.float64)
        own[[i for i, what in enumerate(doing) if what in (Doing.GONE, Doing.FINISHED, Doing.STARTS)]] = math.nan
        ratio = np.full(len(samples), math.nan)
        groups: dict[int | str, list[int]] = {}
        for i, each in enumerate(samples):
            if self._class_of is None:
                groups.setdefault(each.replicas, []).append(i)
            elif each.rank in self._class_of:
                groups.setdefault(self._class_of[each.rank], []).append(i)
        for members in groups.values():
            some = np.array(members)
            some = some[np.isfinite(own[some])]
            if len(some) > 1:
                ratio[some] = own[some] / _median_of_others(own[some])
        return ratio, np.clip(wait / step, 0.0, 1.0)

    def _make_rows(self, samples: Iterable[RankSample]) -> None:
        for each in samples:
            self._rank_at.setdefault(each.rank, len(self._rank_at))
            self._node_at.setdefault(each.node, len(self._node_at))
        if self._block == 0 and len(self._rank_at) > self._most_rows:
            self._block = 1
            node_of = [self._node_at[self._where[rank]] for rank in self._rank_at]
            self._regroup(np.array(node_of[: self._recent.cells.shape[1]], np.int64), len(self._node_at))
        while self._block and -(-len(self._node_at) // self._block) > self._most_rows:
            self._block *= 2
            rows = self._recent.cells.shape[1]
            self._regroup(np.arange(rows) // 2, -(-rows // 2))
        if self._recent.cells.shape[1] < self._n_rows():
            self._regroup(np.arange(self._recent.cells.shape[1]), self._n_rows())

    def _regroup(self, into: Ints, rows: int) -> None:
        for each in (self._recent, self._whole):
            each.regroup(into, rows)

    def _n_rows(self) -> int:
        return -(-len(self._node_at) // self._block) if self._block else len(self._rank_at)

    def _rows_of(self, samples: Sequence[RankSample]) -> Ints:
        if self._block:
            return np.array([self._node_at[each.node] // self._block for each in samples], np.int64)
        return np.array([self._rank_at[each.rank] for each in samples], np.int64)

    def strip(self, rank: int, columns: int) -> list[float | None]:
        """The ratios of the row of ``rank`` in the last ``columns`` seconds, oldest first."""
        row = self._node_at[self._where[rank]] // self._block if self._block else self._rank_at[rank]
        last = self._recent.cells[0, row, max(0, self._recent.used - columns) : self._recent.used]
        return [None if byte == 0 else 2 ** ((int(byte) - _ONE) / _OCTAVE) for byte in last]

    def worst(self, most: int = _MOST_WORST) -> tuple[Now, ...]:
        """The ranks that stand out most now."""
        grave = int(Doing.LOADS)

        def key(now: Now) -> tuple[int, float, int]:
            doing = int(Doing[now.doing.upper()])
            return (-doing if doing >= grave else 0, -(now.ratio or 0.0), now.rank)

        return tuple(sorted(self.now.values(), key=key)[:most])

    def record(self, *, now_s: float, wall_s: float) -> HeatRecord:
        """All that is kept, as it is ``now_s``, which is ``wall_s`` in seconds since 1970."""
        order: Ints = np.arange(self._n_rows())
        if self._block:
            names = list(self._node_at)
            blocks = [names[i : i + self._block] for i in range(0, len(names), self._block)]
            rows = tuple(HeatRow(name=b[0] if len(b) == 1 else f"{b[0]} to {b[-1]}", node=b[0]) for b in blocks)
        else:
            ranks = sorted(self._rank_at)
            order = np.array([self._rank_at[rank] for rank in ranks], np.int64)
            rows = tuple(HeatRow(name=f"rank {rank}", node=self._where[rank]) for rank in ranks)
        return HeatRecord(
            job=self.job,
            now_s=now_s,
            wall_s=wall_s,
            ranks=len(self._rank_at),
            rows_are=("rank", "node")[self._block] if self._block < 2 else "nodes",
            rows=rows,
            recent=self._drawn(self._recent, order),
            whole=self._drawn(self._whole, order),
            worst=self.worst(),
        )

    def _drawn(self, heat: _Map, order: Ints) -> HeatMap:
        return HeatMap(
            every_s=heat.every_s,
            first_s=(self._began_s or 0.0) + heat.first * heat.every_s,
            columns=heat.used,
            cells=base64.b64encode(zlib.compress(heat.cells[:, order, : heat.used].tobytes(), 1)).decode(),
        )


def cells_of(heat: HeatMap, rows: int) -> Bytes:
    """``cells[kind, row, column]`` of a map with that many rows."""
    raw = zlib.decompress(base64.b64decode(heat.cells))
    return np.frombuffer(raw, np.uint8).reshape(3, rows, heat.columns)


def _positive(value: float | None) -> float:
    return value if value is not None and value > 0 else math.nan


def _median_of_others(values: Floats) -> Floats:
    """For each of n > 1 values the median of the n - 1 others."""
    n = len(values)
    order = np.argsort(values, kind="stable")
    place = np.empty(n, np.int64)
    place[order] = np.arange(n)
    in_order = values[order]

    def other(k: int) -> Floats:
        """The k-th of the others."""
        found: Floats = in_order[np.where(place > k, k, k + 1)]
        return found

    return other((n - 2) // 2) if n % 2 == 0 else (other((n - 3) // 2) + other((n - 1) // 2)) / 2


def _ratio_bytes(ratio: Floats) -> Bytes:
    known = np.isfinite(ratio) & (ratio > 0)
    steps = np.rint(_ONE + _OCTAVE * np.log2(np.where(known, ratio, 1.0)))
    return np.where(known, np.clip(steps, 1, 255), 0).astype(np.uint8)
