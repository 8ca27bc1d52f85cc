"""Meshes and cuts to pieces, against arrays that are cut step by step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import LayoutError
from perdure.layout import BlockCyclic, ByHead, Cut, Even, Fused, Layout, Mesh, Rule, cut_tensor, view
from perdure.testing.layouts import own_arrays

MESH = Mesh((("pp", 2), ("dp", 2), ("tp", 3)))


@st.composite
def cut_lists(draw: st.DrawFn) -> list[Cut]:
    axes = draw(st.lists(st.sampled_from(MESH.names), unique=True, max_size=3))
    rules: st.SearchStrategy[Rule] = st.sampled_from([Even(), BlockCyclic(1), BlockCyclic(2)])
    return [Cut(axis, draw(st.integers(0, 1)), draw(rules)) for axis in axes]


@given(cuts=cut_lists(), shape=st.tuples(st.integers(0, 13), st.integers(0, 7)))
@settings(max_examples=60, deadline=None)
def test_own_tensors_are_those_of_cutting_one_axis_after_the_other(cuts: list[Cut], shape: tuple[int, int]) -> None:
    whole = np.arange(shape[0] * shape[1], dtype=np.int32).reshape(shape)
    layout = Layout({"w": cut_tensor(shape, mesh=MESH, cuts=cuts, dtype="int32")})
    layout.check()
    for rank in range(MESH.world):
        own = whole
        for cut in cuts:
            spans = cut.rule.spans(own.shape[cut.dim], MESH.size(cut.axis))[MESH.coordinate(rank, cut.axis)]
            own = np.concatenate([own.take(range(a, b), axis=cut.dim) for a, b in spans], axis=cut.dim)
        found = own_arrays(layout, rank, wholes={"w": whole})["w"]
        if own.size:
            np.testing.assert_array_equal(found, own)
        else:
            assert found.size == 0


def test_an_axis_that_no_cut_names_holds_replicas() -> None:
    tensor = cut_tensor((4, 4), mesh=Mesh((("dp", 2), ("tp", 2))), cuts=[Cut("tp", 1, Even())], dtype="float32")
    assert tensor.of_rank(0)[0].box == tensor.of_rank(2)[0].box
    tensor.check("w")


def test_a_rank_left_without_a_shard_still_has_an_empty_piece() -> None:
    tensor = cut_tensor((2, 5), mesh=Mesh((("dp", 3),)), cuts=[Cut("dp", 0, Even())], dtype="float32")
    assert tensor.own_shape(2) == (0, 5)


def test_a_scalar_is_replicated_on_every_rank() -> None:
    tensor = cut_tensor((), mesh=MESH, cuts=[], dtype="float32")
    tensor.check("step")
    assert {tensor.own_shape(rank) for rank in range(MESH.world)} == {()}


def test_a_fused_weight_with_shared_heads_has_several_pieces_a_rank() -> None:
    # Four query heads, two key and two value heads of width 2, over four ranks.
    rule = Fused(((8, ByHead(4)), (4, ByHead(2)), (4, ByHead(2))))
    tensor = cut_tensor((16, 3), mesh=Mesh((("tp", 4),)), cuts=[Cut("tp", 0, rule)], dtype="float32")
    tensor.check("qkv")
    assert [str(piece.box) for piece in tensor.of_rank(1)] == ["[2:4, 0:3]", "[8:10, 0:3]", "[12:14, 0:3]"]
    assert tensor.own_shape(1) == (6, 3)


def test_a_view_of_a_piece_is_never_a_copy() -> None:
    tensor = cut_tensor((), mesh=Mesh(()), cuts=[], dtype="float32")
    own = np.zeros((), dtype=np.float32)
    view(own, tensor.pieces[0], tensor.whole)[...] = 7
    assert own == 7


@pytest.mark.parametrize(
    "cuts",
    [
        [Cut("ep", 0, Even())],
        [Cut("tp", 2, Even())],
        [Cut("tp", 0, Even()), Cut("tp", 1, Even())],
    ],
)
def test_cuts_that_do_not_fit_mesh_or_tensor_are_refused(cuts: list[Cut]) -> None:
    with pytest.raises(LayoutError):
        cut_tensor((4, 4), mesh=MESH, cuts=cuts, dtype="float32")
