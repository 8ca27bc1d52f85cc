"""An even grid says in a few numbers what pieces say one by one, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import LayoutError
from perdure.layout import Box, Cut, Even, EvenGrid, Mesh, cut_tensor

SHAPES = st.lists(st.integers(1, 9), min_size=0, max_size=3).map(tuple)


@given(SHAPES, st.integers(1, 4), st.integers(1, 4), st.randoms())
def test_pieces_of_any_mesh_that_cuts_evenly_are_found_and_given_back(
    shape: tuple[int, ...], dp: int, tp: int, random: object
) -> None:
    mesh = Mesh((("dp", dp), ("tp", tp)))
    cuts = [Cut(axis, dim, Even()) for dim, axis in zip(range(len(shape)), ("dp", "tp"), strict=False)]
    pieces: dict[Box, int] = {}
    for piece in cut_tensor(shape, mesh=mesh, cuts=cuts, dtype="uint8").pieces:
        if not piece.box.empty:
            pieces.setdefault(piece.box, piece.rank)
    given_ = [(rank, box) for box, rank in pieces.items()]
    random.shuffle(given_)  # type: ignore[attr-defined]
    grid = EvenGrid.of(shape, given_)
    assert grid is not None
    assert sorted(grid.blocks(shape), key=str) == sorted(given_, key=str)


@given(SHAPES.filter(len), st.integers(0, 5))
def test_a_tensor_that_one_rank_holds_whole_is_a_grid_of_one(shape: tuple[int, ...], rank: int) -> None:
    grid = EvenGrid.of(shape, [(rank, Box.whole(shape))])
    assert grid == EvenGrid((1,) * len(shape), rank, (0,) * len(shape))
    assert list(grid.blocks(shape)) == [(rank, Box.whole(shape))]


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [(0, Box((0,), (3,))), (1, Box((3,), (8,)))],  # uneven
        [(0, Box((0,), (4,)))],  # not all of it
        [(1, Box((0,), (4,))), (0, Box((4,), (8,)))],  # ranks fall
        [(0, Box((0,), (4,))), (0, Box((0,), (4,)))],  # twice
        [(0, Box((0,), (2,))), (1, Box((2,), (4,))), (5, Box((4,), (6,))), (6, Box((6,), (8,)))],  # no stride
    ],
)
def test_what_is_no_even_grid_is_none(pieces: list[tuple[int, Box]]) -> None:
    assert EvenGrid.of((8,), pieces) is None


def test_a_grid_that_does_not_fit_its_tensor_is_refused_before_it_takes_memory() -> None:
    for grid, shape in [
        (EvenGrid((1 << 20,), 0, (1,)), (4,)),
        (EvenGrid((4,), 0, (1,)), (5,)),  # 2, 2, 1, 0
        (EvenGrid((1, 1), 0, (0, 0)), (4,)),
    ]:
        with pytest.raises(LayoutError):
            list(grid.blocks(shape))
    for parts, first, strides in [
        ((1 << 60,), 0, (1,)),
        ((0,), 0, (1,)),
        ((1,), -1, (1,)),
        ((1,), 0, ()),
        ((2,), 0, (-1,)),
    ]:
        with pytest.raises(LayoutError):
            EvenGrid(parts, first, strides)
