"""Moves in columns: many millions of them in little memory, written out one by one only where somebody looks.

Tensors that lie alike and have nothing to choose share their columns, so that a plan for thousands of tensors on ten
thousand ranks is a few dozen tables.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import overload

import numpy as np
from numpy.typing import NDArray

from perdure.layout.box import Box
from perdure.layout.layout import TensorLayout
from perdure.layout.pattern import Pieces
from perdure.plan.join import Ints, ranks_of
from perdure.plan.move import Move

__all__ = ["Columns", "Moves", "Table"]


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Moves, a row each: the box from ``lo`` to ``hi``, of ``size`` elements, goes from piece ``source`` to ``dest``.

    These are positions in what is held and what is wanted. ``lo`` and ``hi`` have a column for each dim.
    """

    lo: Ints
    hi: Ints
    source: NDArray[np.int32]
    dest: NDArray[np.int32]
    size: Ints

    def __len__(self) -> int:
        return len(self.size)

    def at(self, rows: Ints) -> Columns:
        """A copy of ``rows``, in that order."""
        return Columns(self.lo[rows], self.hi[rows], self.source[rows], self.dest[rows], self.size[rows])


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """The moves of one tensor."""

    name: str
    have: TensorLayout
    want: TensorLayout
    columns: Columns

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def width(self) -> int:
        """Bytes of an element."""
        return self.want.element_bytes

    @property
    def sources(self) -> Ints:
        """The rank that each move starts at."""
        return _ranks(self.have.placed, self.columns.source)

    @property
    def dests(self) -> Ints:
        """The rank that each move ends at."""
        return _ranks(self.want.placed, self.columns.dest)

    def move(self, row: int) -> Move:
        """Row ``row``, written out."""
        columns = self.columns
        box = Box(tuple(columns.lo[row].tolist()), tuple(columns.hi[row].tolist()))
        source, dest = self.have.pieces[int(columns.source[row])], self.want.pieces[int(columns.dest[row])]
        return Move(self.name, box, source, dest, int(columns.size[row]) * self.width)

    def __iter__(self) -> Iterator[Move]:
        have, want = tuple(self.have.pieces), tuple(self.want.pieces)
        columns = self.columns
        rows = (columns.lo.tolist(), columns.hi.tolist(), columns.source.tolist(), columns.dest.tolist())
        for lo, hi, source, dest, size in zip(*rows, columns.size.tolist(), strict=True):
            yield Move(self.name, Box(tuple(lo), tuple(hi)), have[source], want[dest], size * self.width)


class Moves(Sequence[Move]):
    """All moves of some tables, in order. Equal to any sequence of equal moves; a slice is a tuple."""

    def __init__(self, tables: Sequence[Table]) -> None:
        self.tables = tuple(tables)

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(map(len, self.tables)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> Move: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Move, ...]: ...

    def __getitem__(self, index: int | slice) -> Move | tuple[Move, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        if not -len(self) <= index < len(self):
            raise IndexError(f"there is no move {index} of {len(self)}")
        index %= len(self)
        number = bisect_right(self._ends, index)
        return self.tables[number].move(index - self._ends[number] + len(self.tables[number]))

    def __iter__(self) -> Iterator[Move]:
        for table in self.tables:
            yield from table

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or len(self) != len(other):
            return False
        return self is other or all(mine == its for mine, its in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash((len(self), self[0] if len(self) else None))

    # --- sums, by rank -----------------------------------------------------------------------------------------------

    @property
    def nbytes(self) -> int:
        return sum(int(table.columns.size.sum()) * table.width for table in self.tables)

    def sent(self) -> dict[int, int]:
        """Bytes that each rank sends to others."""
        return self._by_rank(lambda table: table.sources)

    def received(self) -> dict[int, int]:
        """Bytes that each rank receives from others."""
        return self._by_rank(lambda table: table.dests)

    def _by_rank(self, end: Callable[[Table], Ints]) -> dict[int, int]:
        found: dict[int, int] = {}
        # By the columns and the first ranks: tensors that share these differ by their width alone.
        for tables in self._alike().values():
            one, width = tables[0], sum(table.width for table in tables)
            linked = one.sources != one.dests
            ranks, at = np.unique(end(one)[linked], return_inverse=True)
            total = np.zeros(len(ranks), np.int64)
            np.add.at(total, at, one.columns.size[linked])
            for rank, size in zip(ranks.tolist(), total.tolist(), strict=True):
                found[rank] = found.get(rank, 0) + size * width
        return dict(sorted(found.items()))

    def ranks(self) -> tuple[int, ...]:
        """Every rank that a move starts or ends at, in rising order."""
        found: set[int] = set()
        for tables in self._alike().values():
            found.update(np.unique(tables[0].sources).tolist(), np.unique(tables[0].dests).tolist())
        return tuple(sorted(found))

    def of_rank(self, rank: int) -> tuple[Move, ...]:
        """The moves that start or end at ``rank``."""
        rows: dict[tuple[int, int, int], list[int]] = {}
        for key, tables in self._alike().items():
            one = tables[0]
            rows[key] = np.flatnonzero((one.sources == rank) | (one.dests == rank)).tolist()
        return tuple(table.move(row) for table in self.tables for row in rows[_likeness(table)])

    def _alike(self) -> dict[tuple[int, int, int], list[Table]]:
        found: dict[tuple[int, int, int], list[Table]] = {}
        for table in self.tables:
            found.setdefault(_likeness(table), []).append(table)
        return found


def _likeness(table: Table) -> tuple[int, int, int]:
    return id(table.columns), table.have.placed.first, table.want.placed.first


def _ranks(pieces: Pieces, positions: NDArray[np.int32]) -> Ints:
    return ranks_of(pieces.pattern)[positions] + pieces.first
