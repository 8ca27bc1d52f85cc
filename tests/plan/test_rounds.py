"""Rounds keep the budget and lose nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import CallError
from perdure.layout import Box, Layout, Piece, TensorLayout
from perdure.plan import Plan, audit, reshard, rounds
from perdure.testing.layouts import layouts, shapes


@given(shapes().flatmap(lambda s: st.tuples(layouts({"w": s}, world=4), layouts({"w": s}, world=4))),
       st.integers(1, 40))  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_rounds_keep_the_budget_and_make_up_the_plan(pair: tuple[Layout, Layout], budget_elements: int) -> None:
    have, want = pair
    plan = reshard(have, want)
    steps = rounds(plan, budget_bytes=4 * budget_elements)
    audit(Plan(tuple(move for step in steps for move in step.moves)), have, want)
    for step in steps:
        assert step.moves
        assert all(nbytes <= 4 * budget_elements for nbytes in step.sent_nbytes.values())
        assert all(nbytes <= 4 * budget_elements for nbytes in step.received_nbytes.values())


def one_move(shape: tuple[int, ...]) -> Plan:
    here, there = (
        Layout({"w": TensorLayout(shape, (Piece.alone(rank, Box.whole(shape)),), "float32")}) for rank in (0, 1)
    )
    return reshard(here, there)


def test_a_big_move_is_split_by_rows() -> None:
    steps = rounds(one_move((5, 10)), budget_bytes=2 * 40)
    assert [str(step.moves[0].box) for step in steps] == ["[0:2, 0:10]", "[2:4, 0:10]", "[4:5, 0:10]"]


def test_a_row_that_is_too_big_is_split_in_turn() -> None:
    steps = rounds(one_move((1, 2, 10)), budget_bytes=24)
    assert [move.box.shape for step in steps for move in step.moves] == [(1, 1, 6), (1, 1, 4)] * 2


def test_a_budget_below_one_element_is_refused() -> None:
    with pytest.raises(CallError, match="one element"):
        rounds(one_move((3,)), budget_bytes=3)


def test_an_empty_plan_has_no_rounds_and_local_moves_need_one() -> None:
    assert rounds(Plan(()), budget_bytes=1) == ()
    layout = Layout({"w": TensorLayout((100,), (Piece.alone(0, Box((0,), (100,))),), "float32")})
    assert len(rounds(reshard(layout, layout), budget_bytes=1)) == 1


def test_pairs_that_do_not_meet_go_in_the_same_round() -> None:
    def on(ranks: range) -> Layout:
        pieces = tuple(Piece.alone(rank, Box((number,), (number + 1,))) for number, rank in enumerate(ranks))
        return Layout({"w": TensorLayout((len(ranks),), pieces, "float32")})

    assert len(rounds(reshard(on(range(50)), on(range(50, 100))), budget_bytes=4)) == 1
