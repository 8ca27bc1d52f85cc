"""Do boxes tile a tensor? Exact, and by boxes instead of elements.

Boxes that lie inside a tensor, touch no other box and add up to its size leave no gap: so one index and one sum prove
a tiling, and only a failed one is searched for the place that is missing.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.layout.box import Box
from perdure.layout.index import BoxIndex

__all__ = ["first_gap", "first_overlap"]


def first_overlap(boxes: Sequence[Box]) -> tuple[int, int] | None:
    """Positions of two boxes that have an element in common, or None; equal boxes count as an overlap.

    >>> first_overlap([Box((0,), (4,)), Box((4,), (8,)), Box((7,), (9,))])
    (1, 2)
    """
    index = BoxIndex(boxes)
    for position, box in enumerate(boxes):
        for other in index.touching(box):
            if other != position:
                return position, other
    return None


def first_gap(outer: Box, boxes: Sequence[Box]) -> Box | None:
    """A non-empty box inside ``outer`` that none of ``boxes`` (overlapping or not) touches, or None.

    >>> print(first_gap(Box((0,), (8,)), [Box((0,), (4,)), Box((5,), (9,))]))
    [4:5]
    """
    index = BoxIndex(boxes)
    open_boxes = [] if outer.empty else [outer]
    while open_boxes:
        rest = open_boxes.pop()
        near = index.touching(rest)
        if not near:
            return rest
        # The middle one: boxes mostly come in order, so this halves what is left.
        open_boxes.extend(rest.minus(boxes[near[len(near) // 2]]))
    return None
