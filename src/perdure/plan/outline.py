"""What the moves between two patterns are, but for the choice between replicas: all pieces at once, in columns.

It does not depend on loads and first ranks, so all tensors that lie alike share one; where every box has one holder, it
is all there is to plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from perdure.layout.pattern import Pattern
from perdure.plan.join import bounds_of, distinct, overlaps, ranks_of
from perdure.plan.moves import Columns

__all__ = ["Asking", "Outline", "asking_of", "outline_of"]


@dataclass(frozen=True, slots=True, eq=False)
class Outline:
    """Columns without the sources that are to be chosen.

    ``open`` has the rows where that is so: by the number of the fragment, each row and the rank that wants it. Of such
    a fragment, ``sizes`` has its elements, and ``holders`` the position of each rank's piece, ranks rising. Ranks are
    those of the patterns.
    """

    columns: Columns
    open: dict[int, list[tuple[int, int]]]
    sizes: dict[int, int]
    holders: dict[int, dict[int, int]]


@dataclass(frozen=True, slots=True)
class Asking:
    """Rows of one fragment whose source is to be chosen, and the ranks that want it, counted as the holders are."""

    fragment: int
    rows: list[int]
    dests: list[int]


@lru_cache(maxsize=1024)
def outline_of(have: Pattern, want: Pattern) -> Outline | None:
    """The outline; None if what is held overlaps, but for replicas, or leaves a gap in what is wanted."""
    held = np.flatnonzero((bounds_of(have)[1] > bounds_of(have)[0]).all(axis=1))
    wanted = np.flatnonzero((bounds_of(want)[1] > bounds_of(want)[0]).all(axis=1))
    if not len(wanted):
        return Outline(_no_columns(len(want.ends[0].box.lo) if want.ends else 0), {}, {}, {})
    if not len(held):
        return None
    (have_lo, have_hi), (want_lo, want_hi) = (
        (lo[rows], hi[rows]) for (lo, hi), rows in ((bounds_of(have), held), (bounds_of(want), wanted))
    )
    have_first, have_box = distinct(have_lo, have_hi)
    want_first, want_box = distinct(want_lo, want_hi)
    boxes_lo, boxes_hi = have_lo[have_first], have_hi[have_first]
    if len(overlaps(boxes_lo, boxes_hi, boxes_lo, boxes_hi)[0]) != len(have_first):
        return None
    of, box = overlaps(want_lo[want_first], want_hi[want_first], boxes_lo, boxes_hi)
    lo = np.maximum(want_lo[want_first][of], boxes_lo[box])
    hi = np.minimum(want_hi[want_first][of], boxes_hi[box])
    order = np.lexsort((*lo.T[::-1], of))
    of, box, lo, hi = of[order], box[order], lo[order], hi[order]
    size = (hi - lo).prod(axis=1)
    counts = np.bincount(of, minlength=len(want_first))
    covered = np.zeros(len(want_first), np.int64)
    np.add.at(covered, of, size)
    if (covered != (want_hi - want_lo)[want_first].prod(axis=1)).any():
        return None
    # Each wanted piece has a row for every fragment of its box, one after the other.
    repeats = counts[want_box]
    begin = (np.cumsum(counts) - counts)[want_box]
    fragment = np.repeat(begin - (np.cumsum(repeats) - repeats), repeats) + np.arange(int(repeats.sum()))
    n_holders = np.bincount(have_box, minlength=len(have_first))
    by_box = np.argsort(have_box, kind="stable")
    first_of = np.cumsum(n_holders) - n_holders
    source = held[by_box[first_of[box]]]
    source[n_holders[box] > 1] = -1
    columns = Columns(
        lo[fragment],
        hi[fragment],
        source[fragment].astype(np.int32),
        np.repeat(wanted, repeats).astype(np.int32),
        size[fragment],
    )
    ranks, asks = ranks_of(have), np.repeat(ranks_of(want)[wanted], repeats)
    open_: dict[int, list[tuple[int, int]]] = {}
    for row in np.flatnonzero(columns.source < 0).tolist():
        open_.setdefault(int(fragment[row]), []).append((row, int(asks[row])))
    holders: dict[int, dict[int, int]] = {}
    for each in open_:
        at = int(first_of[box[each]])
        positions = held[by_box[at : at + int(n_holders[box[each]])]]
        holders[each] = dict(sorted(zip(ranks[positions].tolist(), positions.tolist(), strict=True)))
    return Outline(columns, open_, {each: int(size[each]) for each in open_}, holders)


@lru_cache(maxsize=256)
def asking_of(outline: Outline, shift: int) -> tuple[NDArray[np.int32], list[Asking]]:
    """The sources, with those filled in that a rank holds itself, and what is still to be chosen.

    ``shift`` is how far the first rank of what is wanted is beyond that of what is held.
    """
    source = outline.columns.source.copy()
    asking = []
    for fragment, wanting in outline.open.items():
        holders = outline.holders[fragment]
        rows, dests = [], []
        for row, rank in wanting:
            own = holders.get(rank + shift)
            if own is None:
                rows.append(row)
                dests.append(rank + shift)
            else:
                source[row] = own
        if rows:
            asking.append(Asking(fragment, rows, dests))
    return source, asking


def _no_columns(ndim: int) -> Columns:
    none, no_box = np.empty(0, np.int64), np.empty((0, ndim), np.int64)
    return Columns(no_box, no_box, none.astype(np.int32), none.astype(np.int32), none)
