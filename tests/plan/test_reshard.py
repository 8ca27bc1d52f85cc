"""Plans, against arrays that count arrivals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import NotCovered, StateMismatch
from perdure.layout import Box, Cut, Even, Layout, Mesh, Piece, TensorLayout, Uneven, cut_tensor
from perdure.plan import Plan, audit, reshard
from perdure.testing.layouts import cut_out, layouts, shapes

WORLD = 4


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Layout, Layout]:
    forms = {f"t{number}": draw(shapes()) for number in range(draw(st.integers(1, 2)))}
    have = draw(layouts(forms, world=WORLD, extra_boxes=draw(st.sampled_from([0, 3]))))
    return have, draw(layouts(forms, world=WORLD, extra_boxes=2))


def replicated(ranks: range, *, size: int = 8, dtype: str = "uint8") -> Layout:
    pieces = tuple(Piece.alone(rank, Box((0,), (size,))) for rank in ranks)
    return Layout({"w": TensorLayout((size,), pieces, dtype)})


def sources(plan: Plan) -> dict[int, int]:
    return {move.dest.rank: move.source.rank for move in plan.moves}


@given(pairs())
@settings(max_examples=120, deadline=None)
def test_every_element_arrives_exactly_once(pair: tuple[Layout, Layout]) -> None:
    have, want = pair
    plan = reshard(have, want)
    arrived = {
        (name, number): np.zeros(piece.box.shape, dtype=int)
        for name, tensor in want.items()
        for number, piece in enumerate(tensor.pieces)
    }
    for move in plan.moves:
        assert move.box in move.source.box
        assert move.source in have[move.name].pieces
        number = want[move.name].pieces.index(move.dest)
        counts = cut_out(arrived[move.name, number], move.box, outer=move.dest.box)
        counts += 1
    assert all((count == 1).all() for count in arrived.values())
    audit(plan, have, want)


@given(pairs(), st.data())
@settings(max_examples=60, deadline=None)
def test_a_box_that_nobody_holds_is_named(pair: tuple[Layout, Layout], data: st.DataObject) -> None:
    have, want = pair
    name = data.draw(st.sampled_from(sorted(have)))
    lost = data.draw(st.integers(0, WORLD - 1))
    left = Layout(
        {**have, name: TensorLayout(have[name].shape, tuple(p for p in have[name].pieces if p.rank != lost), "int32")}
    )
    canvas = np.zeros(have[name].shape, dtype=int)
    for piece in left[name].pieces:
        painted = cut_out(canvas, piece.box)
        painted += 1
    gone = any(not cut_out(canvas, p.box).all() for p in want[name].pieces)
    if not gone:
        audit(reshard(left, want), left, want)
        return
    with pytest.raises(NotCovered) as caught:
        reshard(left, want)
    assert caught.value.tensor == name
    lo, hi = caught.value.box
    assert not cut_out(canvas, Box(tuple(lo), tuple(hi))).any()


@given(pairs())
@settings(max_examples=40, deadline=None)
def test_what_a_rank_holds_itself_is_never_sent_to_it(pair: tuple[Layout, Layout]) -> None:
    have, want = pair
    for move in reshard(have, want).moves:
        if not move.local:
            own = [piece.box for piece in have[move.name].of_rank(move.dest.rank)]
            assert not any(box.touches(move.box) for box in own)


def test_a_layout_that_stays_moves_nothing_between_ranks() -> None:
    layout = Layout({"w": cut_tensor((7, 3), mesh=Mesh((("tp", 4),)), cuts=[Cut("tp", 0, Even())], dtype="float32")})
    plan = reshard(layout, Layout(dict(layout)))
    assert plan.link_nbytes == 0
    assert plan.nbytes == 7 * 3 * 4
    assert reshard(layout, layout) is plan


def test_the_nearest_holder_is_taken() -> None:
    plan = reshard(
        replicated(range(0, 8, 4)), replicated(range(8)), distance=lambda source, dest: int(source // 4 != dest // 4)
    )
    assert sources(plan) == {0: 0, 1: 0, 2: 0, 3: 0, 4: 4, 5: 4, 6: 4, 7: 4}


def test_equally_near_holders_share_the_load() -> None:
    plan = reshard(replicated(range(4)), replicated(range(4, 16)))
    assert plan.sent_nbytes == dict.fromkeys(range(4), 24)
    assert plan.received_nbytes == dict.fromkeys(range(4, 16), 8)
    assert plan.ranks == tuple(range(16))
    assert len(plan.of_rank(0)) == 3


def test_overlapping_holders_share_the_load_too() -> None:
    left, right = Piece.alone(0, Box((0,), (6,))), Piece.alone(1, Box((2,), (8,)))
    have = Layout({"w": TensorLayout((8,), (left, right), "uint8")})
    want = replicated(range(2, 6))
    plan = reshard(have, want)
    audit(plan, have, want)
    assert plan.sent_nbytes == {0: 16, 1: 16}


def test_another_shape_or_dtype_and_a_missing_tensor_are_refused_by_name() -> None:
    have = replicated(range(1))
    with pytest.raises(StateMismatch) as shape:
        reshard(have, replicated(range(1), size=9))
    assert shape.value.facts == {"shape": ["w"]}
    with pytest.raises(StateMismatch) as dtype:
        reshard(have, replicated(range(1), dtype="int8"))
    assert dtype.value.facts == {"dtype": ["w"]}
    with pytest.raises(NotCovered, match="'w'"):
        reshard(Layout({}), have)


def test_uneven_cuts_with_empty_parts_are_planned() -> None:
    mesh = Mesh((("tp", 4),))
    have = Layout({"w": cut_tensor((9, 2), mesh=mesh, cuts=[Cut("tp", 0, Uneven((0, 7, 0, 2)))], dtype="float32")})
    want = Layout({"w": cut_tensor((9, 2), mesh=mesh, cuts=[Cut("tp", 0, Even())], dtype="float32")})
    plan = reshard(have, want)
    audit(plan, have, want)
    row_bytes = 2 * 4
    assert plan.sent_nbytes == {1: 4 * row_bytes, 3: 2 * row_bytes}
    assert plan.received_nbytes == {0: 3 * row_bytes, 2: 3 * row_bytes}


def test_each_piece_is_compared_with_its_neighbours_only(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0
    touches = Box.touches

    def counted(self: Box, other: Box) -> bool:
        nonlocal compared
        compared += 1
        return touches(self, other)

    monkeypatch.setattr(Box, "touches", counted)
    mesh = Mesh((("dp", 300), ("tp", 4)))
    rules = Even(), Uneven((1, *(3 for _ in range(298)), 5))
    have, want = (
        Layout({"w": cut_tensor((900, 8), mesh=mesh, cuts=[Cut("dp", 0, r), Cut("tp", 1, Even())], dtype="float32")})
        for r in rules
    )
    plan = reshard(have, want)
    assert len(plan) == 4 * (1 + 298 * 2 + 2)
    assert compared < 20 * 1200


@given(pairs())
@settings(max_examples=20, deadline=None)
def test_equal_layouts_give_equal_plans_in_whatever_order_they_were_made(pair: tuple[Layout, Layout]) -> None:
    have, want = pair
    turned = Layout({n: have[n] for n in reversed(list(have))}), Layout({n: want[n] for n in reversed(list(want))})
    # A distance of its own for each call keeps the cache out of it.
    assert reshard(have, want, distance=lambda *_: 1) == reshard(*turned, distance=lambda *_: 1)
