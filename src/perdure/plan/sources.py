"""Which holders can serve which part of each wanted box of one tensor.

Where the held boxes are disjoint (but for replicas), a wanted box falls into fragments, each with its own holders, and
only the choice between replicas is left. That follows from the two patterns alone, whatever the first ranks are, and
the layers of a model repeat each other's patterns: so it is worked out once for all of them. Holders that overlap
otherwise have no such answer: there, which box serves an element is a choice too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from perdure.layout.box import Box
from perdure.layout.pattern import Holding, Pattern
from perdure.layout.tiling import first_gap

__all__ = ["Fragment", "Sources", "sources_of"]


@dataclass(frozen=True, slots=True)
class Fragment:
    """``box``, and the box around it that ranks hold."""

    box: Box
    holding: Holding


@dataclass(frozen=True, slots=True)
class Sources:
    """``fragments`` has for each wanted box, empty ones left out, what serves it. Ranks are those of the patterns.

    If ``disjoint``, the fragments of a box are exactly its parts. If not, they may overlap, and whoever plans takes
    from each what is still missing. ``gap`` is a part of a wanted box that nothing serves, if there is one. ``sole``
    says that the boxes are disjoint and have one holder each, so that nothing is to be chosen.
    """

    disjoint: bool
    sole: bool
    fragments: dict[Box, tuple[Fragment, ...]]
    gap: Box | None


@lru_cache(maxsize=1024)
def sources_of(have: Pattern, want: Pattern) -> Sources:
    """Find the holders of every wanted box; up to the first box that nothing serves."""
    disjoint = have.disjoint
    sole = disjoint
    found: dict[Box, tuple[Fragment, ...]] = {}
    for piece in want.pieces:
        wanted = piece.box
        if wanted in found or wanted.empty:
            continue
        near = have.touching(wanted)
        parts = tuple(sorted((Fragment(holding.box & wanted, holding) for holding in near), key=_by_box))
        if not (disjoint and sum(part.box.size for part in parts) == wanted.size):
            gap = first_gap(wanted, [holding.box for holding in near])
            if gap is not None:
                return Sources(disjoint, False, found, gap)
        sole = sole and all(len(holding.ranks) == 1 for holding in near)
        found[wanted] = parts
    return Sources(disjoint, sole, found, None)


def _by_box(fragment: Fragment) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return fragment.box.lo, fragment.box.hi
