"""A tensor cut into a grid of even blocks, one a rank: a layout in a few numbers, whatever the number of ranks.

Most tensors of a parallel model lie like this, and many lie alike; so a manifest writes the grid once and refers to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from perdure.errors import LayoutError
from perdure.layout.box import Box
from perdure.layout.cut import Even, Span

__all__ = ["EvenGrid"]

_BLOCKS = 1 << 24


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
        if prod(self.parts) > _BLOCKS:
            raise LayoutError(f"a grid of {prod(self.parts)} blocks is too large; at most {_BLOCKS} can be read")
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
        if len(shape) != len(self.parts):
            raise LayoutError(f"a grid of {len(self.parts)} dims does not fit the shape {list(shape)}")
        spans: list[list[Span]] = []
        for extent, n in zip(shape, self.parts, strict=True):
            if n > max(extent, 1) or (extent and -(-extent // n) * (n - 1) >= extent):
                raise LayoutError(f"{n} even parts of {extent} elements leave some empty; cut into fewer")
            spans.append([span for (span,) in Even().spans(extent, n)])
        for cell in product(*(range(len(each)) for each in spans)):
            lo = tuple(spans[dim][i][0] for dim, i in enumerate(cell))
            hi = tuple(spans[dim][i][1] for dim, i in enumerate(cell))
            yield self.first + sum(i * stride for i, stride in zip(cell, self.strides, strict=True)), Box(lo, hi)

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


def _order(piece: tuple[int, Box]) -> tuple[tuple[int, ...], int]:
    return piece[1].lo, piece[0]
