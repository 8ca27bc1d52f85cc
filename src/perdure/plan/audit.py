"""Prove a plan, by painting every destination.

Knows nothing of how plans are made. Each wanted piece is painted with the moves that end in it, counting arrivals; the
canvas has one cell for every block between neighbouring edges of those moves, so it costs by moves, not by elements.

Moves in columns are proved in columns: boxes that lie in a wanted box, touch no other of them and add up to its size
cover it exactly once. What fails is painted, to name the place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod

import numpy as np
from numpy.typing import NDArray

from perdure.errors import Bug
from perdure.layout.box import Box
from perdure.layout.layout import Layout
from perdure.layout.pattern import Pattern
from perdure.layout.piece import Piece
from perdure.plan.join import bounds_of
from perdure.plan.moves import Columns, Moves, Table
from perdure.plan.plan import Move, Plan

__all__ = ["audit"]

_Ints = NDArray[np.int64]
_CANVAS_CELLS = 1 << 22
_COMPARED = 32  # moves into one piece, up to which each is compared with each other


def audit(plan: Plan, have: Layout, want: Layout) -> None:
    """Raise `Bug`, naming the tensor and the box, unless ``plan`` leads from ``have`` to ``want``.

    Every element of every wanted piece must arrive exactly once, every move must take its box from inside a piece
    of ``have`` and put it inside a piece of ``want``, and the bytes that the plan states must be true.
    """
    if isinstance(plan.moves, Moves) and all(_same(table, have, want) for table in plan.moves.tables):
        _audit_tables(plan.moves.tables, want)
        return
    held = {name: set(tensor.pieces) for name, tensor in have.items()}
    wanted = {name: set(tensor.pieces) for name, tensor in want.items()}
    arrivals: dict[tuple[str, Piece], list[Move]] = {}
    for move in plan.moves:
        if move.source not in held.get(move.name, ()) or move.box not in move.source.box:
            raise _bug(move.name, move.box, f"rank {move.source.rank} does not hold what move {move} takes")
        if move.dest not in wanted.get(move.name, ()) or move.box not in move.dest.box:
            raise _bug(move.name, move.box, f"rank {move.dest.rank} does not want what move {move} brings")
        if move.nbytes != move.box.size * want[move.name].element_bytes or move.box.empty:
            raise _bug(move.name, move.box, f"move {move} states the wrong bytes")
        arrivals.setdefault((move.name, move.dest), []).append(move)
    for name, tensor in want.items():
        for piece in tensor.pieces:
            _paint(name, piece, [move.box for move in arrivals.get((name, piece), ())])


def _same(table: Table, have: Layout, want: Layout) -> bool:
    return have.get(table.name) == table.have and want.get(table.name) == table.want


def _audit_tables(tables: Iterable[Table], want: Layout) -> None:
    seen: set[str] = set()
    proved: set[tuple[int, Pattern, Pattern]] = set()
    for table in tables:
        if table.name in seen:
            raise _bug(table.name, table.want.whole, f"{table.want.whole} arrives 2 times")
        seen.add(table.name)
        # Whatever the first ranks are: what shares its columns is proved with them.
        patterns = table.have.placed.pattern, table.want.placed.pattern
        if (id(table.columns), *patterns) not in proved:
            _audit_table(table, table.columns, *map(bounds_of, patterns))
            proved.add((id(table.columns), *patterns))
    for name, tensor in want.items():
        for piece in tensor.pieces if name not in seen else ():
            _paint(name, piece, [])


def _audit_table(table: Table, columns: Columns, held: tuple[_Ints, _Ints], wanted: tuple[_Ints, _Ints]) -> None:
    n_held, n_wanted = len(held[0]), len(wanted[0])
    for row in np.flatnonzero((columns.source < 0) | (columns.source >= n_held)):
        raise _bug(table.name, table.want.whole, f"move {row} takes from piece {columns.source[row]} of {n_held}")
    for row in np.flatnonzero((columns.dest < 0) | (columns.dest >= n_wanted)):
        raise _bug(table.name, table.want.whole, f"move {row} brings to piece {columns.dest[row]} of {n_wanted}")
    for row in _outside(columns, held[0][columns.source], held[1][columns.source]):
        move = table.move(int(row))
        raise _bug(table.name, move.box, f"rank {move.source.rank} does not hold what move {move} takes")
    for row in _outside(columns, wanted[0][columns.dest], wanted[1][columns.dest]):
        move = table.move(int(row))
        raise _bug(table.name, move.box, f"rank {move.dest.rank} does not want what move {move} brings")
    extents = columns.hi - columns.lo
    for row in np.flatnonzero((columns.size != extents.prod(axis=1)) | (columns.size <= 0)):
        move = table.move(int(row))
        raise _bug(table.name, move.box, f"move {move} states the wrong bytes")
    arrived = np.zeros(n_wanted, np.int64)
    np.add.at(arrived, columns.dest, columns.size)
    wrong = arrived != (wanted[1] - wanted[0]).prod(axis=1)
    order = np.argsort(columns.dest, kind="stable")
    lo, hi, dest = columns.lo[order], columns.hi[order], columns.dest[order]
    counts = np.bincount(dest, minlength=n_wanted)
    wrong |= counts > _COMPARED  # not wrong perhaps, but to be painted
    for lag in range(1, int(min(counts.max(initial=0), _COMPARED))):
        pair = np.flatnonzero(dest[lag:] == dest[:-lag])
        one, other = pair, pair + lag
        both = ((lo[one] < hi[other]) & (lo[other] < hi[one])).all(axis=1)
        wrong[dest[one[both]]] = True
    begin = np.cumsum(counts) - counts
    for position in np.flatnonzero(wrong).tolist():
        rows = range(int(begin[position]), int(begin[position] + counts[position]))
        boxes = [Box(tuple(lo[row].tolist()), tuple(hi[row].tolist())) for row in rows]
        _paint(table.name, table.want.pieces[position], boxes)


def _outside(columns: Columns, lo: _Ints, hi: _Ints) -> _Ints:
    """The rows whose box leaves the box from ``lo`` to ``hi``."""
    if not len(columns):  # perhaps without a dim, where nothing is held
        return np.empty(0, np.int64)
    return np.flatnonzero(~((columns.lo >= lo) & (columns.hi <= hi)).all(axis=1))


def _paint(name: str, piece: Piece, boxes: list[Box]) -> None:
    if piece.box.empty:
        return
    edges = [
        np.unique([*(bound for box in boxes for bound in (box.lo[dim], box.hi[dim])), low, high])
        for dim, (low, high) in enumerate(zip(piece.box.lo, piece.box.hi, strict=True))
    ]
    corners = [
        (
            [int(np.searchsorted(edges[dim], low)) for dim, low in enumerate(box.lo)],
            [int(np.searchsorted(edges[dim], high)) for dim, high in enumerate(box.hi)],
        )
        for box in boxes
    ]
    cells = tuple(len(column) - 1 for column in edges)
    for start, stop in _slabs(cells):
        # A scalar has no dim to slab; its canvas is a single cell.
        canvas = np.zeros((stop - start, *cells[1:]) if cells else (), dtype=np.int32)
        for lo, hi in corners:
            inside = [slice(a, b) for a, b in zip(lo, hi, strict=True)]
            if cells:
                inside[0] = slice(max(lo[0] - start, 0), max(hi[0] - start, 0))
            canvas[tuple(inside)] += 1
        wrong = np.argwhere(canvas != 1)
        if len(wrong):
            cell = [int(position) for position in wrong[0]]
            count = int(canvas[tuple(cell)])
            if cells:
                cell[0] += start
            box = Box(
                tuple(int(edges[dim][position]) for dim, position in enumerate(cell)),
                tuple(int(edges[dim][position + 1]) for dim, position in enumerate(cell)),
            )
            raise _bug(name, box, f"{box} arrives {count} times at rank {piece.rank}")


def _slabs(cells: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Runs of rows of the canvas that keep it small."""
    rows = cells[0] if cells else 1
    step = max(_CANVAS_CELLS // max(prod(cells[1:]), 1), 1)
    for start in range(0, rows, step):
        yield start, min(start + step, rows)


def _bug(name: str, box: Box, sentence: str) -> Bug:
    return Bug(f"plan for tensor {name!r}: {sentence}", tensor=name, box=box.as_json())
