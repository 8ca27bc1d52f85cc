"""Flat slices, against flattened arrays."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import LayoutError
from perdure.layout import flat_boxes, flat_layout
from perdure.testing.layouts import cut_out, own_arrays, shapes, wholes_of


@given(shapes(most_dims=4, longest=5), st.data())
@settings(max_examples=150, deadline=None)
def test_boxes_hold_the_slice_in_flat_order_and_are_few(shape: tuple[int, ...], data: st.DataObject) -> None:
    size = prod(shape)
    start, stop = sorted(data.draw(st.tuples(st.integers(0, size), st.integers(0, size))))
    boxes = flat_boxes(shape, start=start, stop=stop)
    numbers = np.arange(size).reshape(shape)
    held = [cut_out(numbers, box).ravel() for box in boxes]
    np.testing.assert_array_equal(np.concatenate([[], *held]), np.arange(start, stop))
    assert len(boxes) <= max(2 * len(shape) - 1, 1)
    assert not any(box.empty for box in boxes)


@given(st.lists(shapes(longest=4), max_size=4), st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_ranks_of_a_flat_buffer_hold_its_slices(forms: list[tuple[int, ...]], world: int) -> None:
    shapes_by_name = {f"t{number}": shape for number, shape in enumerate(forms)}
    total = sum(map(prod, forms))
    each = -(-total // world)
    layout = flat_layout(
        shapes_by_name, bounds=[(rank * each, (rank + 1) * each) for rank in range(world)], dtype="int32"
    )
    layout.check()
    wholes = wholes_of(layout)
    buffer = np.concatenate([np.zeros(0, dtype=np.int32), *(whole.ravel() for whole in wholes.values())])
    for rank in range(world):
        mine = np.zeros(each, dtype=np.int32)
        for own in own_arrays(layout, rank, wholes=wholes).values():
            mine[: own.size] += own
        expected = buffer[rank * each : (rank + 1) * each]
        np.testing.assert_array_equal(mine[: expected.size], expected)


def test_a_range_that_leaves_the_tensor_is_refused() -> None:
    for start, stop in [(-1, 2), (0, 13), (5, 4)]:
        with pytest.raises(LayoutError):
            flat_boxes((3, 4), start=start, stop=stop)
