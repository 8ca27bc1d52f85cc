"""Layouts: pieces that tile, and faults that are named."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import LayoutError, StateMismatch
from perdure.layout import Box, Cut, Even, Layout, Mesh, Piece, TensorLayout, cut_tensor, element_bytes
from perdure.testing.layouts import layouts, shapes, tensor_layouts

ROWS = cut_tensor((80, 6), mesh=Mesh((("dp", 40),)), cuts=[Cut("dp", 0, Even())], dtype="float32")
GRID = cut_tensor(
    (60, 50), mesh=Mesh((("dp", 60), ("tp", 50))), cuts=[Cut("dp", 0, Even()), Cut("tp", 1, Even())], dtype="float32"
)


def with_pieces(tensor: TensorLayout, *pieces: Piece) -> TensorLayout:
    return TensorLayout(tensor.shape, pieces, tensor.dtype)


@given(shapes().flatmap(lambda shape: layouts({"a": shape, "b": shape}, world=4)))
@settings(max_examples=60, deadline=None)
def test_irregular_replicated_and_empty_pieces_tile(layout: Layout) -> None:
    layout.check()


@given(shapes().flatmap(lambda shape: tensor_layouts(shape, world=3)), st.data())
@settings(max_examples=60, deadline=None)
def test_a_box_that_is_taken_away_everywhere_is_found_missing(tensor: TensorLayout, data: st.DataObject) -> None:
    boxes = sorted({(piece.box.lo, piece.box.hi) for piece in tensor.pieces if not piece.box.empty})
    if not boxes:
        return
    lost = Box(*data.draw(st.sampled_from(boxes)))
    with pytest.raises(LayoutError, match="no rank holds") as caught:
        with_pieces(tensor, *(piece for piece in tensor.pieces if piece.box != lost)).check("w")
    assert caught.value.tensor == "w"
    (gap,) = caught.value.boxes
    assert Box(tuple(gap[0]), tuple(gap[1])) in lost


@pytest.mark.parametrize("tensor", [ROWS, GRID])
def test_gap_and_overlap_are_named_among_few_and_many_boxes(tensor: TensorLayout) -> None:
    tensor.check("w")
    pieces = tensor.pieces
    victim = pieces[len(pieces) // 2]
    with pytest.raises(LayoutError) as caught:
        with_pieces(tensor, *(piece for piece in pieces if piece is not victim)).check("w")
    assert caught.value.boxes == [victim.box.as_json()]
    wider = Piece.alone(victim.rank, Box(victim.box.lo, (victim.box.hi[0] + 1, victim.box.hi[1])))
    with pytest.raises(LayoutError, match="overlap without being replicas") as caught:
        with_pieces(tensor, *(piece for piece in pieces if piece is not victim), wider).check("w")
    assert wider.box.as_json() in caught.value.boxes


def test_a_gap_that_an_overlap_makes_up_for_in_size_is_not_missed() -> None:
    shifted = with_pieces(ROWS, *ROWS.pieces[:-1], Piece.alone(39, Box((77, 0), (79, 6))))
    with pytest.raises(LayoutError, match="overlap"):
        shifted.check("w")


def test_other_faults_are_named_too() -> None:
    whole = Box((0,), (4,))
    faults = {
        "leaves the shape": [Piece.alone(0, Box((0,), (5,)))],
        "of rank 3 leaves": [Piece.alone(0, whole), Piece.alone(3, Box((0, 0), (4, 1)))],
        "twice": [Piece.alone(0, whole), Piece(0, whole, Box((4,), (8,)))],
        "overlapping places": [Piece.alone(0, Box((0,), (2,))), Piece.alone(0, Box((2,), (4,)))],
        "no rank holds": [],
    }
    for sentence, pieces in faults.items():
        with pytest.raises(LayoutError, match=sentence):
            Layout({"w": TensorLayout((4,), tuple(pieces), "float32")}).check()


def test_a_piece_whose_place_does_not_fit_its_box_is_refused() -> None:
    for place in (Box((0,), (5,)), Box((0, 0), (3, 2))):
        with pytest.raises(LayoutError, match="cannot hold"):
            Piece(0, Box((0, 0), (2, 3)), place)


def test_an_empty_tensor_needs_no_piece() -> None:
    TensorLayout((0, 3), (), "float32").check("w")


def test_the_parts_of_all_ranks_merge_into_the_layout() -> None:
    layout = Layout({"w": ROWS, "b": cut_tensor((), mesh=Mesh(()), cuts=[], dtype="float32")})
    merged = Layout.merge(layout.of_rank(rank) for rank in layout.ranks)
    assert merged == layout
    assert hash(merged) == hash(layout)
    assert layout.nbytes == 80 * 6 * 4 + 4
    with pytest.raises(StateMismatch, match="disagree on tensor 'w'"):
        Layout.merge([layout, {"w": TensorLayout((80, 6), (), "float16")}])


def test_a_dtype_whose_width_is_unknown_is_refused_by_name() -> None:
    assert [element_bytes(name) for name in ("float64", "int8", "uint16", "complex128", "float8_e8m0fnu")] == [
        8, 1, 2, 16, 1,
    ]  # fmt: skip
    for name in ("float", "float4", "", "int3"):
        with pytest.raises(LayoutError, match="dtype"):
            element_bytes(name)
