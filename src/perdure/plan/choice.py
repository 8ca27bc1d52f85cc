"""Choose among ranks that hold the same: the nearest, and among equally near ones whoever has sent the least so far.

Greedy and deterministic. One choice is a step in a heap, however many replicas there are: loads only grow, so that an
entry whose load is no longer true is put back when it comes up. Many choices of one size are made at once: a holder of
load L would be taken when the least load is L, L + size, L + 2 size ..., so the first of all these times, in order, are
what one choice after the other would have found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heapreplace

import numpy as np

__all__ = ["Choice", "Distance"]

Distance = Callable[[int, int], int]
"""``distance(source_rank, dest_rank)``: how far; less is nearer. It must answer the same on every rank, always."""

_MANY = 16


class Choice:
    """The choices of one plan, and the bytes that each rank has been given to send by them."""

    def __init__(self, distance: Distance | None) -> None:
        self._distance = distance
        self._load: dict[int, int] = {}
        self._heaps: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        self._nearest: dict[tuple[tuple[int, ...], int], tuple[int, ...]] = {}

    def take(self, source: int, dest: int, nbytes: int) -> None:
        """``source`` sends ``nbytes`` to ``dest``; what stays on a rank is no load."""
        if source != dest:
            self._load[source] = self._load.get(source, 0) + nbytes

    def among(self, ranks: tuple[int, ...], dest: int, nbytes: int) -> int:
        """Which of ``ranks``, of which ``dest`` is none, sends ``nbytes`` to ``dest``."""
        if len(ranks) == 1:
            self.take(ranks[0], dest, nbytes)
            return ranks[0]
        return self._least(self._near(ranks, dest), nbytes)

    def among_each(self, ranks: tuple[int, ...], dests: Sequence[int], nbytes: int) -> list[int]:
        """As `among` for each of ``dests`` in turn, where equally near ones are taken together."""
        if self._distance is None or len(ranks) == 1:
            return self._least_each(ranks, len(dests), nbytes)
        by_near: dict[tuple[int, ...], list[int]] = {}
        for number, dest in enumerate(dests):
            by_near.setdefault(self._near(ranks, dest), []).append(number)
        found = [0] * len(dests)
        for near, numbers in by_near.items():
            for number, rank in zip(numbers, self._least_each(near, len(numbers), nbytes), strict=True):
                found[number] = rank
        return found

    def _least(self, ranks: tuple[int, ...], nbytes: int) -> int:
        heap = self._heaps.get(ranks)
        if heap is None:
            heap = self._heaps[ranks] = [(self._load.get(rank, 0), rank) for rank in ranks]
            heapify(heap)
        while True:
            load, rank = heap[0]
            now = self._load.get(rank, 0)
            if now == load:
                self._load[rank] = load + nbytes
                heapreplace(heap, (load + nbytes, rank))
                return rank
            heapreplace(heap, (now, rank))

    def _least_each(self, ranks: tuple[int, ...], count: int, nbytes: int) -> list[int]:
        if count < _MANY:
            return [self._least(ranks, nbytes) for _ in range(count)]
        loads = np.fromiter((self._load.get(rank, 0) for rank in ranks), np.int64, len(ranks))
        # As water that is poured over the loads: up to its level, and no higher, somebody is taken.
        filled = count * nbytes + np.cumsum(np.sort(loads))
        level = int((filled // np.arange(1, len(ranks) + 1)).min()) + 1
        low = np.flatnonzero(loads <= level)
        most = min(count, (level - int(loads.min())) // nbytes + 1)
        times = (loads[low, None] + nbytes * np.arange(most)).ravel()
        chosen = np.argsort(times, kind="stable")[:count] // most  # at equal times the lower rank
        for at, n in enumerate(np.bincount(chosen).tolist()):
            holder = ranks[low[at]]
            self._load[holder] = self._load.get(holder, 0) + n * nbytes
        return [ranks[at] for at in low[chosen].tolist()]

    def score(self, source: int, dest: int) -> tuple[int, int, int]:
        """How good ``source`` is for ``dest`` just now: less is better. Nobody is nearer than the rank itself."""
        if source == dest:
            return (-1, 0, source)
        return (self._far(source, dest), self._load.get(source, 0), source)

    def _far(self, source: int, dest: int) -> int:
        return 1 if self._distance is None else max(self._distance(source, dest), 0)

    def _near(self, ranks: tuple[int, ...], dest: int) -> tuple[int, ...]:
        if self._distance is None:
            return ranks
        found = self._nearest.get((ranks, dest))
        if found is None:
            far = [self._far(rank, dest) for rank in ranks]
            least = min(far)
            found = tuple(rank for rank, each in zip(ranks, far, strict=True) if each == least)
            self._nearest[ranks, dest] = found
        return found
