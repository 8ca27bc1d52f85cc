"""A plan: the moves that lead from one layout to another, and the bytes that they cost.

A value: nothing is carried out here, and every rank that plans from the same layouts gets the same plan.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from perdure.layout.box import Box
from perdure.layout.layout import Piece

__all__ = ["Move", "Plan"]


@dataclass(frozen=True, slots=True)
class Move:
    """Copy ``box`` (global, never empty) of tensor ``name`` from the piece ``source`` to the piece ``dest``.

    ``box`` lies in the boxes of both pieces; ``nbytes`` is its size in bytes.
    """

    name: str
    box: Box
    source: Piece
    dest: Piece
    nbytes: int

    @property
    def local(self) -> bool:
        """Whether source and destination are on one rank, so that no link is used."""
        return self.source.rank == self.dest.rank

    def __str__(self) -> str:
        return f"{self.name}{self.box} {self.source.rank}->{self.dest.rank} ({self.nbytes} bytes)"


@dataclass(frozen=True, slots=True)
class Plan:
    """Moves by tensor name, then by wanted piece; none depends on another's being made first."""

    moves: tuple[Move, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all moves, local ones among them."""
        return sum(move.nbytes for move in self.moves)

    @property
    def link_nbytes(self) -> int:
        """Bytes that go from one rank to another."""
        return sum(move.nbytes for move in self.moves if not move.local)

    @property
    def sent_nbytes(self) -> dict[int, int]:
        """Bytes that each rank sends to others; ranks that send none are left out."""
        return _summed((move.source.rank, move.nbytes) for move in self.moves if not move.local)

    @property
    def received_nbytes(self) -> dict[int, int]:
        """Bytes that each rank receives from others; ranks that receive none are left out."""
        return _summed((move.dest.rank, move.nbytes) for move in self.moves if not move.local)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Every rank that a move starts or ends at, in rising order."""
        return tuple(sorted({rank for move in self.moves for rank in (move.source.rank, move.dest.rank)}))

    def of_rank(self, rank: int) -> Plan:
        """The moves that start or end at ``rank``."""
        return Plan(tuple(move for move in self.moves if rank in (move.source.rank, move.dest.rank)))

    def __len__(self) -> int:
        return len(self.moves)


def _summed(amounts: Iterable[tuple[int, int]]) -> dict[int, int]:
    total: dict[int, int] = {}
    for rank, nbytes in amounts:
        total[rank] = total.get(rank, 0) + nbytes
    return dict(sorted(total.items()))
