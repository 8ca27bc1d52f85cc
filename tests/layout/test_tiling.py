"""The index and the tiling check, against painting."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.layout import Box, BoxIndex, first_gap, first_overlap
from perdure.testing.layouts import tilings


def random_boxes(seed: int, count: int, ndim: int, extent: int) -> list[Box]:
    numbers = np.sort(np.random.default_rng(seed).integers(0, extent + 1, (count, 2, ndim)), axis=1)
    return [Box(tuple(map(int, lo)), tuple(map(int, hi))) for lo, hi in numbers]


@given(seed=st.integers(0, 2**32), count=st.sampled_from([0, 1, 63, 65, 200]), ndim=st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_the_index_finds_what_a_search_in_a_row_finds(seed: int, count: int, ndim: int) -> None:
    boxes = random_boxes(seed, count, ndim, 30)
    index = BoxIndex(boxes)
    for asked in random_boxes(seed + 1, 20, ndim, 40):
        assert index.touching(asked) == [number for number, box in enumerate(boxes) if box.touches(asked)]


@given(seed=st.integers(0, 2**32), count=st.sampled_from([0, 1, 5, 70]), ndim=st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_gap_and_overlap_are_found_exactly_when_painting_shows_them(seed: int, count: int, ndim: int) -> None:
    boxes = random_boxes(seed, count, ndim, 6)
    outer = Box.whole((6,) * ndim)
    canvas = np.zeros(outer.shape, dtype=int)
    for box in boxes:
        canvas[box.within(outer)] += 1
    overlap = first_overlap(boxes)
    assert (overlap is not None) == bool((canvas > 1).any())
    if overlap is not None:
        one, other = overlap
        assert one != other
        assert boxes[one].touches(boxes[other])
    gap = first_gap(outer, boxes)
    assert (gap is not None) == bool((canvas == 0).any())
    if gap is not None:
        assert gap.size > 0
        assert not canvas[gap.within(outer)].any()


@given(tilings((6, 5, 4)))
@settings(max_examples=40, deadline=None)
def test_a_tiling_has_neither_gap_nor_overlap(boxes: list[Box]) -> None:
    assert first_overlap(boxes) is None
    assert first_gap(Box.whole((6, 5, 4)), boxes) is None


def test_ten_thousand_boxes_are_compared_with_their_neighbours_only() -> None:
    boxes = [Box((3 * i, 2 * j), (3 * i + 3, 2 * j + 2)) for i in range(100) for j in range(100)]
    assert first_overlap(boxes) is None
    index = BoxIndex(boxes)
    near = sum(len(list(index._near(box))) for box in boxes)
    assert near <= 9 * len(boxes)
    missing = boxes.pop(5050)
    assert first_gap(Box.whole((300, 200)), boxes) == missing
