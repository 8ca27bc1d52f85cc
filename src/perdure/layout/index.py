"""Find the boxes that touch a box without looking at all of them.

The boxes' own lower bounds make a coarse grid, fine only in the dims that are cut; every box is filed under each cell
that it reaches. Few boxes are simply searched in a row.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import product
from math import prod

from perdure.layout.box import Box

__all__ = ["BoxIndex"]

_FEW = 64


class BoxIndex:
    """An index over ``boxes`` (one ndim, any overlaps); it never changes after it is made.

    >>> BoxIndex([Box((0,), (4,)), Box((4,), (8,)), Box((5,), (5,))]).touching(Box((3,), (6,)))
    [0, 1]
    """

    __slots__ = ("_boxes", "_cells", "_edges")

    def __init__(self, boxes: Sequence[Box]) -> None:
        self._boxes = boxes
        self._edges: list[list[int]] = []
        self._cells: dict[tuple[int, ...], list[int]] = {}
        filled = [position for position, box in enumerate(boxes) if not box.empty]
        if len(filled) <= _FEW:
            return
        self._edges = _grid([boxes[position] for position in filled])
        for position in filled:
            for cell in product(*self._reach(boxes[position])):
                self._cells.setdefault(cell, []).append(position)

    def touching(self, box: Box) -> list[int]:
        """Positions of the boxes that have an element in common with ``box``, in rising order."""
        return [position for position in self._near(box) if self._boxes[position].touches(box)]

    def _near(self, box: Box) -> Iterable[int]:
        reach = self._reach(box) if self._cells and not box.empty else None
        if reach is None or prod(map(len, reach)) > len(self._boxes):
            return range(len(self._boxes))
        if prod(map(len, reach)) == 1:
            return self._cells.get(tuple(cells.start for cells in reach), [])
        return sorted({position for cell in product(*reach) for position in self._cells.get(cell, ())})

    def _reach(self, box: Box) -> list[range]:
        return [
            range(max(bisect_right(edges, low) - 1, 0), max(bisect_right(edges, high - 1), 1))
            for edges, low, high in zip(self._edges, box.lo, box.hi, strict=True)
        ]


def _grid(boxes: list[Box]) -> list[list[int]]:
    """For each dim the lower edges of its cells: about as many cells in all as there are boxes."""
    starts = [sorted(set(column)) for column in zip(*(box.lo for box in boxes), strict=True)]
    counts = [1] * len(starts)
    while prod(counts) < len(boxes):
        coarsest = max(range(len(starts)), key=lambda dim: len(starts[dim]) / counts[dim], default=None)
        if coarsest is None or counts[coarsest] >= len(starts[coarsest]):
            break
        counts[coarsest] = min(counts[coarsest] * 2, len(starts[coarsest]))
    return [
        [column[cell * len(column) // count] for cell in range(count)]
        for column, count in zip(starts, counts, strict=True)
    ]
