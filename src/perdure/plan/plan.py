"""A plan: the moves that lead from one layout to another, and the bytes that they cost.

A value: nothing is carried out here, and every rank that plans from the same layouts gets the same plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perdure.plan.move import Move
from perdure.plan.moves import Moves

__all__ = ["Move", "Plan"]


@dataclass(frozen=True, slots=True)
class Plan:
    """Moves by tensor name, then by wanted piece; none depends on another's being made first.

    A large plan keeps its moves in columns (`perdure.plan.moves`), and what is asked of it here is summed there.
    """

    moves: Sequence[Move]

    def __hash__(self) -> int:
        return hash((len(self.moves), self.moves[0] if len(self.moves) else None))

    @property
    def nbytes(self) -> int:
        """Bytes of all moves, local ones among them."""
        return self.moves.nbytes if isinstance(self.moves, Moves) else sum(move.nbytes for move in self.moves)

    @property
    def link_nbytes(self) -> int:
        """Bytes that go from one rank to another."""
        return sum(self.received_nbytes.values())

    @property
    def sent_nbytes(self) -> dict[int, int]:
        """Bytes that each rank sends to others; ranks that send none are left out."""
        if isinstance(self.moves, Moves):
            return self.moves.sent()
        return _summed((move.source.rank, move.nbytes) for move in self.moves if not move.local)

    @property
    def received_nbytes(self) -> dict[int, int]:
        """Bytes that each rank receives from others; ranks that receive none are left out."""
        if isinstance(self.moves, Moves):
            return self.moves.received()
        return _summed((move.dest.rank, move.nbytes) for move in self.moves if not move.local)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Every rank that a move starts or ends at, in rising order."""
        if isinstance(self.moves, Moves):
            return self.moves.ranks()
        return tuple(sorted({rank for move in self.moves for rank in (move.source.rank, move.dest.rank)}))

    def of_rank(self, rank: int) -> Plan:
        """The moves that start or end at ``rank``."""
        if isinstance(self.moves, Moves):
            return Plan(self.moves.of_rank(rank))
        return Plan(tuple(move for move in self.moves if rank in (move.source.rank, move.dest.rank)))

    def __len__(self) -> int:
        return len(self.moves)


def _summed(amounts: Iterable[tuple[int, int]]) -> dict[int, int]:
    total: dict[int, int] = {}
    for rank, nbytes in amounts:
        total[rank] = total.get(rank, 0) + nbytes
    return dict(sorted(total.items()))
