"""Patterns: how the pieces of a tensor lie, with ranks counted from the first; many tensors share one.

The layers of a model lie alike, and pipeline stages differ by their first rank alone. So the pieces of a tensor are a
`Pattern` and a first rank: a thousand tensors on ten thousand ranks are a few dozen patterns. A pattern that knows its
rule answers for one rank or one box without a list of its pieces (`perdure.layout.cut_pattern`,
`perdure.layout.flat_pattern`); `Listed` is the pattern without a rule.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple, overload

from perdure.layout.box import Box
from perdure.layout.index import BoxIndex
from perdure.layout.piece import Piece
from perdure.layout.tiling import first_overlap

__all__ = ["Holding", "Listed", "Pattern", "Pieces"]


class Holding(NamedTuple):
    """A box, not empty, and the ranks that hold it, in rising order and counted from the pattern's first."""

    box: Box
    ranks: tuple[int, ...]


class Pattern(ABC):
    """How the pieces of one tensor lie. Equal by its ``key``, which says all."""

    def __init__(self, key: Hashable) -> None:
        self.key = key

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Pattern) and type(other) is type(self) and self.key == other.key)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self.key)

    @abstractmethod
    def __len__(self) -> int:
        """How many pieces there are."""

    @property
    @abstractmethod
    def pieces(self) -> tuple[Piece, ...]:
        """All of them, written out."""

    @property
    @abstractmethod
    def ranks(self) -> tuple[int, ...]:
        """Every rank that holds a piece, in rising order."""

    @property
    @abstractmethod
    def disjoint(self) -> bool:
        """Whether boxes overlap only by being the very same box."""

    @abstractmethod
    def of_rank(self, rank: int) -> tuple[Piece, ...]:
        """The pieces of ``rank``."""

    @abstractmethod
    def touching(self, box: Box) -> list[Holding]:
        """Every box that has an element in common with ``box``, each once, and who holds it."""

    @cached_property
    def ends(self) -> tuple[Piece, ...]:
        """The first and the last piece, which can be told without the others; none if there is none."""
        return (self.of_rank(self.ranks[0])[0], self.of_rank(self.ranks[-1])[-1]) if self.ranks else ()

    @cached_property
    def ends_hash(self) -> int:
        """The same for equal pieces, from whatever rank they begin."""
        return hash(tuple((piece.rank - self.ends[0].rank, piece.box, piece.place) for piece in self.ends))

    def piece(self, rank: int, box: Box) -> Piece:
        """The piece of ``rank`` that is ``box``, one of its boxes."""
        return next(piece for piece in self.of_rank(rank) if piece.box == box)

    @cached_property
    def positions(self) -> dict[tuple[int, Box], int]:
        """Where in ``pieces`` the piece of a rank that is a box lies; the first, if it has two."""
        found: dict[tuple[int, Box], int] = {}
        for position, piece in enumerate(self.pieces):
            found.setdefault((piece.rank, piece.box), position)
        return found


class Listed(Pattern):
    """Pieces in no pattern that we know of: a list."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._given = tuple(pieces)
        super().__init__(self._given)

    @cached_property
    def _hash(self) -> int:  # not of all: equal lists are mostly the same list, and there are thousands of pieces
        return hash((len(self._given), *self.ends))

    def __len__(self) -> int:
        return len(self._given)

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        return self._given

    @cached_property
    def ends(self) -> tuple[Piece, ...]:
        return (self.pieces[0], self.pieces[-1]) if self.pieces else ()

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted({piece.rank for piece in self.pieces}))

    @cached_property
    def disjoint(self) -> bool:
        return first_overlap([holding.box for holding in self._holdings]) is None

    def of_rank(self, rank: int) -> tuple[Piece, ...]:
        return tuple(piece for piece in self.pieces if piece.rank == rank)

    def touching(self, box: Box) -> list[Holding]:
        return [self._holdings[position] for position in self._index.touching(box)]

    def piece(self, rank: int, box: Box) -> Piece:
        return self.pieces[self.positions[rank, box]]

    @cached_property
    def _holdings(self) -> list[Holding]:
        held: dict[Box, set[int]] = {}
        for piece in self.pieces:
            if not piece.box.empty:
                held.setdefault(piece.box, set()).add(piece.rank)
        return [Holding(box, tuple(sorted(ranks))) for box, ranks in held.items()]

    @cached_property
    def _index(self) -> BoxIndex:
        return BoxIndex([holding.box for holding in self._holdings])


class Pieces(Sequence[Piece]):
    """The pieces of a tensor: those of ``pattern``, from rank ``first`` on. A slice is a tuple.

    >>> pieces = Pieces(Listed((Piece.alone(0, Box((0,), (2,))), Piece.alone(1, Box((2,), (4,))))), 6)
    >>> [piece.rank for piece in pieces], str(pieces.of_rank(7)[0].box)
    ([6, 7], '[2:4]')
    """

    __slots__ = ("first", "pattern")

    def __init__(self, pattern: Pattern, first: int) -> None:
        self.pattern, self.first = pattern, first

    @classmethod
    def of(cls, pieces: Sequence[Piece]) -> Pieces:
        """``pieces`` as they are, or as a list of them."""
        return pieces if isinstance(pieces, Pieces) else cls(Listed(pieces), 0)

    def __len__(self) -> int:
        return len(self.pattern)

    @overload
    def __getitem__(self, index: int) -> Piece: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Piece, ...]: ...

    def __getitem__(self, index: int | slice) -> Piece | tuple[Piece, ...]:
        if isinstance(index, slice):
            return self._moved(self.pattern.pieces[index])
        return self._moved((self.pattern.pieces[index],))[0]

    def __iter__(self) -> Iterator[Piece]:
        return iter(self._moved(self.pattern.pieces))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Pieces) and (self.first, self.pattern) == (other.first, other.pattern):
            return True
        if not isinstance(other, Pieces) or hash(self) != hash(other) or len(self) != len(other):
            return False
        return tuple(self) == tuple(other)  # two rules may mean the same pieces

    def __hash__(self) -> int:  # of what can be told of any pattern without writing it out
        return hash((self.first + self.pattern.ends[0].rank if self.pattern.ends else 0, self.pattern.ends_hash))

    def __repr__(self) -> str:
        return f"Pieces({len(self)} of {len(self.pattern.ranks)} ranks)"

    @property
    def ranks(self) -> tuple[int, ...]:
        """Every rank that holds a piece, in rising order."""
        return tuple(rank + self.first for rank in self.pattern.ranks)

    def of_rank(self, rank: int) -> tuple[Piece, ...]:
        """The pieces of ``rank``."""
        return self._moved(self.pattern.of_rank(rank - self.first))

    def part(self, rank: int) -> Pieces:
        """The pieces of ``rank``, and no others."""
        return Pieces(Listed(self.pattern.of_rank(rank - self.first)), self.first)

    def piece(self, rank: int, box: Box) -> Piece:
        """The piece of ``rank`` that is ``box``, one of its boxes."""
        return self._moved((self.pattern.piece(rank - self.first, box),))[0]

    def _moved(self, pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
        by = self.first
        return tuple(Piece(piece.rank + by, piece.box, piece.place) for piece in pieces) if by else pieces
