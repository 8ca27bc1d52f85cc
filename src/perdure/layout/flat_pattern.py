"""The pattern of a flat buffer's slices: the own tensors of a group laid end to end, and the whole cut along an axis.

ZeRO-1 as Megatron keeps it: every rank of a tensor-parallel group lays its own shards end to end in one buffer, pads
it, and each of its data-parallel replicas holds one slice. Of any tensor a slice holds a range of the flattened shard,
which is a few boxes of the whole tensor (`flat_boxes`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache, reduce
from math import prod
from operator import or_
from typing import NamedTuple

from perdure.errors import LayoutError
from perdure.layout.box import Box
from perdure.layout.cut import Cut
from perdure.layout.cut_pattern import Axis, CutPattern, cut_pattern
from perdure.layout.flat import flat_boxes
from perdure.layout.layout import Layout, TensorLayout
from perdure.layout.mesh import Mesh
from perdure.layout.pattern import Holding, Pattern, Pieces
from perdure.layout.piece import Piece

__all__ = ["FlatPattern", "flat_cut"]


def flat_cut(
    shapes: Mapping[str, Sequence[int]],
    *,
    mesh: Mesh,
    cuts: Mapping[str, Sequence[Cut]],
    along: str,
    dtype: str,
    at: Mapping[str, int] | None = None,
    align: int = 1,
) -> Layout:
    """The layout of tensors that ranks lay end to end in flat buffers, each its own part, cut along an axis of a mesh.

    ``cuts`` say what a rank has of each tensor before that (none: all of it); they name other axes than ``along``. A
    rank's buffer is padded until its slices along that axis are equal and have a multiple of ``align`` elements. The
    own tensor of a rank, the same under every name, is its slice. ``at`` is as in `cut_tensor`.

    >>> mesh = Mesh((("dp", 2), ("tp", 2)))
    >>> from perdure.layout import Even
    >>> cuts = {"a": [Cut("tp", 1, Even())]}
    >>> zero = flat_cut({"a": (2, 4), "b": (3,)}, mesh=mesh, cuts=cuts, along="dp", dtype="float32")
    >>> [(piece.rank, str(piece.box), str(piece.place)) for piece in zero["a"].pieces]
    [(0, '[0:2, 0:2]', '[0:4]'), (1, '[0:2, 2:4]', '[0:4]')]
    >>> [(piece.rank, str(piece.box), str(piece.place)) for piece in zero["b"].pieces]
    [(2, '[0:3]', '[0:3]'), (3, '[0:3]', '[0:3]')]

    Raises `LayoutError` for an axis, dim or coordinate that is not there.
    """
    at = at or {}
    first = mesh.rank([at.get(axis, 0) for axis in mesh.names])
    axis = Axis(mesh.size(along), prod(n for _, n in mesh.axes[mesh.position(along) + 1 :]))
    if along in at or align < 1:
        raise LayoutError(f"axis {along!r} cannot be cut at one coordinate, or into slices of {align} elements")
    fixed = frozenset({*at, along})
    inner = {name: cut_pattern(tuple(shape), mesh, tuple(cuts.get(name, ())), fixed) for name, shape in shapes.items()}
    ends: dict[int, int] = {}
    starts: dict[str, tuple[int, ...]] = {}
    for name, pattern in inner.items():
        starts[name] = tuple(ends.get(rank, 0) for rank in pattern.ranks)
        for rank, start in zip(pattern.ranks, starts[name], strict=True):
            ends[rank] = start + prod(pattern.own_shape(rank))
    widths = {rank: max(-(-end // (axis.size * align)), 1) * align for rank, end in ends.items()}
    return Layout(
        {
            name: TensorLayout(
                tuple(shapes[name]),
                Pieces(
                    _pattern(pattern, axis, starts[name], tuple(widths[rank] for rank in pattern.ranks)),
                    first,
                ),
                dtype,
            )
            for name, pattern in inner.items()
        }
    )


@lru_cache(maxsize=4096)
def _pattern(inner: CutPattern, axis: Axis, starts: tuple[int, ...], widths: tuple[int, ...]) -> FlatPattern:
    return FlatPattern(inner, axis, starts, widths)


class _Buffer(NamedTuple):
    """Where a rank's own tensor begins in its buffer, how long slices are; the own tensor's shape and pieces."""

    start: int
    width: int
    shape: tuple[int, ...]
    inner: tuple[Piece, ...]


class FlatPattern(Pattern):
    """What the slices hold of one tensor.

    ``inner`` cuts it over the ranks at the first coordinate of ``axis``; each of them has its part in its buffer from
    element ``starts[i]`` on, and slices of ``widths[i]`` elements lie along the axis.
    """

    def __init__(self, inner: CutPattern, axis: Axis, starts: tuple[int, ...], widths: tuple[int, ...]) -> None:
        super().__init__((inner, axis, starts, widths))
        self._inner, self._axis = inner, axis
        self._buffers = {
            rank: _Buffer(start, width, inner.own_shape(rank), inner.of_rank(rank))
            for rank, start, width in zip(inner.ranks, starts, widths, strict=True)
        }
        self._known: dict[int, tuple[Piece, ...]] = {}

    def __len__(self) -> int:
        return len(self.pieces)

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        return tuple(piece for rank in self.ranks for piece in self.of_rank(rank))

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        found = []
        for rank, (start, width, shape, _) in self._buffers.items():
            if prod(shape):
                slices = range(start // width, (start + prod(shape) - 1) // width + 1)
                found += [rank + i * self._axis.stride for i in slices]
        return tuple(sorted(found))

    @cached_property
    def disjoint(self) -> bool:
        alike = (len({self._buffers[rank][:2] for rank in each.ranks}) for each in self._inner.touching(self._whole))
        return self._inner.disjoint and max(alike, default=1) == 1

    @cached_property
    def _whole(self) -> Box:
        boxes = [piece.box for buffer in self._buffers.values() for piece in buffer.inner]
        return reduce(or_, boxes)

    def of_rank(self, rank: int) -> tuple[Piece, ...]:
        known = self._known.get(rank)
        if known is None:
            known = self._known[rank] = tuple(self._made(rank))
        return known

    def touching(self, box: Box) -> list[Holding]:
        found: dict[Box, set[int]] = {}
        for holding in self._inner.touching(box):
            for rank in holding.ranks:
                start, width, shape, pieces = self._buffers[rank]
                inner = next(piece for piece in pieces if piece.box == holding.box)
                here = (box & inner.box).relative_to(inner.box).shift(inner.place.lo)
                first = start + _flat(shape, here.lo)
                last = start + _flat(shape, tuple(high - 1 for high in here.hi))
                for i in range(first // width, last // width + 1):
                    for piece in self.of_rank(rank + i * self._axis.stride):
                        if piece.box.touches(box):
                            found.setdefault(piece.box, set()).add(piece.rank)
        return [Holding(each, tuple(sorted(ranks))) for each, ranks in found.items()]

    def _made(self, rank: int) -> Iterator[Piece]:
        size, stride = self._axis
        i = rank // stride % size
        buffer = self._buffers.get(rank - i * stride) if rank >= 0 else None
        if buffer is None:
            return
        start, width, shape, inner = buffer
        low, high = max(i * width, start), min((i + 1) * width, start + prod(shape))
        if low >= high:
            return
        at = low - i * width
        for local in flat_boxes(shape, start=low - start, stop=high - start):
            for box in _global(local, inner):
                yield Piece(rank, box, Box((at,), (at + box.size,)))
                at += box.size


def _global(local: Box, inner: Sequence[Piece]) -> Iterator[Box]:
    """The boxes of the whole tensor that ``local``, a box of an own tensor with ``inner`` pieces, is, in flat order."""
    if len(inner) == 1:
        yield local.shift(inner[0].box.lo)
        return
    parts = [(local & piece.place, piece) for piece in inner if local.touches(piece.place)]
    # Pieces that lie side by side take turns in every row; so a box that several of them share is taken row by row.
    dim = next((dim for dim, extent in enumerate(local.shape) if extent > 1), 0)
    beside = {common.lo[:dim] + common.lo[dim + 1 :] for common, _ in parts}
    if len(parts) <= 1 or (len(beside) == 1 and len({(c.lo[dim], c.hi[dim]) for c, _ in parts}) == len(parts)):
        for common, piece in sorted(parts, key=lambda part: part[0].lo):
            yield common.relative_to(piece.place).shift(piece.box.lo)
        return
    for row in range(local.lo[dim], local.hi[dim]):
        one = Box((*local.lo[:dim], row, *local.lo[dim + 1 :]), (*local.hi[:dim], row + 1, *local.hi[dim + 1 :]))
        yield from _global(one, inner)


def _flat(shape: Sequence[int], at: Sequence[int]) -> int:
    flat = 0
    for extent, i in zip(shape, at, strict=True):
        flat = flat * extent + i
    return flat
