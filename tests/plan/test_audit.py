"""The audit refuses every plan that was tampered with."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import Bug
from perdure.layout import Box, Layout, Piece, TensorLayout
from perdure.plan import Move, Plan, audit, reshard
from perdure.testing.layouts import layouts, shapes


@st.composite
def planned(draw: st.DrawFn) -> tuple[Plan, Layout, Layout]:
    forms = {"w": draw(shapes())}
    have, want = draw(layouts(forms, world=3)), draw(layouts(forms, world=3))
    return reshard(have, want), have, want


@given(planned(), st.data())
@settings(max_examples=60, deadline=None)
def test_a_move_too_few_or_too_many_is_found(made: tuple[Plan, Layout, Layout], data: st.DataObject) -> None:
    plan, have, want = made
    audit(plan, have, want)
    if not plan.moves:
        return
    number = data.draw(st.integers(0, len(plan) - 1))
    with pytest.raises(Bug, match="arrives 0 times"):
        audit(Plan(plan.moves[:number] + plan.moves[number + 1 :]), have, want)
    with pytest.raises(Bug, match="arrives 2 times") as caught:
        audit(Plan((*plan.moves, plan.moves[number])), have, want)
    lo, hi = caught.value.box
    assert Box(tuple(lo), tuple(hi)) in plan.moves[number].box


def test_moves_from_and_to_where_nothing_is_are_found() -> None:
    left, right = Piece.alone(0, Box((0,), (4,))), Piece.alone(1, Box((4,), (8,)))
    layout = Layout({"w": TensorLayout((8,), (left, right), "uint8")})
    good = Move("w", left.box, left, left, 4)
    stranger = Piece.alone(2, left.box)
    for bad, sentence in [
        (replace(good, box=Box((0,), (5,)), nbytes=5), "does not hold"),
        (replace(good, source=stranger), "does not hold"),
        (replace(good, source=right), "does not hold"),
        (replace(good, dest=stranger), "does not want"),
        (replace(good, name="v"), "does not hold"),
        (replace(good, nbytes=5), "wrong bytes"),
        (replace(good, box=Box((1,), (1,)), nbytes=0), "wrong bytes"),
    ]:
        with pytest.raises(Bug, match=sentence):
            audit(Plan((bad,)), layout, layout)


def test_a_canvas_of_many_cells_is_painted_in_slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("perdure.plan.audit"), "_CANVAS_CELLS", 10)
    cells = [Piece.alone(0, Box((i, j), (i + 1, j + 1))) for i in range(7) for j in range(6)]
    whole = Piece.alone(1, Box((0, 0), (7, 6)))
    have = Layout({"w": TensorLayout((7, 6), tuple(cells), "uint8")})
    want = Layout({"w": TensorLayout((7, 6), (whole,), "uint8")})
    plan = reshard(have, want)
    audit(plan, have, want)
    for number, move in enumerate(plan.moves):
        with pytest.raises(Bug, match="arrives 0 times") as caught:
            audit(Plan(plan.moves[:number] + plan.moves[number + 1 :]), have, want)
        assert caught.value.box == move.box.as_json()
