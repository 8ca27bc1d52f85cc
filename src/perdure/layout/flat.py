"""Flat slices of tensors, as ZeRO and FSDP1 keep them: a range of the row-major elements, as boxes.

A range that starts and ends inside rows is a staircase: the end of a row, whole rows, the start of a row, and so on in
every dim, at most ``2 * ndim - 1`` boxes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from perdure.errors import LayoutError
from perdure.layout.box import Box
from perdure.layout.layout import Layout, Piece, TensorLayout

__all__ = ["flat_boxes", "flat_layout", "flat_pieces"]


def flat_boxes(shape: Sequence[int], *, start: int, stop: int) -> list[Box]:
    """The boxes that elements ``start <= i < stop`` of a flattened tensor of ``shape`` fill, in flat order.

    >>> [str(box) for box in flat_boxes((3, 4), start=2, stop=10)]
    ['[0:1, 2:4]', '[1:2, 0:4]', '[2:3, 0:2]']

    Raises `LayoutError` if the range leaves the tensor.
    """
    if not 0 <= start <= stop <= prod(shape):
        raise LayoutError(f"elements {start} to {stop} leave a tensor of shape {list(shape)}", start=start, stop=stop)
    if start == stop:
        return []
    if not shape:
        return [Box((), ())]
    row = prod(shape[1:])
    first, skipped = divmod(start, row)
    last, used = divmod(stop, row)
    if first == last:
        return _in_row(shape, first, skipped, used)
    boxes: list[Box] = []
    if skipped:
        boxes += _in_row(shape, first, skipped, row)
        first += 1
    if first < last:
        boxes.append(Box((first, *(0 for _ in shape[1:])), (last, *shape[1:])))
    if used:
        boxes += _in_row(shape, last, 0, used)
    return boxes


def flat_pieces(shape: Sequence[int], *, rank: int, start: int, stop: int, at: int = 0) -> tuple[Piece, ...]:
    """Pieces of ``rank`` that hold elements ``start`` to ``stop`` in a row from element ``at`` of its flat buffer."""
    pieces: list[Piece] = []
    for box in flat_boxes(shape, start=start, stop=stop):
        pieces.append(Piece(rank, box, Box((at,), (at + box.size,))))
        at += box.size
    return tuple(pieces)


def flat_layout(shapes: Mapping[str, Sequence[int]], *, bounds: Sequence[tuple[int, int]], dtype: str) -> Layout:
    """The layout of tensors laid end to end in one flat buffer, of which rank ``i`` holds ``bounds[i]``.

    Bounds are elements of the whole buffer; they may reach past the last tensor (padding). The own tensor of a rank,
    the same under every name, is its slice of the buffer.

    >>> layout = flat_layout({"a": (2, 2), "b": (3,)}, bounds=[(0, 4), (4, 8)], dtype="float32")
    >>> [(name, piece.rank, str(piece.box), str(piece.place)) for name in layout for piece in layout[name].pieces]
    [('a', 0, '[0:2, 0:2]', '[0:4]'), ('b', 1, '[0:3]', '[0:3]')]
    """
    tensors: dict[str, TensorLayout] = {}
    begin = 0
    for name, shape in shapes.items():
        end = begin + prod(shape)
        pieces: list[Piece] = []
        for rank, (low, high) in enumerate(bounds):
            start, stop = max(low, begin), min(high, end)
            if start < stop:
                pieces += flat_pieces(shape, rank=rank, start=start - begin, stop=stop - begin, at=start - low)
        tensors[name] = TensorLayout(tuple(shape), tuple(pieces), dtype)
        begin = end
    return Layout(tensors)


def _in_row(shape: Sequence[int], row: int, start: int, stop: int) -> list[Box]:
    inner = flat_boxes(shape[1:], start=start, stop=stop)
    return [Box((row, *box.lo), (row + 1, *box.hi)) for box in inner]
