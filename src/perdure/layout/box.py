"""A box: the half-open block of a tensor that every plan and manifest speaks of.

Pure integers, no data. A box of no dims is a scalar (one element); a box that is zero wide in any dim is empty
and holds nothing, wherever it lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from operator import add, eq, le, sub

from perdure.errors import LayoutError

__all__ = ["Box"]


@dataclass(frozen=True, slots=True)
class Box:
    """The block ``lo <= index < hi`` of a tensor, in elements of the whole tensor.

    >>> Box((0, 4), (2, 8)) & Box((1, 0), (3, 6))
    Box(lo=(1, 4), hi=(2, 6))
    >>> print(Box((0, 4), (2, 8)), Box((), ()).size, Box((2,), (2,)).empty)
    [0:2, 4:8] 1 True

    Raises `LayoutError` if ``lo`` and ``hi`` differ in length, or if some ``hi`` lies below its ``lo``.
    """

    lo: tuple[int, ...]
    hi: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.lo) != len(self.hi):
            raise LayoutError(f"a box needs as many lower as upper bounds, not {self.lo} and {self.hi}")
        if not all(map(le, self.lo, self.hi)):
            raise LayoutError(f"a box must not end before it starts: {self.lo} to {self.hi}")

    @classmethod
    def whole(cls, shape: Sequence[int]) -> Box:
        """The box of a whole tensor of ``shape``."""
        return cls((0,) * len(shape), tuple(shape))

    @property
    def ndim(self) -> int:
        """How many dims the box has."""
        return len(self.lo)

    @property
    def shape(self) -> tuple[int, ...]:
        """The box's extent in each dim, in elements."""
        return tuple(map(sub, self.hi, self.lo))

    @property
    def size(self) -> int:
        """How many elements the box holds; 1 without dims."""
        return prod(map(sub, self.hi, self.lo))

    @property
    def empty(self) -> bool:
        """Whether the box holds no element."""
        return any(map(eq, self.lo, self.hi))

    def __str__(self) -> str:
        return f"[{', '.join(f'{low}:{high}' for low, high in zip(self.lo, self.hi, strict=True))}]"

    def __and__(self, other: Box) -> Box:
        """The elements that both boxes hold; an empty box (somewhere) if they hold none in common."""
        self._same_ndim(other)
        lo = tuple(map(max, self.lo, other.lo))
        return Box(lo, tuple(map(max, lo, map(min, self.hi, other.hi))))

    def __or__(self, other: Box) -> Box:
        """The smallest box around both; it may hold elements of neither. An empty box adds nothing."""
        self._same_ndim(other)
        if self.empty or other.empty:
            return other if self.empty else self
        return Box(tuple(map(min, self.lo, other.lo)), tuple(map(max, self.hi, other.hi)))

    def __contains__(self, other: object) -> bool:
        """Whether every element of the box ``other`` is in this one; an empty box is in every box of its ndim."""
        if not isinstance(other, Box) or other.ndim != self.ndim:
            return False
        return other.empty or self._surrounds(other)

    def touches(self, other: Box) -> bool:
        """Whether the two boxes have an element in common."""
        for low, high, other_low, other_high in zip(self.lo, self.hi, other.lo, other.hi, strict=True):
            if max(low, other_low) >= min(high, other_high):
                return False
        return True

    def shift(self, by: Sequence[int]) -> Box:
        """The box moved by ``by`` elements in each dim."""
        if len(by) != len(self.lo):
            raise LayoutError(f"a box of {self.ndim} dims cannot be moved by {tuple(by)}")
        return Box(tuple(map(add, self.lo, by)), tuple(map(add, self.hi, by)))

    def relative_to(self, outer: Box) -> Box:
        """The same elements, counted from the first element of ``outer``."""
        return self.shift(tuple(-low for low in outer.lo))

    def within(self, outer: Box) -> tuple[slice, ...]:
        """The slices that select this box from an array that holds exactly ``outer``.

        >>> Box((4, 2), (6, 3)).within(Box((4, 0), (8, 4)))
        (slice(0, 2, None), slice(2, 3, None))

        Raises `LayoutError` if the box leaves ``outer``.
        """
        self._same_ndim(outer)
        if not outer._surrounds(self):
            raise LayoutError(f"box {self} leaves {outer}", box=self.as_json(), outer=outer.as_json())
        return tuple(
            slice(low - start, high - start) for low, high, start in zip(self.lo, self.hi, outer.lo, strict=True)
        )

    def minus(self, other: Box) -> tuple[Box, ...]:
        """Disjoint, non-empty boxes (at most two a dim) that hold what this box holds and ``other`` does not.

        >>> [str(box) for box in Box((0, 0), (4, 4)).minus(Box((1, 0), (2, 3)))]
        ['[0:1, 0:4]', '[2:4, 0:4]', '[1:2, 3:4]']
        """
        common = self & other
        if common.empty:
            return () if self.empty else (self,)
        rest: list[Box] = []
        lo, hi = list(self.lo), list(self.hi)
        for dim, (start, stop) in enumerate(zip(common.lo, common.hi, strict=True)):
            if lo[dim] < start:
                rest.append(Box(tuple(lo), (*hi[:dim], start, *hi[dim + 1 :])))
            if stop < hi[dim]:
                rest.append(Box((*lo[:dim], stop, *lo[dim + 1 :]), tuple(hi)))
            lo[dim], hi[dim] = start, stop
        return tuple(rest)

    def as_json(self) -> list[list[int]]:
        """``[lo, hi]`` as plain JSON values, for the facts of an error or a manifest."""
        return [list(self.lo), list(self.hi)]

    def _surrounds(self, other: Box) -> bool:
        return all(map(int.__le__, self.lo, other.lo)) and all(map(int.__ge__, self.hi, other.hi))

    def _same_ndim(self, other: Box) -> None:
        if len(self.lo) != len(other.lo):
            raise LayoutError(f"boxes of {self.ndim} and {other.ndim} dims have nothing to do with each other")
