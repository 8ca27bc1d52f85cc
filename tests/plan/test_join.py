"""Many boxes against many, against each with each."""

from __future__ import annotations

from importlib import import_module

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure.layout import Box
from perdure.plan.join import bounds, bounds_of, distinct, overlaps, ranks_of
from perdure.testing.layouts import layouts, shapes
from perdure.testing.meshes import cut_layouts


@st.composite
def many(draw: st.DrawFn, ndim: int) -> list[Box]:
    """Non-empty boxes, overlapping at random."""
    span = st.tuples(st.integers(0, 9), st.integers(1, 6)).map(lambda at: (at[0], at[0] + at[1]))
    found = draw(st.lists(st.tuples(*ndim * [span]), max_size=20))
    return [Box(tuple(low for low, _ in box), tuple(high for _, high in box)) for box in found]


@given(st.integers(0, 3).flatmap(lambda ndim: st.tuples(st.just(ndim), many(ndim), many(ndim))), st.integers(1, 30))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_all_pairs_that_touch_are_found_once(
    monkeypatch: pytest.MonkeyPatch, made: tuple[int, list[Box], list[Box]], at_once: int
) -> None:
    monkeypatch.setattr(import_module("perdure.plan.join"), "_PAIRS", at_once)
    ndim, ones, others = made
    of, other = overlaps(*bounds(ones, ndim), *bounds(others, ndim))
    pairs = list(zip(of.tolist(), other.tolist(), strict=True))
    touching = [(i, j) for i, one in enumerate(ones) for j, two in enumerate(others) if one.touches(two)]
    assert sorted(pairs) == touching
    assert of.tolist() == sorted(of.tolist())


@given(st.integers(0, 3).flatmap(lambda ndim: st.tuples(st.just(ndim), many(ndim))))
@settings(max_examples=80, deadline=None)
def test_equal_boxes_have_one_number(made: tuple[int, list[Box]]) -> None:
    ndim, boxes = made
    first, number = distinct(*bounds(boxes, ndim))
    assert len(first) == len(set(boxes))
    assert [boxes[int(first[n])] for n in number] == boxes


@given(shapes(longest=6), st.data())
@settings(max_examples=80, deadline=None)
def test_columns_of_a_pattern_are_those_of_its_pieces(shape: tuple[int, ...], data: st.DataObject) -> None:
    layout = data.draw(st.one_of(cut_layouts({"w": shape}), layouts({"w": shape}, world=3)))
    pattern = layout["w"].placed.pattern
    lo, hi = bounds_of(pattern)
    assert [Box(tuple(a), tuple(b)) for a, b in zip(lo.tolist(), hi.tolist(), strict=True)] == [
        piece.box for piece in pattern.pieces
    ]
    assert ranks_of(pattern).tolist() == [piece.rank for piece in pattern.pieces]
