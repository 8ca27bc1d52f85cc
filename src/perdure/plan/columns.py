"""From what can serve what to moves: piece by piece, or in columns for all pieces of a tensor at once.

What of the columns does not depend on loads and first ranks is an *outline*, which all tensors that lie alike share;
where every box has one holder that is all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from perdure.layout.box import Box
from perdure.layout.layout import TensorLayout
from perdure.layout.pattern import Holding, Pattern
from perdure.layout.piece import Piece
from perdure.plan.choice import Choice
from perdure.plan.moves import Columns, bounds
from perdure.plan.sources import Fragment, Sources, sources_of

__all__ = ["chosen", "columns_of"]


def chosen(dest: Piece, sources: Sources, first: int, width: int, choice: Choice) -> Iterator[tuple[Box, Holding, int]]:
    """For each part of the wanted piece ``dest``: its box, the held box around it, and the rank to take it from."""
    if dest.box.empty:
        return
    fragments = sources.fragments[dest.box]
    if not sources.disjoint:
        yield from _from_overlapping(fragments, dest, first, width, choice)
        return
    for fragment in fragments:
        ranks = fragment.holding.ranks
        if dest.rank - first in ranks:
            rank = dest.rank
        else:
            rank = choice.among(_from(ranks, first), dest.rank, fragment.box.size * width)
        yield fragment.box, fragment.holding, rank


def _from_overlapping(
    fragments: tuple[Fragment, ...], dest: Piece, first: int, width: int, choice: Choice
) -> Iterator[tuple[Box, Holding, int]]:
    """Take from the best candidate what is still missing, then from the next; loads are looked at again each time."""
    candidates = [
        (choice.score(first + rank, dest.rank), position, first + rank)
        for position, part in enumerate(fragments)
        for rank in part.holding.ranks
    ]
    heapify(candidates)
    missing = [dest.box]
    while missing:
        score, position, rank = heappop(candidates)
        now = choice.score(rank, dest.rank)
        if now != score:
            heappush(candidates, (now, position, rank))
            continue
        fragment = fragments[position]
        for box in [box & fragment.box for box in missing if box.touches(fragment.box)]:
            yield box, fragment.holding, rank
            choice.take(rank, dest.rank, box.size * width)
        missing = [rest for box in missing for rest in box.minus(fragment.box)]


def columns_of(have: TensorLayout, want: TensorLayout, sources: Sources, choice: Choice) -> Columns:
    """The moves of one tensor; ``sources`` are those of its patterns, and leave no gap."""
    if not sources.disjoint:
        return _chosen_columns(have, want, sources, choice)
    outline = _outline(have.placed.pattern, want.placed.pattern)
    if not outline.open:
        return outline.columns
    first, width = have.placed.first, want.element_bytes
    shift = want.placed.first - first
    source, asking = _own(outline, shift)
    if asking:
        source = source.copy()
        for fragment, rows, dests in asking:
            holders = outline.holders[fragment]
            nbytes = outline.sizes[fragment] * width
            taken = choice.among_each(_from(outline.ranks[fragment], first), [dest + first for dest in dests], nbytes)
            source[rows] = [holders[rank - first] for rank in taken]
    return replace(outline.columns, source=source)


@dataclass(frozen=True, slots=True, eq=False)
class _Outline:
    """Columns without the sources that are to be chosen.

    ``open`` has the rows where that is so: by the number of the fragment, each row and the rank that wants it. For each
    fragment, ``sizes`` has its elements, ``holders`` the position of each rank's piece, ``ranks`` the ranks. Ranks are
    those of the patterns.
    """

    columns: Columns
    open: dict[int, list[tuple[int, int]]]
    sizes: list[int]
    holders: list[dict[int, int]]
    ranks: list[tuple[int, ...]]


@lru_cache(maxsize=256)
def _own(outline: _Outline, shift: int) -> tuple[NDArray[np.int32], list[tuple[int, list[int], list[int]]]]:
    """The sources, with those filled in that a rank holds itself, and what is still open: fragment, rows, who asks.

    ``shift`` is how far the ranks of what is wanted are beyond those of what is held; those who ask are counted as the
    latter.
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
            asking.append((fragment, rows, dests))
    return source, asking


@lru_cache(maxsize=1024)
def _outline(have: Pattern, want: Pattern) -> _Outline:
    sources = sources_of(have, want)
    boxes: list[Box] = []
    ranks: list[tuple[int, ...]] = []
    holders: list[dict[int, int]] = []
    of: dict[Box, range] = {}  # the fragments of a wanted box
    held: dict[Box, dict[int, int]] = {}
    for wanted, fragments in sources.fragments.items():
        of[wanted] = range(len(boxes), len(boxes) + len(fragments))
        for fragment in fragments:
            box, among = fragment.holding
            boxes.append(fragment.box)
            ranks.append(among)
            if box not in held:
                held[box] = {rank: have.positions[rank, box] for rank in among}
            holders.append(held[box])
    pieces = [(position, piece) for position, piece in enumerate(want.pieces) if not piece.box.empty]
    counts = np.array([len(of[piece.box]) for _, piece in pieces], np.int64)
    begin = np.array([of[piece.box].start for _, piece in pieces], np.int64)
    rows = int(counts.sum())
    # Row by row: which fragment it is. Those of a piece follow each other.
    fragment_of = np.repeat(begin - (np.cumsum(counts) - counts), counts) + np.arange(rows)
    dest = np.repeat(np.array([position for position, _ in pieces], np.int32), counts)
    lo, hi = bounds(boxes, have.ends[0].box.ndim if have.ends else 0)
    only = np.array([next(iter(each.values())) if len(each) == 1 else -1 for each in holders], np.int32)
    source = only[fragment_of]
    sizes = np.array([box.size for box in boxes], np.int64)
    wants = np.repeat(np.array([piece.rank for _, piece in pieces], np.int64), counts)
    open_: dict[int, list[tuple[int, int]]] = {}
    for row in np.flatnonzero(source < 0).tolist():
        open_.setdefault(int(fragment_of[row]), []).append((row, int(wants[row])))
    columns = Columns(lo[fragment_of], hi[fragment_of], source, dest, sizes[fragment_of])
    return _Outline(columns, open_, sizes.tolist(), holders, ranks)


def _chosen_columns(have: TensorLayout, want: TensorLayout, sources: Sources, choice: Choice) -> Columns:
    boxes: list[Box] = []
    source: list[int] = []
    dest: list[int] = []
    pattern, first = have.placed.pattern, have.placed.first
    for position, piece in enumerate(want.pieces):
        for box, holding, rank in chosen(piece, sources, first, want.element_bytes, choice):
            boxes.append(box)
            source.append(pattern.positions[rank - first, holding.box])
            dest.append(position)
    lo, hi = bounds(boxes, len(want.shape))
    size = np.array([box.size for box in boxes], np.int64)
    return Columns(lo, hi, np.array(source, np.int32), np.array(dest, np.int32), size)


@lru_cache(maxsize=1024)
def _from(ranks: tuple[int, ...], first: int) -> tuple[int, ...]:
    return tuple(rank + first for rank in ranks)
