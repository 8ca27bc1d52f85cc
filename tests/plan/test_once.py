"""What a group reads: each element once, by one that wants it, in equal shares."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import CallError
from perdure.layout import Box, Cut, Even, Layout, Mesh, Piece, TensorLayout, cut_tensor, flat_cut
from perdure.plan import audit, read_once
from perdure.testing.layouts import cut_out, layouts, shapes

WORLD = 4


@st.composite
def wanted(draw: st.DrawFn) -> Layout:
    forms = {f"t{number}": draw(shapes()) for number in range(draw(st.integers(1, 2)))}
    return draw(layouts(forms, world=WORLD, extra_boxes=draw(st.sampled_from([0, 3]))))


@given(wanted(), st.sets(st.integers(0, WORLD - 1)), st.integers(4, 60))
@settings(max_examples=150, deadline=None)
def test_each_element_that_the_group_wants_is_read_once_by_one_that_wants_it(
    want: Layout, group: set[int], most_bytes: int
) -> None:
    shared = read_once(want, group, most_bytes=most_bytes)
    for name, tensor in want.items():
        wanting = np.zeros((WORLD, *tensor.shape), bool)
        for piece in tensor.pieces:
            cut_out(wanting[piece.rank, ...], piece.box)[...] = piece.rank in group
        count = np.zeros(tensor.shape, int)
        for piece in shared.reads[name].pieces if name in shared.reads else ():
            assert cut_out(wanting[piece.rank, ...], piece.box).all()
            cut_out(count, piece.box)[...] += 1
        assert (count == wanting.any(axis=0)).all()
    audit(shared.moves, shared.reads, shared.wanted)
    assert {piece.rank for tensor in shared.wanted.values() for piece in tensor.pieces} <= group


@given(wanted(), st.sets(st.integers(0, WORLD - 1)))
@settings(max_examples=60, deadline=None)
def test_what_is_read_lies_where_it_is_wanted(want: Layout, group: set[int]) -> None:
    shared = read_once(want, group, most_bytes=8)
    for name, tensor in shared.reads.items():
        for piece in tensor.pieces:
            (home,) = [h for h in want[name].of_rank(piece.rank) if piece.box in h.box][:1]
            numbers = np.arange(home.box.size).reshape(home.box.shape)
            mine = cut_out(numbers, piece.box, outer=home.box).reshape(-1)
            if home.flat:
                assert mine.tolist() == list(
                    range(piece.place.lo[0] - home.place.lo[0], piece.place.hi[0] - home.place.lo[0])
                )
            else:
                assert piece.place == piece.box.relative_to(home.box).shift(home.place.lo)


@given(st.integers(1, 9), st.lists(st.integers(1, 400), min_size=1, max_size=12), st.integers(4, 400))
@settings(max_examples=80, deadline=None)
def test_replicas_read_equal_shares(replicas: int, extents: list[int], most_bytes: int) -> None:
    mesh = Mesh((("dp", replicas),))
    want = Layout({f"t{i:02}": cut_tensor((n,), mesh=mesh, cuts=[], dtype="float32") for i, n in enumerate(extents)})
    read = read_once(want, range(replicas), most_bytes=most_bytes).read_nbytes
    assert sum(read.values()) == want.nbytes
    # No one has more than the least loaded had before its last box came to it.
    least = min(read.values()) if len(read) == replicas else 0
    assert max(read.values()) - least <= most_bytes


def test_what_one_alone_wants_counts_in_its_share() -> None:
    alone = Piece.alone(0, Box((0,), (60,)))
    both = tuple(Piece.alone(rank, Box((0,), (60,))) for rank in range(2))
    want = Layout({"alone": TensorLayout((60,), (alone,), "uint8"), "both": TensorLayout((60,), both, "uint8")})
    shared = read_once(want, range(2), most_bytes=10)
    assert shared.read_nbytes == {0: 60, 1: 60}
    assert shared.moves.link_nbytes == 60


def test_a_node_of_tensor_parallel_replicas_reads_its_state_once() -> None:
    mesh = Mesh((("dp", 6), ("tp", 2)))
    shapes_ = {"a": (10, 7), "b": (5,)}
    cuts = {"a": (Cut("tp", 0, Even()),)}
    params = {n: cut_tensor(s, mesh=mesh, cuts=cuts.get(n, ()), dtype="bfloat16") for n, s in shapes_.items()}
    moments = flat_cut(shapes_, mesh=mesh, cuts=cuts, along="dp", dtype="float32")
    want = Layout({**params, **{f"m.{name}": tensor for name, tensor in moments.items()}})
    shared = read_once(want, range(4), most_bytes=4)  # two replicas of both halves
    boxes = {(n, p.box): p.box.size * t.element_bytes for n, t in want.items() for r in range(4) for p in t.of_rank(r)}
    assert sum(shared.read_nbytes.values()) == sum(boxes.values())
    assert sum(boxes.values()) < sum(t.element_bytes * p.box.size for t in shared.wanted.values() for p in t.pieces)
    assert shared.moves.link_nbytes == shared.moves.nbytes - sum(boxes.values())
    audit(shared.moves, shared.reads, shared.wanted)


def test_bytes_that_hold_no_element_are_refused() -> None:
    with pytest.raises(CallError, match="one element"):
        read_once(Layout({"w": TensorLayout((2,), (Piece.alone(0, Box((0,), (2,))),), "float64")}), [0], most_bytes=7)
