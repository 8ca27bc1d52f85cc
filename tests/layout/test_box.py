"""Boxes, against the sets of indices that they stand for."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import LayoutError
from perdure.layout import Box
from perdure.testing.layouts import cut_out

quick = settings(max_examples=80, deadline=None)


@st.composite
def boxes(draw: st.DrawFn, ndim: int) -> Box:
    bounds = [sorted(draw(st.tuples(st.integers(0, 5), st.integers(0, 5)))) for _ in range(ndim)]
    return Box(tuple(low for low, _ in bounds), tuple(high for _, high in bounds))


pairs = st.integers(0, 3).flatmap(lambda ndim: st.tuples(boxes(ndim), boxes(ndim)))


def elements(box: Box) -> set[tuple[int, ...]]:
    return set(product(*(range(low, high) for low, high in zip(box.lo, box.hi, strict=True))))


@given(pairs)
@quick
def test_boxes_behave_as_sets_of_indices(pair: tuple[Box, Box]) -> None:
    one, other = pair
    assert elements(one & other) == elements(one) & elements(other)
    assert elements(one | other) >= elements(one) | elements(other)
    assert (other in one) == (elements(other) <= elements(one))
    assert one.touches(other) == bool(elements(one) & elements(other))
    assert one.size == len(elements(one))
    assert one.empty == (not elements(one))


@given(pairs)
@quick
def test_minus_leaves_disjoint_boxes_with_the_rest(pair: tuple[Box, Box]) -> None:
    one, other = pair
    rest = one.minus(other)
    assert sum(box.size for box in rest) == len(elements(one) - elements(other))
    assert set().union(*map(elements, rest)) == elements(one) - elements(other)
    assert len(rest) <= 2 * one.ndim


@given(pairs)
@quick
def test_within_selects_the_box_from_an_array_of_the_outer_one(pair: tuple[Box, Box]) -> None:
    one, other = pair
    inner = one & other
    if inner.empty:
        return
    numbers = np.arange(6**one.ndim).reshape((6,) * one.ndim)
    outer = cut_out(numbers, one)
    np.testing.assert_array_equal(cut_out(outer, inner, outer=one), cut_out(numbers, inner))
    assert inner.relative_to(one).shift(one.lo) == inner


def test_a_scalar_is_one_element_and_in_itself() -> None:
    scalar = Box((), ())
    assert scalar.size == 1
    assert not scalar.empty
    assert scalar & scalar == scalar
    assert scalar in scalar
    assert scalar.minus(scalar) == ()


def test_bounds_that_make_no_box_are_refused() -> None:
    for lo, hi in [((0,), (1, 2)), ((3,), (2,))]:
        with pytest.raises(LayoutError):
            Box(lo, hi)


def test_a_box_that_leaves_the_outer_one_has_no_slices_in_it() -> None:
    with pytest.raises(LayoutError, match=r"\[2:9\] leaves \[0:8\]"):
        Box((2,), (9,)).within(Box((0,), (8,)))
    with pytest.raises(LayoutError, match="dims"):
        Box((2,), (9,)).within(Box((), ()))
