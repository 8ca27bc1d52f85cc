"""Prove a plan, by painting every destination.

Knows nothing of how plans are made. Each wanted piece is painted with the moves that end in it, counting arrivals; the
canvas has one cell for every block between neighbouring edges of those moves, so it costs by moves, not by elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from perdure.errors import Bug
from perdure.layout.box import Box
from perdure.layout.layout import Layout, Piece
from perdure.plan.plan import Move, Plan

__all__ = ["audit"]

_CANVAS_CELLS = 1 << 22


def audit(plan: Plan, have: Layout, want: Layout) -> None:
    """Raise `Bug`, naming the tensor and the box, unless ``plan`` leads from ``have`` to ``want``.

    Every element of every wanted piece must arrive exactly once, every move must take its box from inside a piece
    of ``have`` and put it inside a piece of ``want``, and the bytes that the plan states must be true.
    """
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
