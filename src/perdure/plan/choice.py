"""Choose among ranks that hold the same: the nearest, and among equally near ones whoever has sent the least so far.

Greedy and deterministic. A choice costs a step in a heap, however many replicas there are: loads only grow, so that an
entry of a heap whose load is no longer true is put back when it comes up.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heapreplace

__all__ = ["Choice", "Distance"]

Distance = Callable[[int, int], int]
"""``distance(source_rank, dest_rank)``: how far; less is nearer. It must answer the same on every rank, always."""


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
        ranks = self._near(ranks, dest)
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
