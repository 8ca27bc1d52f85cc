"""The pattern that cuts along the axes of a mesh make: a rule for each dim, whatever the number of ranks.

A dim has as many *shares* as the axes that cut it have coordinates; a share is the spans that it holds. A rank has one
share of each dim, so its boxes, and the ranks of a box, are found dim by dim. Axes that cut nothing hold replicas.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import product
from math import prod
from typing import NamedTuple

from perdure.errors import LayoutError
from perdure.layout.box import Box
from perdure.layout.cut import Cut, Even, Span
from perdure.layout.even_grid import EvenGrid
from perdure.layout.mesh import Mesh
from perdure.layout.pattern import Holding, Pattern
from perdure.layout.piece import Piece

__all__ = ["Axis", "CutDim", "CutPattern", "cut_pattern", "grid_pattern"]


class Axis(NamedTuple):
    """``size`` coordinates whose ranks lie ``stride`` apart."""

    size: int
    stride: int


class CutDim:
    """The ``shares`` of one dim along ``axes``, the slowest first: the spans that each holds, row-major."""

    def __init__(self, axes: tuple[Axis, ...], shares: tuple[tuple[Span, ...], ...]) -> None:
        self.axes, self.shares = axes, shares
        self.placed = tuple(_placed(spans) for spans in shares)
        holders: dict[Span, list[int]] = {}
        offsets = [0]
        for size, stride in axes:
            offsets = [offset + i * stride for offset in offsets for i in range(size)]
        for offset, spans in zip(offsets, shares, strict=True):
            for span in spans:
                if span[0] < span[1]:
                    holders.setdefault(span, []).append(offset)
        self.spans = sorted(holders)
        self.offsets = [holders[span] for span in self.spans]
        self.starts = [start for start, _ in self.spans]
        self.disjoint = all(one[1] <= other for one, other in zip(self.spans, self.starts[1:], strict=False))

    def share_of(self, rank: int) -> int:
        share = 0
        for size, stride in self.axes:
            share = share * size + rank // stride % size
        return share

    def touching(self, low: int, high: int) -> range | list[int]:
        """Positions of the spans that have an element of ``low <= i < high``."""
        if not self.disjoint:
            return [i for i, (start, stop) in enumerate(self.spans) if start < high and stop > low]
        first = max(bisect_right(self.starts, low) - 1, 0)
        if first < len(self.spans) and self.spans[first][1] <= low:
            first += 1
        return range(first, bisect_left(self.starts, high))


class CutPattern(Pattern):
    """Pieces of a tensor of ``shape``; `cut_pattern` and `grid_pattern` make one.

    ``dims`` has for each dim its axes and the spans of each share; ``axes`` are all axes, those of replicas among them.
    No two sets of coordinates along them may give one rank.
    """

    def __init__(self, key: object, dims: Sequence[CutDim], axes: Sequence[Axis]) -> None:
        super().__init__(key)
        self.dims = tuple(dims)
        self._axes = tuple(axes)
        cutting = {axis for dim in dims for axis in dim.axes}
        self._replicas = _offsets([axis for axis in axes if axis not in cutting])
        self._reach = sum((size - 1) * stride for size, stride in axes)
        self._len = len(self._replicas) * prod(sum(map(len, dim.shares)) for dim in dims)

    def __len__(self) -> int:
        return self._len

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        return tuple(piece for rank in self.ranks for piece in self.of_rank(rank))

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        return tuple(_offsets(self._axes))

    @cached_property
    def disjoint(self) -> bool:
        return all(dim.disjoint for dim in self.dims)

    @cached_property
    def ends(self) -> tuple[Piece, ...]:
        return self.of_rank(0)[0], self.of_rank(self._reach)[-1]

    def of_rank(self, rank: int) -> tuple[Piece, ...]:
        if not self._has(rank):
            return ()
        return tuple(
            Piece(
                rank,
                Box(tuple(span[0] for span, _ in corner), tuple(span[1] for span, _ in corner)),
                Box(tuple(at for _, at in corner), tuple(at + span[1] - span[0] for span, at in corner)),
            )
            for corner in product(*(dim.placed[dim.share_of(rank)] for dim in self.dims))
        )

    def own_shape(self, rank: int) -> tuple[int, ...]:
        """The shape of the own tensor of ``rank``, one of `ranks`."""
        spans = [dim.shares[dim.share_of(rank)] for dim in self.dims]
        return tuple(sum(stop - start for start, stop in each) for each in spans)

    def touching(self, box: Box) -> list[Holding]:
        reached = [dim.touching(low, high) for dim, low, high in zip(self.dims, box.lo, box.hi, strict=True)]
        if box.empty:
            return []
        found = []
        for cell in product(*reached):
            spans = [dim.spans[i] for dim, i in zip(self.dims, cell, strict=True)]
            ranks = self._replicas
            for dim, i in zip(self.dims, cell, strict=True):
                if dim.axes:
                    ranks = [rank + offset for rank in ranks for offset in dim.offsets[i]]
            found.append(Holding(Box(tuple(s[0] for s in spans), tuple(s[1] for s in spans)), tuple(sorted(ranks))))
        return found

    def _has(self, rank: int) -> bool:
        if not 0 <= rank <= self._reach:
            return False
        for size, stride in self._by_stride:
            if rank // stride >= size:
                return False
            rank %= stride
        return rank == 0

    @cached_property
    def _by_stride(self) -> list[Axis]:
        return sorted((axis for axis in self._axes if axis.size > 1), key=lambda axis: -axis.stride)


@lru_cache(maxsize=4096)
def cut_pattern(shape: tuple[int, ...], mesh: Mesh, cuts: tuple[Cut, ...], fixed: frozenset[str]) -> CutPattern:
    """The pattern of ``cuts`` over the axes of ``mesh`` but the ``fixed`` ones. Raises as `cut_tensor`."""
    names = [cut.axis for cut in cuts]
    if len(set(names)) != len(names):
        raise LayoutError(f"an axis can cut a tensor once; the cuts name {', '.join(names)}")
    strides = dict(
        zip(mesh.names, (prod(n for _, n in mesh.axes[i + 1 :]) for i in range(len(mesh.axes))), strict=True)
    )
    axes: list[list[Axis]] = [[] for _ in shape]
    shares: list[list[tuple[Span, ...]]] = [[((0, extent),)] for extent in shape]
    for cut in cuts:
        if not 0 <= cut.dim < len(shape):
            raise LayoutError(f"there is no dim {cut.dim} to cut in a tensor of shape {list(shape)}", dim=cut.dim)
        size = mesh.size(cut.axis)
        if cut.axis in fixed:
            raise LayoutError(f"axis {cut.axis!r} says where the tensor is, and cannot cut it too", axis=cut.axis)
        axes[cut.dim].append(Axis(size, strides[cut.axis]))
        cached: dict[int, tuple[tuple[Span, ...], ...]] = {}
        after = []
        for held in shares[cut.dim]:
            extent = sum(stop - start for start, stop in held)
            chosen = cached.get(extent) or cached.setdefault(extent, cut.rule.spans(extent, size))
            after += [_select(held, spans) for spans in chosen]
        shares[cut.dim] = after
    dims = [CutDim(tuple(a), tuple(s)) for a, s in zip(axes, shares, strict=True)]
    every = tuple(Axis(size, strides[name]) for name, size in mesh.axes if name not in fixed)
    key = (tuple((dim.axes, dim.shares) for dim in dims), every)
    return CutPattern(key, dims, every)


@lru_cache(maxsize=4096)
def grid_pattern(grid: EvenGrid, shape: tuple[int, ...]) -> CutPattern | None:
    """The pattern of the blocks of ``grid`` in a tensor of ``shape``, from its first rank on.

    None if the ranks do not count through the grid as they do through a mesh: then the blocks are best listed.
    Raises `LayoutError` if the grid does not fit the shape.
    """
    grid.check_fit(shape)
    axes = [Axis(n, stride) for n, stride in zip(grid.parts, grid.strides, strict=True) if n > 1]
    below = 1
    for size, stride in sorted(axes, key=lambda axis: axis.stride):
        if stride == 0 or stride % below:
            return None
        below = stride * size
    dims = [
        CutDim((Axis(n, stride),) if n > 1 else (), Even().spans(extent, n))
        for n, stride, extent in zip(grid.parts, grid.strides, shape, strict=True)
    ]
    return CutPattern((shape, grid.parts, grid.strides), dims, axes)


def _offsets(axes: Sequence[Axis]) -> list[int]:
    """The rank of every set of coordinates, rising."""
    offsets = [0]
    for size, stride in axes:
        offsets = [offset + i * stride for offset in offsets for i in range(size)]
    return sorted(offsets)


def _select(held: tuple[Span, ...], chosen: tuple[Span, ...]) -> tuple[Span, ...]:
    """The spans of the whole dim that ``chosen`` spans of the part ``held`` are."""
    found: list[Span] = []
    for start, stop in chosen:
        passed = 0
        for low, high in held:
            a, b = max(start - passed, 0), min(stop - passed, high - low)
            if a < b:
                found.append((low + a, low + b))
            passed += high - low
    return tuple(found) or ((held[-1][1], held[-1][1]),)


def _placed(spans: tuple[Span, ...]) -> list[tuple[Span, int]]:
    placed: list[tuple[Span, int]] = []
    at = 0
    for start, stop in spans:
        placed.append(((start, stop), at))
        at += stop - start
    return placed
