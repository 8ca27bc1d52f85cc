"""Fit a plan into a memory and link budget: rounds, one after the other.

In one round no rank sends more than the budget and none receives more, so staging memory is bounded. Local moves use no
link and no staging and count nothing. A move that is too big is split by rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from operator import itemgetter

import numpy as np

from perdure.errors import CallError
from perdure.layout.box import Box
from perdure.plan.join import bounds
from perdure.plan.moves import Moves, Table
from perdure.plan.plan import Move, Plan

__all__ = ["chunks", "rounds"]

_LOOK_BACK = 32
_NEARLY = 16


def rounds(plan: Plan, *, budget_bytes: int) -> tuple[Plan, ...]:
    """Split ``plan`` into rounds that send at most ``budget_bytes`` from any rank and bring as much to any rank.

    Moves keep their order as far as the budget lets them; each goes into the first round that has room at both ends.
    The same plan and budget give the same rounds on every rank. An empty plan has no rounds.

    Raises `CallError` if not even one element fits into the budget.
    """
    filling = _Filling(budget_bytes)
    if isinstance(plan.moves, Moves):
        return _in_columns(plan.moves, filling, budget_bytes)
    filled: dict[int, list[Move]] = {}
    for whole in plan.moves:
        for move in [whole] if whole.local else _split(whole, budget_bytes):
            filled.setdefault(filling.place(move.source.rank, move.dest.rank, move.nbytes), []).append(move)
    return tuple(Plan(tuple(moves)) for _, moves in sorted(filled.items(), key=itemgetter(0)))


def _in_columns(moves: Moves, filling: _Filling, budget_bytes: int) -> tuple[Plan, ...]:
    filled: dict[int, list[Table]] = {}
    for whole in moves.tables:
        table = _split_table(whole, budget_bytes)
        nbytes = (table.columns.size * table.width).tolist()
        rows = zip(table.sources.tolist(), table.dests.tolist(), nbytes, strict=True)
        numbers = np.fromiter((filling.place(*row) for row in rows), np.int64, len(table))
        order = np.argsort(numbers, kind="stable")
        begins = np.flatnonzero(np.diff(numbers[order], prepend=-1))
        for of_round in np.split(order, begins[1:]) if len(order) else ():
            filled.setdefault(int(numbers[of_round[0]]), []).append(replace(table, columns=table.columns.at(of_round)))
    return tuple(Plan(Moves(tables)) for _, tables in sorted(filled.items(), key=itemgetter(0)))


def _split_table(table: Table, budget_bytes: int) -> Table:
    """``table`` with the moves between ranks that are too big cut by rows; mostly none is."""
    big = (table.columns.size * table.width > budget_bytes) & (table.sources != table.dests)
    if not big.any():
        return table
    parts = {row: [move.box for move in _split(table.move(row), budget_bytes)] for row in np.flatnonzero(big).tolist()}
    counts = np.ones(len(table), np.int64)
    counts[list(parts)] = [len(boxes) for boxes in parts.values()]
    columns = table.columns.at(np.repeat(np.arange(len(table)), counts))
    at = np.repeat(big, counts)
    lo, hi = bounds([box for boxes in parts.values() for box in boxes], columns.lo.shape[1])
    columns.lo[at], columns.hi[at] = lo, hi
    columns.size[at] = (hi - lo).prod(axis=1)
    return replace(table, columns=columns)


class _Filling:
    """Which round each move goes into."""

    def __init__(self, budget_bytes: int) -> None:
        self._sent = _Room(budget_bytes)
        self._received = _Room(budget_bytes)

    def place(self, source: int, dest: int, nbytes: int) -> int:
        """The number of the first round that has room at both ends, which is taken. What stays on a rank needs none."""
        if source == dest:
            return 0
        sent, received = self._sent, self._received
        number = max(sent.first_open(source), received.first_open(dest))
        while not (sent.fits(source, number, nbytes) and received.fits(dest, number, nbytes)):
            number += 1
        sent.take(source, number, nbytes)
        received.take(dest, number, nbytes)
        return number


class _Room:
    """What is left of the budget of each rank in each round.

    Rounds that are nearly full, or lie far back, are not looked at again: so placing a move takes bounded time.
    """

    __slots__ = ("_budget_bytes", "_left", "_open")

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._left: dict[int, list[int]] = {}
        self._open: dict[int, int] = {}

    def first_open(self, rank: int) -> int:
        return max(self._open.get(rank, 0), len(self._left.get(rank, ())) - _LOOK_BACK)

    def fits(self, rank: int, number: int, nbytes: int) -> bool:
        left = self._left.get(rank, [])
        return number >= len(left) or nbytes <= left[number]

    def take(self, rank: int, number: int, nbytes: int) -> None:
        left = self._left.setdefault(rank, [])
        while len(left) <= number:
            left.append(self._budget_bytes)
        left[number] -= nbytes
        first = self._open.get(rank, 0)
        while first < len(left) and left[first] * _NEARLY < self._budget_bytes:
            first += 1
        self._open[rank] = first


def _split(move: Move, budget_bytes: int) -> list[Move]:
    if move.nbytes <= budget_bytes:
        return [move]
    element_bytes = move.nbytes // move.box.size
    if element_bytes > budget_bytes:
        raise CallError(
            f"a budget of {budget_bytes} bytes does not hold one element of tensor {move.name!r}; raise it",
            budget_bytes=budget_bytes,
        )
    parts = chunks(move.box, budget_bytes // element_bytes)
    return [Move(move.name, box, move.source, move.dest, box.size * element_bytes) for box in parts]


def chunks(box: Box, most: int) -> Iterator[Box]:
    """Cut ``box`` into boxes of at most ``most`` elements: by rows, and rows that are too big by their own rows."""
    if box.size <= most:
        yield box
        return
    dim = next(dim for dim, extent in enumerate(box.shape) if extent > 1)
    row = prod(box.shape[dim + 1 :])
    step = max(most // row, 1)
    for start in range(box.lo[dim], box.hi[dim], step):
        stop = min(start + step, box.hi[dim])
        part = Box((*box.lo[:dim], start, *box.lo[dim + 1 :]), (*box.hi[:dim], stop, *box.hi[dim + 1 :]))
        yield from chunks(part, most)
