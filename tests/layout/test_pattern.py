"""What a pattern answers for one rank or one box is what the list of its pieces says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import LayoutError
from perdure.layout import (
    Box,
    Cut,
    Even,
    EvenGrid,
    Fused,
    Layout,
    Listed,
    Mesh,
    Pieces,
    TensorLayout,
    cut_tensor,
    first_overlap,
    flat_cut,
    grid_pattern,
    pieces_at,
)
from perdure.testing.layouts import cut_out, shapes
from perdure.testing.meshes import cut_layouts, cuts, meshes

FORMS = st.lists(shapes(most_dims=3, longest=6), min_size=1, max_size=3).map(
    lambda found: {f"t{number}": shape for number, shape in enumerate(found)}
)


def agrees_with_its_list(tensor: TensorLayout, box: Box) -> None:
    pieces = tuple(tensor.pieces)
    listed = TensorLayout(tensor.shape, pieces, tensor.dtype)
    assert len(tensor.pieces) == len(pieces)
    assert tensor == listed
    assert hash(tensor) == hash(listed)
    assert tensor.ranks == listed.ranks
    for rank in range(max(tensor.ranks, default=0) + 3):
        assert tensor.of_rank(rank) == tuple(piece for piece in pieces if piece.rank == rank)
    first = tensor.placed.first
    near = {(h.box, rank + first) for h in tensor.placed.pattern.touching(box) for rank in h.ranks}
    assert near == {(piece.box, piece.rank) for piece in pieces if piece.box.touches(box) and not piece.box.empty}
    boxes = list({piece.box for piece in pieces if not piece.box.empty})
    if tensor.placed.pattern.disjoint:
        assert first_overlap(boxes) is None


@given(FORMS, st.data())
@settings(max_examples=120, deadline=None)
def test_a_pattern_and_its_list_give_the_same_answers(forms: dict[str, tuple[int, ...]], data: st.DataObject) -> None:
    layout = data.draw(cut_layouts(forms))
    for tensor in layout.values():
        bounds = [sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in tensor.shape]
        box = Box(tuple(low for low, _ in bounds), tuple(high for _, high in bounds))
        if not box.empty:
            agrees_with_its_list(tensor, box)
    part = layout.of_rank(1)
    assert part == Layout({n: TensorLayout(t.shape, t.of_rank(1), t.dtype) for n, t in layout.items() if t.of_rank(1)})


@given(FORMS, st.data())
@settings(max_examples=80, deadline=None)
def test_flat_slices_hold_what_arrays_laid_end_to_end_hold(
    forms: dict[str, tuple[int, ...]], data: st.DataObject
) -> None:
    mesh = data.draw(meshes(most_ranks=8))
    inner = {name: data.draw(cuts(shape, mesh, ["tp", "pp"])) for name, shape in forms.items()}
    align = data.draw(st.integers(1, 4))
    layout = flat_cut(forms, mesh=mesh, cuts=inner, along="dp", dtype="int64", align=align)
    wholes = {}
    for number, (name, shape) in enumerate(forms.items()):
        wholes[name] = 1000 * number + np.arange(int(np.prod(shape, dtype=int))).reshape(shape)
    for rank in range(mesh.world):
        group = mesh.group(rank, "dp")
        buffer: list[int] = []
        for name, shape in forms.items():
            pieces = pieces_at(shape, mesh=mesh, cuts=inner[name], rank=group[0])
            own = np.full(np.max([piece.place.hi for piece in pieces], axis=0), -1) if shape else np.array(-1)
            for piece in pieces:
                cut_out(own, piece.place)[...] = cut_out(wholes[name], piece.box)
            buffer += own.reshape(-1).tolist()
        width = max(-(-len(buffer) // (len(group) * align)), 1) * align
        mine = buffer[group.index(rank) * width : (group.index(rank) + 1) * width]
        seen = 0
        for name in forms:
            for piece in layout[name].of_rank(rank):
                block = cut_out(wholes[name], piece.box).reshape(-1).tolist()
                assert block == mine[piece.place.lo[0] : piece.place.hi[0]]
                seen += len(block)
        assert seen == len(mine)


def test_tensors_that_lie_alike_on_other_stages_share_a_pattern() -> None:
    mesh = Mesh((("pp", 3), ("dp", 2), ("tp", 4)))
    made = [
        cut_tensor(
            (16, 4), mesh=mesh, cuts=(Cut("tp", 0, Even()), Cut("dp", 0, Even())), dtype="int8", at={"pp": stage}
        )
        for stage in range(3)
    ]
    assert made[0].placed.pattern is made[2].placed.pattern
    assert [tensor.placed.first for tensor in made] == [0, 8, 16]
    assert made[2].ranks == tuple(range(16, 24))
    Layout({str(stage): tensor for stage, tensor in enumerate(made)}).check()


def test_a_fused_tensor_has_a_piece_of_each_section_on_a_rank_and_in_its_flat_slices() -> None:
    mesh = Mesh((("dp", 2), ("tp", 2)))
    gate_up = {"gate_up": (Cut("tp", 0, Fused(((4, Even()), (4, Even())))),)}
    flat = flat_cut({"gate_up": (8, 3)}, mesh=mesh, cuts=gate_up, along="dp", dtype="float32")
    assert [str(piece.box) for piece in flat["gate_up"].of_rank(1)] == ["[2:4, 0:3]"]  # gate, of the second half
    assert [str(piece.box) for piece in flat["gate_up"].of_rank(3)] == ["[6:8, 0:3]"]  # up


def test_a_stage_must_be_there_and_not_be_cut_as_well() -> None:
    mesh = Mesh((("pp", 2), ("tp", 2)))
    with pytest.raises(LayoutError, match="coordinate 2"):
        cut_tensor((4,), mesh=mesh, cuts=(), dtype="int8", at={"pp": 2})
    with pytest.raises(LayoutError, match="axis 'ep'"):
        cut_tensor((4,), mesh=mesh, cuts=(), dtype="int8", at={"ep": 0})
    with pytest.raises(LayoutError, match="cannot cut it too"):
        cut_tensor((4,), mesh=mesh, cuts=(Cut("pp", 0, Even()),), dtype="int8", at={"pp": 0})
    with pytest.raises(LayoutError, match="'pp'"):
        flat_cut({"w": (4,)}, mesh=mesh, cuts={}, along="pp", dtype="int8", at={"pp": 0})


@given(st.tuples(st.integers(1, 4), st.integers(1, 4)), st.tuples(st.integers(0, 9), st.integers(0, 9)), st.data())
@settings(max_examples=80, deadline=None)
def test_a_grid_is_a_pattern_where_its_ranks_count_as_those_of_a_mesh(
    parts: tuple[int, int], strides: tuple[int, int], data: st.DataObject
) -> None:
    shape = (parts[0] * 2, parts[1] * 3)
    grid = EvenGrid(parts, 2, strides)
    pattern = grid_pattern(grid, shape)
    blocks = sorted((rank, box.lo, box.hi) for rank, box in grid.blocks(shape))
    if pattern is None:
        ranks = [rank for rank, _, _ in blocks]
        ordered = all(
            max(strides) % max(s * n, 1) == 0 for s, n in zip(strides, parts, strict=True) if s < max(strides)
        )
        assert len(set(ranks)) < len(ranks) or not ordered
        return
    assert [(p.rank, p.box.lo, p.box.hi) for p in Pieces(pattern, grid.first)] == blocks
    assert Pieces(pattern, grid.first) == Pieces(Listed(tuple(Pieces(pattern, grid.first))), 0)
