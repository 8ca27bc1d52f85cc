"""Random layouts for property tests, and the arrays that ranks hold under them.

Hypothesis strategies: irregular tilings, replicas, empty pieces, scalars, several pieces a rank, flat and shaped own
tensors. Needs the ``hypothesis`` of the test environment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from perdure.layout import Box, Layout, Piece, TensorLayout, view

__all__ = ["cut_out", "layouts", "own_arrays", "placed", "shapes", "tensor_layouts", "tilings", "wholes_of"]


def shapes(*, most_dims: int = 3, longest: int = 6) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes of tensors, scalars and empty ones among them."""
    return st.lists(st.integers(0, longest), max_size=most_dims).map(tuple)


@st.composite
def tilings(draw: st.DrawFn, shape: Sequence[int], *, most_splits: int = 7) -> list[Box]:
    """Non-empty boxes that tile ``shape``, made by splitting boxes at random places: mostly no grid."""
    whole = Box.whole(shape)
    boxes = [] if whole.empty else [whole]
    for _ in range(draw(st.integers(0, most_splits))):
        longer = [number for number, box in enumerate(boxes) if box.size > 1]
        if not longer:
            break
        box = boxes.pop(draw(st.sampled_from(longer)))
        dim = draw(st.sampled_from([dim for dim, extent in enumerate(box.shape) if extent > 1]))
        at = draw(st.integers(box.lo[dim] + 1, box.hi[dim] - 1))
        boxes.append(Box(box.lo, (*box.hi[:dim], at, *box.hi[dim + 1 :])))
        boxes.append(Box((*box.lo[:dim], at, *box.lo[dim + 1 :]), box.hi))
    return boxes


@st.composite
def tensor_layouts(
    draw: st.DrawFn, shape: Sequence[int], *, world: int, dtype: str = "int32", extra_boxes: int = 0
) -> TensorLayout:
    """Whole layouts of a tensor over ``world`` ranks; up to ``extra_boxes`` more overlap the rest at random."""
    ranks = st.integers(0, world - 1)
    held: dict[int, list[Box]] = {rank: [] for rank in range(world)}
    for box in draw(tilings(shape)):
        for rank in draw(st.sets(ranks, min_size=1, max_size=world)):
            held[rank].append(box)
    for _ in range(draw(st.integers(0, extra_boxes))):
        bounds = [sorted(draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in shape]
        extra = Box(tuple(low for low, _ in bounds), tuple(high for _, high in bounds))
        rank = draw(ranks)
        if extra not in held[rank]:
            held[rank].append(extra)
    pieces: list[Piece] = []
    for rank, boxes in held.items():
        if draw(st.booleans()) and shape:
            boxes = [*boxes, Box((shape[0], *(0 for _ in shape[1:])), tuple(shape))]
        pieces += placed(rank, boxes, ("flat", "shaped")[draw(st.integers(0, 1))])
    return TensorLayout(tuple(shape), tuple(draw(st.permutations(pieces))), dtype)


@st.composite
def layouts(draw: st.DrawFn, shapes: Mapping[str, Sequence[int]], *, world: int, extra_boxes: int = 0) -> Layout:
    """Layouts of the tensors ``shapes`` over ``world`` ranks."""
    return Layout(
        {name: draw(tensor_layouts(shape, world=world, extra_boxes=extra_boxes)) for name, shape in shapes.items()}
    )


def placed(rank: int, boxes: Sequence[Box], form: str) -> list[Piece]:
    """Pieces of ``rank`` one after the other in its own tensor: row-major in a buffer (``flat``), or along dim 0."""
    pieces: list[Piece] = []
    at = 0
    for box in boxes:
        if form == "flat":
            pieces.append(Piece(rank, box, Box((at,), (at + box.size,))))
            at += box.size
        else:
            place = Box.whole(box.shape).shift((at, *(0 for _ in box.shape[1:])) if box.ndim else ())
            pieces.append(Piece(rank, box, place))
            at += box.shape[0] if box.ndim else 1
    return pieces


def wholes_of(layout: Layout) -> dict[str, NDArray[Any]]:
    """A whole array for each tensor, in which every element differs from every other of all tensors."""
    found: dict[str, NDArray[Any]] = {}
    first = 1
    for name, tensor in layout.items():
        size = tensor.whole.size
        found[name] = np.arange(first, first + size).astype(tensor.dtype).reshape(tensor.shape)
        first += size
    return found


def own_arrays(layout: Layout, rank: int, *, wholes: Mapping[str, NDArray[Any]] | None = None) -> dict[str, Any]:
    """The own array of ``rank`` for each tensor of which it holds a piece, cut from ``wholes``; all 0 without them."""
    found: dict[str, Any] = {}
    for name, tensor in layout.items():
        shape = tensor.own_shape(rank)
        if shape is None:
            continue
        found[name] = np.zeros(shape, dtype=tensor.dtype)
        if wholes is not None:
            for piece in tensor.of_rank(rank):
                view(found[name], piece, piece.box)[...] = cut_out(wholes[name], piece.box)
    return found


def cut_out(array: NDArray[Any], box: Box, *, outer: Box | None = None) -> NDArray[Any]:
    """``box`` of an array that holds exactly ``outer`` (the whole tensor without it), as a view."""
    key: Any = (*box.within(Box.whole(array.shape) if outer is None else outer), ...)
    found: NDArray[Any] = array[key]
    return found
