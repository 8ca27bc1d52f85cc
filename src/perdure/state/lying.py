"""Where saved blocks lie on the ranks that wrote them, as a pattern: by their grid, or as the parts list them.

A restore looks for what touches the few blocks of one rank, in tensors of many hundred saved blocks each. Tensors that
lie alike share the lists of their parts, so what is worked out of a list serves all of them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from perdure.layout import Box, Holding, Pattern, Piece, Pieces, first_overlap, grid_pattern
from perdure.state.stored import Geometry, StoredPieces

__all__ = ["lying"]

Ints = npt.NDArray[np.int64]
_KEPT = 256


def lying(pieces: StoredPieces, shape: tuple[int, ...]) -> Pieces:
    """Where ``pieces`` of a tensor of ``shape`` lie; a piece's rank is the rank that wrote it."""
    pattern: Pattern | None = None if pieces.grid is None else grid_pattern(pieces.grid, shape)
    if pieces.grid is not None and pattern is not None:
        return Pieces(pattern, pieces.grid.first)
    return Pieces(_listed(pieces, len(shape)), 0)


class _Stored(Pattern):
    """The blocks of ``geometries``, as they are listed there. Equal to those of the very same geometries."""

    def __init__(self, geometries: Sequence[Geometry], ndim: int) -> None:
        super().__init__(tuple(map(id, geometries)))
        self._geometries = tuple(geometries)  # kept alive, so that the key means them
        self._boxes = [box for where in geometries for box in where.boxes]
        self._owners = [rank for where in geometries for rank in where.ranks]
        form = (len(self._boxes), ndim)
        self._lo: Ints = np.array([box.lo for box in self._boxes], np.int64).reshape(form)
        self._hi: Ints = np.array([box.hi for box in self._boxes], np.int64).reshape(form)

    def __len__(self) -> int:
        return len(self._boxes)

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        return tuple(Piece.alone(rank, box) for rank, box in zip(self._owners, self._boxes, strict=True))

    @cached_property
    def ends(self) -> tuple[Piece, ...]:
        return tuple(Piece.alone(self._owners[at], self._boxes[at]) for at in (0, -1) if self._boxes)

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted(set(self._owners)))

    @cached_property
    def disjoint(self) -> bool:
        full = np.flatnonzero((self._hi > self._lo).all(axis=1))
        cell = np.zeros(len(full), np.int64)
        for lo, hi in zip(self._lo[full].T, self._hi[full].T, strict=True):
            edges = _distinct(lo)
            at = np.searchsorted(edges, lo)
            if (np.searchsorted(edges, hi) != at + 1).any():  # no grid
                return first_overlap([self._boxes[each] for each in full.tolist()]) is None
            cell = cell * len(edges) + at
        return len(_distinct(cell)) == len(full)

    def of_rank(self, rank: int) -> tuple[Piece, ...]:
        return tuple(Piece.alone(rank, self._boxes[at]) for at, owner in enumerate(self._owners) if owner == rank)

    def piece(self, rank: int, box: Box) -> Piece:
        return Piece.alone(rank, box)

    def touching(self, box: Box) -> list[Holding]:
        lo, hi = np.array(box.lo, np.int64), np.array(box.hi, np.int64)
        found: dict[Box, set[int]] = {}
        near = (np.maximum(self._lo, lo) < np.minimum(self._hi, hi)).all(axis=1)
        for at in np.flatnonzero(near).tolist():
            found.setdefault(self._boxes[at], set()).add(self._owners[at])
        return [Holding(each, tuple(sorted(ranks))) for each, ranks in found.items()]


def _distinct(numbers: Ints) -> Ints:
    """As `numpy.unique`, whose first call imports a good part of NumPy."""
    rising = np.sort(numbers)
    return rising[np.concatenate(([True], rising[1:] != rising[:-1]))[: len(rising)]]


_patterns: OrderedDict[tuple[int, ...], _Stored] = OrderedDict()


def _listed(pieces: StoredPieces, ndim: int) -> _Stored:
    """The pattern of ``pieces``, the same for all that lie alike."""
    found = _patterns.get(pieces.alike)
    if found is None:
        found = _patterns[pieces.alike] = _Stored([segment.where for segment in pieces.segments], ndim)
        while len(_patterns) > _KEPT:
            _patterns.popitem(last=False)
    return found
