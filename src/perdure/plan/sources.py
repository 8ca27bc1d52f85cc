"""Which holders can serve which part of each wanted piece of one tensor.

Where the held boxes are disjoint (but for replicas), a wanted piece falls into fragments, each with its own holders,
and only the choice between replicas is left. The layers of a model repeat each other's layouts, so the answer is cached
by value. Holders that overlap otherwise have no such answer: there, which box serves an element is a choice too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from perdure.layout.box import Box
from perdure.layout.index import BoxIndex
from perdure.layout.layout import Piece, TensorLayout
from perdure.layout.tiling import first_gap, first_overlap

__all__ = ["Fragment", "Sources", "sources_of"]

Holders = Mapping[int, Piece]
"""Rank to its piece, for all pieces of one box."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """``box``, and who holds it (and maybe more around it)."""

    box: Box
    holders: Holders


@dataclass(frozen=True, slots=True)
class Sources:
    """For each wanted piece, in order: the fragments that serve it, and a box that nothing serves if there is one.

    If ``disjoint``, the fragments of a piece are exactly its parts. If not, they may overlap, and whoever plans takes
    from each what is still missing.
    """

    disjoint: bool
    fragments: tuple[tuple[Fragment, ...], ...]
    gaps: tuple[Box | None, ...]


@lru_cache(maxsize=1024)
def sources_of(have: TensorLayout, want: TensorLayout) -> Sources:
    """Find the holders of every wanted piece."""
    held: dict[Box, dict[int, Piece]] = {}
    for piece in have.pieces:
        if not piece.box.empty:
            held.setdefault(piece.box, {}).setdefault(piece.rank, piece)
    boxes = list(held)
    disjoint = first_overlap(boxes) is None
    index = BoxIndex(boxes)
    fragments: list[tuple[Fragment, ...]] = []
    gaps: list[Box | None] = []
    for piece in want.pieces:
        near = [boxes[position] for position in index.touching(piece.box)]
        parts = tuple(Fragment(box & piece.box, held[box]) for box in near)
        whole = disjoint and sum(part.box.size for part in parts) == piece.box.size
        fragments.append(parts)
        gaps.append(None if whole else first_gap(piece.box, near))
    return Sources(disjoint, tuple(fragments), tuple(gaps))
