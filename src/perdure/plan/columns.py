"""From what can serve what to moves: all pieces of a tensor at once, in columns, or piece by piece."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from heapq import heapify, heappop, heappush

import numpy as np

from perdure.layout.box import Box
from perdure.layout.layout import TensorLayout
from perdure.layout.pattern import Holding
from perdure.layout.piece import Piece
from perdure.plan.choice import Choice
from perdure.plan.join import bounds
from perdure.plan.moves import Columns
from perdure.plan.outline import asking_of, outline_of
from perdure.plan.sources import Fragment, Sources

__all__ = ["chosen", "chosen_columns", "columns_of"]


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


def columns_of(have: TensorLayout, want: TensorLayout, choice: Choice) -> Columns | None:
    """The moves of one tensor; None if what is held overlaps or leaves a gap, so that pieces are to be looked at."""
    outline = outline_of(have.placed.pattern, want.placed.pattern)
    if outline is None or not outline.open:
        return None if outline is None else outline.columns
    first, width = have.placed.first, want.element_bytes
    source, asking = asking_of(outline, want.placed.first - first)
    if asking:
        source = source.copy()
        for each in asking:
            holders = outline.holders[each.fragment]
            ranks, dests = _from(tuple(holders), first), [dest + first for dest in each.dests]
            taken = choice.among_each(ranks, dests, outline.sizes[each.fragment] * width)
            source[each.rows] = [holders[rank - first] for rank in taken]
    return replace(outline.columns, source=source)


def chosen_columns(have: TensorLayout, want: TensorLayout, sources: Sources, choice: Choice) -> Columns:
    """The moves of one tensor, piece by piece; ``sources`` are those of its patterns, and leave no gap."""
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
