"""Many boxes against many boxes, in columns: which are the same, which touch.

Each box is a row: an array of lower and one of upper bounds, with a column for each dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from perdure.layout.box import Box
from perdure.layout.cut_pattern import CutPattern
from perdure.layout.pattern import Pattern

__all__ = ["Ints", "bounds", "bounds_of", "distinct", "overlaps", "ranks_of"]

Ints = NDArray[np.int64]
_PAIRS = 1 << 22  # that are looked at together


def bounds(boxes: Sequence[Box], ndim: int) -> tuple[Ints, Ints]:
    """The lower and upper bounds of ``boxes``, which have ``ndim`` dims."""
    form = (len(boxes), ndim)
    lo = np.array([box.lo for box in boxes], np.int64).reshape(form)
    return lo, np.array([box.hi for box in boxes], np.int64).reshape(form)


@lru_cache(maxsize=1024)
def ranks_of(pattern: Pattern) -> Ints:
    """The rank of each piece of ``pattern``, in order."""
    if _one_a_rank(pattern):
        return np.array(pattern.ranks, np.int64)
    return np.fromiter((piece.rank for piece in pattern.pieces), np.int64, len(pattern.pieces))


@lru_cache(maxsize=1024)
def bounds_of(pattern: Pattern) -> tuple[Ints, Ints]:
    """The bounds of the box of each piece of ``pattern``, in order."""
    if not (isinstance(pattern, CutPattern) and _one_a_rank(pattern)):
        return bounds([piece.box for piece in pattern.pieces], pattern.ends[0].box.ndim if pattern.ends else 0)
    ranks = ranks_of(pattern)
    lo, hi = (np.empty((len(ranks), len(pattern.dims)), np.int64) for _ in range(2))
    for number, dim in enumerate(pattern.dims):
        share = np.zeros(len(ranks), np.int64)
        for size, stride in dim.axes:
            share = share * size + ranks // stride % size
        spans = np.array([spans[0] for spans in dim.shares], np.int64)
        lo[:, number], hi[:, number] = spans[share].T
    return lo, hi


def distinct(lo: Ints, hi: Ints) -> tuple[Ints, Ints]:
    """The rows that are the first of their box, and for each row the number of its box among these."""
    n = len(lo)
    order = np.lexsort((*lo.T, *hi.T)) if lo.shape[1] else np.arange(n)
    new = np.ones(n, bool)
    new[1:] = (lo[order[1:]] != lo[order[:-1]]).any(axis=1) | (hi[order[1:]] != hi[order[:-1]]).any(axis=1)
    number = np.empty(n, np.int64)
    number[order] = np.cumsum(new) - 1
    return order[new], number


def overlaps(lo: Ints, hi: Ints, other_lo: Ints, other_hi: Ints) -> tuple[Ints, Ints]:
    """All pairs of a row of the one and a row of the other boxes, none empty, that have an element in common.

    Sorted by the first. Looks along the dim that tells the others apart best, so that few pairs are compared.
    """
    if not lo.shape[1]:  # of no dims, so each holds the one element
        pairs = np.indices((len(lo), len(other_lo)), np.int64).reshape(2, -1)
        return pairs[0], pairs[1]
    dim = max(range(lo.shape[1]), key=lambda dim: len(set(other_lo[:, dim].tolist())))
    order = np.argsort(other_lo[:, dim], kind="stable")
    rising, reached = other_lo[order, dim], np.maximum.accumulate(other_hi[order, dim])
    begin = np.searchsorted(reached, lo[:, dim], side="right")
    counts = np.maximum(np.searchsorted(rising, hi[:, dim], side="left") - begin, 0)
    found: list[tuple[Ints, Ints]] = []
    ends = np.cumsum(counts)
    start = 0
    while start < len(lo):
        before = int(ends[start] - counts[start])
        stop = max(int(np.searchsorted(ends, before + _PAIRS, side="right")), start + 1)
        rows = np.repeat(np.arange(start, stop), counts[start:stop])
        at = np.arange(len(rows)) - (ends[start:stop] - counts[start:stop] - before)[rows - start] + begin[rows]
        others = order[at]
        touch = ((lo[rows] < other_hi[others]) & (other_lo[others] < hi[rows])).all(axis=1)
        found.append((rows[touch], others[touch]))
        start = stop
    if not found:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    return np.concatenate([rows for rows, _ in found]), np.concatenate([others for _, others in found])


def _one_a_rank(pattern: Pattern) -> bool:
    """Whether each rank has one piece, whatever the box."""
    return isinstance(pattern, CutPattern) and all(len(share) == 1 for dim in pattern.dims for share in dim.shares)
