"""A tensor cut into a grid of even blocks, one a rank: a layout in a few numbers, whatever the number of ranks.

Most tensors of a parallel model lie like this, and many lie alike; so a manifest writes the grid once and refers to it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from perdure.errors import LayoutError
from perdure.layout.box import Box
from perdure.layout.cut import Even, Span

__all__ = ["EvenGrid"]

_BLOCKS = 1 << 24
_DIMS = 64
_FREE_STEPS = 1 << 12  # that looking for the blocks of some ranks may take whatever comes of it


@dataclass(frozen=True, slots=True)
class EvenGrid:
    """Dim ``d`` is cut into ``parts[d]`` blocks as `Even` cuts; block ``i`` is on rank ``first + sum(i * strides)``.

    A tensor that one rank holds whole has one part in each dim.

    >>> fsdp = EvenGrid(parts=(3, 1), first=0, strides=(1, 0))
    >>> [(rank, str(box)) for rank, box in fsdp.blocks((6, 2))]
    [(0, '[0:2, 0:2]'), (1, '[2:4, 0:2]'), (2, '[4:6, 0:2]')]
    """

    parts: tuple[int, ...]
    first: int
    strides: tuple[int, ...]

    def __post_init__(self) -> None:
        if max(len(self.parts), len(self.strides)) > _DIMS:  # before they are multiplied, or told
            raise LayoutError(f"a grid of {max(len(self.parts), len(self.strides))} dims; at most {_DIMS} can be read")
        if max(self.parts, default=1) > _BLOCKS or prod(self.parts) > _BLOCKS:
            raise LayoutError(f"a grid of more than {_BLOCKS} blocks is too large to be read")
        fits = len(self.parts) == len(self.strides) and min(self.parts, default=1) >= 1 and self.first >= 0
        if not fits or min(self.strides, default=0) < 0:
            raise LayoutError(f"this is no grid: parts {self.parts}, first rank {self.first}, strides {self.strides}")

    @property
    def last(self) -> int:
        """The highest rank that may hold a block."""
        return self.first + sum((n - 1) * stride for n, stride in zip(self.parts, self.strides, strict=True))

    def blocks(self, shape: Sequence[int]) -> Iterator[tuple[int, Box]]:
        """Each rank and its block of a tensor of ``shape``, row-major. Memory is bounded by the tensor's extents.

        Raises `LayoutError` if the grid has another number of dims, or parts without an element.
        """
        self.check_fit(shape)
        spans: list[list[Span]] = [
            [span for (span,) in Even().spans(extent, n)] for extent, n in zip(shape, self.parts, strict=True)
        ]
        for cell in product(*(range(len(each)) for each in spans)):
            lo = tuple(spans[dim][i][0] for dim, i in enumerate(cell))
            hi = tuple(spans[dim][i][1] for dim, i in enumerate(cell))
            yield self.first + sum(i * stride for i, stride in zip(cell, self.strides, strict=True)), Box(lo, hi)

    def blocks_of(self, shape: Sequence[int], ranks: Collection[int], *, most: int) -> list[tuple[int, Box]]:
        """The blocks that ``ranks`` hold, by rank and then row-major: without a look at the blocks of all others.

        Raises `LayoutError` as `blocks`, if there are more than ``most``, and for a grid so entangled that the work
        would not be bounded by them.

        >>> EvenGrid((4,), 0, (1,)).blocks_of((8,), {3}, most=1)
        [(3, Box(lo=(6,), hi=(8,)))]
        """
        self.check_fit(shape)
        wanted = sorted(ranks)
        steps = [-(-extent // n) for extent, n in zip(shape, self.parts, strict=True)]
        # Largest stride first: then what a choice leaves open is a short span of ranks, which mostly nobody wants.
        order = sorted(range(len(self.parts)), key=lambda dim: -self.strides[dim])
        reach = [0]  # how far the ranks go beyond what the dims before have chosen
        for dim in reversed(order):
            reach.append(reach[-1] + (self.parts[dim] - 1) * self.strides[dim])
        reach.reverse()
        found: list[tuple[int, Box]] = []
        left = _FREE_STEPS + 64 * len(self.parts) * (most + len(wanted))
        # A grid of one more dim, of one part, so that also the first rank is looked at before it counts.
        open_: list[tuple[int, tuple[int, ...]]] = [
            (self.first, ()) for _ in _choices(wanted, self.first, 0, 1, reach[0])
        ]
        while open_:
            rank, chosen = open_.pop()
            if len(chosen) == len(order):
                cell = dict(zip(order, chosen, strict=True))
                lo = tuple(cell[dim] * step for dim, step in enumerate(steps))
                found.append((rank, Box(lo, tuple(map(min, (a + b for a, b in zip(lo, steps, strict=True)), shape)))))
                if len(found) > most:
                    raise LayoutError(f"its ranks hold more than {most} blocks of the grid")
                continue
            dim = order[len(chosen)]
            for i in _choices(wanted, rank, self.strides[dim], self.parts[dim], reach[len(chosen) + 1]):
                left -= 1
                if left < 0:
                    raise LayoutError("the blocks of its ranks cannot be told from the grid in bounded time")
                open_.append((rank + i * self.strides[dim], (*chosen, i)))
        return sorted(found, key=lambda block: (block[0], block[1].lo))

    def check_fit(self, shape: Sequence[int]) -> None:
        """Raise `LayoutError` if the grid has another number of dims than ``shape``, or parts without an element."""
        if len(shape) != len(self.parts):
            raise LayoutError(f"a grid of {len(self.parts)} dims does not fit the shape {list(shape)[:_DIMS]}")
        for extent, n in zip(shape, self.parts, strict=True):
            if n > max(extent, 1) or (extent and -(-extent // n) * (n - 1) >= extent):
                raise LayoutError(f"{n} even parts of {extent} elements leave some empty; cut into fewer")

    @classmethod
    def of(cls, shape: Sequence[int], pieces: Sequence[tuple[int, Box]]) -> EvenGrid | None:
        """The grid whose blocks are exactly ``pieces`` (rank, box), in any order; None if there is none.

        >>> EvenGrid.of((6,), [(3, Box((2,), (4,))), (1, Box((0,), (2,))), (5, Box((4,), (6,)))])
        EvenGrid(parts=(3,), first=1, strides=(2,))
        """
        if not pieces:
            return None
        starts = [sorted({box.lo[dim] for _, box in pieces}) for dim in range(len(shape))]
        parts = tuple(len(each) for each in starts)
        if prod(parts) != len(pieces):
            return None
        at = {box.lo: rank for rank, box in pieces}
        origin = tuple(each[0] for each in starts)
        first = at.get(origin)
        if first is None:
            return None
        strides = []
        for dim, each in enumerate(starts):
            beside = at.get((*origin[:dim], each[1], *origin[dim + 1 :])) if len(each) > 1 else first
            if beside is None or beside < first:
                return None
            strides.append(beside - first)
        grid = cls(parts, first, tuple(strides))
        try:
            return grid if sorted(grid.blocks(shape), key=_order) == sorted(pieces, key=_order) else None
        except LayoutError:
            return None


def _choices(wanted: Sequence[int], rank: int, stride: int, n: int, reach: int) -> Iterator[int]:
    """Each ``i < n`` for which a wanted rank is in the ``reach`` from ``rank + i * stride`` on."""
    i = 0
    while i < n:
        at = bisect_left(wanted, rank + i * stride)
        if at == len(wanted):
            return
        if wanted[at] <= rank + i * stride + reach:
            yield i
            i += 1
        elif stride:
            i = -(-(wanted[at] - rank - reach) // stride)
        else:
            return


def _order(piece: tuple[int, Box]) -> tuple[tuple[int, ...], int]:
    return piece[1].lo, piece[0]
