"""Read once what several ranks of a group want: who reads which bytes, and what they then give each other.

Data-parallel replicas want the same bytes; where they share a node, a store needs to send these only once. What the
group wants is cut into boxes that the same ranks want throughout. Each goes to one of them: first what nobody else
wants, then the rest, large ones first, to whoever has been given the fewest bytes (longest processing time first,
Graham 1969). Large boxes are cut, so that a single tensor is shared out as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from perdure.errors import CallError
from perdure.layout.box import Box
from perdure.layout.layout import Layout, TensorLayout
from perdure.layout.pattern import Pieces
from perdure.layout.piece import Piece
from perdure.plan.plan import Plan
from perdure.plan.reshard import reshard
from perdure.plan.rounds import chunks

__all__ = ["Shared", "read_once"]


@dataclass(frozen=True, slots=True)
class Shared:
    """``reads`` is what each rank of the group reads, at its place in the rank's own tensor; no element is in it twice.

    ``moves`` bring the rest of what ``wanted``, the group's part of the layout, gives each rank.
    """

    wanted: Layout
    reads: Layout
    moves: Plan

    @property
    def read_nbytes(self) -> dict[int, int]:
        """Bytes that each rank reads; ranks that read none are left out."""
        found: dict[int, int] = {}
        for tensor in self.reads.values():
            for piece in tensor.pieces:
                found[piece.rank] = found.get(piece.rank, 0) + piece.box.size * tensor.element_bytes
        return dict(sorted(found.items()))


def read_once(want: Layout, ranks: Iterable[int], *, most_bytes: int = 64 << 20) -> Shared:
    """Share out what ``ranks`` (those of a node) want of ``want``, so that each element is read by one of them.

    What several want is read in boxes of at most ``most_bytes``, where a single row is not larger. The same layout and
    ranks give the same answer on every rank.

    >>> whole = tuple(Piece.alone(rank, Box((0,), (6,))) for rank in range(4))
    >>> shared = read_once(Layout({"w": TensorLayout((6,), whole, "uint8")}), (2, 3), most_bytes=3)
    >>> [(piece.rank, str(piece.box)) for piece in shared.reads["w"].pieces]
    [(2, '[0:3]'), (3, '[3:6]')]
    >>> [str(move) for move in shared.moves.moves if not move.local]
    ['w[3:6] 3->2 (3 bytes)', 'w[0:3] 2->3 (3 bytes)']

    Raises `CallError` if ``most_bytes`` does not hold one element.
    """
    group = sorted(set(ranks))
    wanted = _part(want, group)
    load = dict.fromkeys(group, 0)
    shared: list[tuple[int, str, int, _Cell]] = []
    taken: dict[str, list[Piece]] = {name: [] for name in wanted}
    for name, tensor in wanted.items():
        width = tensor.element_bytes
        if width > most_bytes:
            raise CallError(f"{most_bytes} bytes do not hold one element of tensor {name!r}", most_bytes=most_bytes)
        for number, cell in enumerate(_cells(tensor.pieces)):
            if len(cell.homes) == 1:
                (piece,) = cell.homes.values()
                load[piece.rank] += cell.box.size * width
                taken[name] += _pieces(piece, cell.box)
                continue
            boxes = chunks(cell.box, most_bytes // width)
            shared += [(-box.size * width, name, number, _Cell(box, cell.homes)) for box in boxes]
    for negative, name, _, cell in sorted(shared, key=lambda each: (each[:3], each[3].box.lo)):
        rank = min(cell.homes, key=lambda each: (load[each], each))
        load[rank] -= negative
        taken[name] += _pieces(cell.homes[rank], cell.box)
    reads = Layout(
        {
            name: TensorLayout(wanted[name].shape, tuple(sorted(pieces, key=_order)), wanted[name].dtype)
            for name, pieces in taken.items()
        }
    )
    return Shared(wanted, reads, reshard(reads, wanted))


@dataclass(frozen=True, slots=True)
class _Cell:
    """A box, and by rank the piece that wants it and maybe more around it."""

    box: Box
    homes: dict[int, Piece]


def _part(want: Layout, group: Sequence[int]) -> Layout:
    """What ``group`` holds of ``want``; what lies alike is looked at once, and lies alike afterwards."""
    known: dict[tuple[object, int], Pieces] = {}
    found: dict[str, TensorLayout] = {}
    for name, tensor in want.items():
        key = tensor.placed.pattern, tensor.placed.first
        if key not in known:
            known[key] = Pieces.of([piece for rank in group for piece in tensor.of_rank(rank)])
        if len(known[key]):
            found[name] = TensorLayout(tensor.shape, known[key], tensor.dtype)
    return Layout(found)


def _cells(pieces: Iterable[Piece]) -> list[_Cell]:
    """Disjoint boxes that together are those of ``pieces``, each with all pieces that hold it."""
    cells: dict[Box, _Cell] = {}
    for piece in pieces:
        if piece.box.empty:
            continue
        same = cells.get(piece.box)
        if same is not None:
            same.homes.setdefault(piece.rank, piece)
            continue
        rest = [piece.box]
        for cell in [cell for cell in cells.values() if cell.box.touches(piece.box)]:
            del cells[cell.box]
            common = cell.box & piece.box
            cells[common] = _Cell(common, {piece.rank: piece, **cell.homes})
            cells |= {box: _Cell(box, dict(cell.homes)) for box in cell.box.minus(common)}
            rest = [box for each in rest for box in each.minus(common)]
        cells |= {box: _Cell(box, {piece.rank: piece}) for box in rest}
    return list(cells.values())


def _pieces(piece: Piece, box: Box) -> Iterator[Piece]:
    """``box``, a part of ``piece``, in the same own tensor: several pieces where it is not one span of a flat one."""
    if not piece.flat:
        yield Piece(piece.rank, box, box.relative_to(piece.box).shift(piece.place.lo))
        return
    outer, dim = piece.box.shape, 0
    while dim < box.ndim and box.shape[dim] == 1:
        dim += 1
    if box.shape[dim + 1 :] == outer[dim + 1 :]:
        strides = [prod(outer[i + 1 :]) for i in range(box.ndim)]
        at = piece.place.lo[0] + sum(
            (low - start) * stride for low, start, stride in zip(box.lo, piece.box.lo, strides, strict=True)
        )
        yield Piece(piece.rank, box, Box((at,), (at + box.size,)))
        return
    for row in range(box.lo[dim], box.hi[dim]):
        lo, hi = (*box.lo[:dim], row, *box.lo[dim + 1 :]), (*box.hi[:dim], row + 1, *box.hi[dim + 1 :])
        yield from _pieces(piece, Box(lo, hi))


def _order(piece: Piece) -> tuple[int, tuple[int, ...]]:
    return piece.rank, piece.box.lo
