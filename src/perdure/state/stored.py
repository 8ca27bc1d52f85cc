"""The blocks of a saved tensor and where each lies, without an object for every block.

What the parts of a commit say of a tensor is kept as they say it: a segment for each part, whose boxes and ranks are
shared by all tensors that lie alike there. A block is written out when somebody asks for it, by rank and box or in
turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, overload

from perdure.layout import Box, EvenGrid
from perdure.state.relations import Relation

__all__ = ["Geometry", "Segment", "StoredBase", "StoredPiece", "StoredPieces", "StoredSource"]


@dataclass(frozen=True, slots=True)
class StoredPiece:
    """A block of a saved tensor and the pack that holds it."""

    box: Box
    pack: str
    key: str
    coded: bool = False
    """whether the entry is a frame (`perdure.codec`) whose decoded bytes are the box"""


@dataclass(frozen=True, slots=True)
class StoredSource:
    """A block that a base is computed from; it has the shape of the block that has the base."""

    key: str
    dtype: str
    pack: str
    coded: bool


@dataclass(frozen=True, slots=True)
class StoredBase:
    """How the base of a frame is computed; ``sources`` are in the order that the relation wants."""

    relation: Relation
    sources: tuple[StoredSource, ...]


class Geometry(NamedTuple):
    """Blocks of a tensor: their ranks, boxes, and what their keys have behind the name. ``grid`` if they lie in one.

    ``stored`` has for each block the dtype and shape of its entry in a pack, unless it is a frame. ``size`` is how many
    elements all blocks have, ``most_nbytes`` how many bytes the largest.
    """

    ranks: tuple[int, ...]
    boxes: tuple[Box, ...]
    suffixes: tuple[str, ...]
    stored: tuple[tuple[str, tuple[int, ...]], ...]
    grid: EvenGrid | None
    size: int
    most_nbytes: int


class Segment(NamedTuple):
    """What one part holds of a tensor.

    ``numbers`` says for each block of ``where`` which of ``packs`` it lies in (``-1 - number`` for a frame); its key is
    ``stem`` and its suffix.
    """

    where: Geometry
    numbers: tuple[int, ...]
    packs: Sequence[str]
    stem: str

    def piece(self, at: int) -> StoredPiece:
        """Block number ``at``."""
        number = self.numbers[at]
        pack = self.packs[number if number >= 0 else -1 - number]
        return StoredPiece(self.where.boxes[at], pack, self.stem + self.where.suffixes[at], number < 0)


class StoredPieces(Sequence[StoredPiece]):
    """The blocks of ``segments``, in order. Equal to any sequence of equal pieces; a slice is a tuple."""

    __slots__ = ("_len", "alike", "grid", "segments")

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments: tuple[Segment, ...] = tuple(segments)
        wheres = [segment.where for segment in self.segments]
        self.alike: tuple[int, ...] = tuple(map(id, wheres))
        """the same for tensors of the same geometries, while one of them is kept"""
        first = wheres[0].grid if wheres else None
        self.grid = first if all(where.grid is first or where.grid == first for where in wheres) else None
        self._len = sum(len(where.boxes) for where in wheres)

    def __len__(self) -> int:
        return self._len

    def __iter__(self) -> Iterator[StoredPiece]:
        return (segment.piece(at) for segment in self.segments for at in range(len(segment.numbers)))

    @overload
    def __getitem__(self, index: int) -> StoredPiece: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[StoredPiece, ...]: ...

    def __getitem__(self, index: int | slice) -> StoredPiece | tuple[StoredPiece, ...]:
        if isinstance(index, int) and len(self.segments) == 1:
            return self.segments[0].piece(range(len(self))[index])
        return tuple(self)[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoredPieces | tuple) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"StoredPieces({len(self)})"

    def of(self, rank: int, box: Box) -> StoredPiece | None:
        """The block ``box`` that ``rank`` wrote, or None if no part has it."""
        # Which segment a rank is in is the same for tensors that lie alike; a hint is only the place to look first.
        hint = min(_hints.get((self.alike, rank), 0), len(self.segments) - 1)
        for number in chain((hint,) if self.segments else (), range(len(self.segments))):
            segment = self.segments[number]
            if rank not in segment.where.ranks:
                continue
            for at, owner in enumerate(segment.where.ranks):
                if owner == rank and segment.where.boxes[at] == box:
                    if number != hint:
                        _hint(self.alike, rank, number)
                    return segment.piece(at)
        return None

    def packs(self) -> set[str]:
        """The packs that hold a block."""
        return {
            segment.packs[number if number >= 0 else -1 - number]
            for segment in self.segments
            for number in segment.numbers
        }


_HINTS = 4096
_hints: dict[tuple[tuple[int, ...], int], int] = {}


def _hint(alike: tuple[int, ...], rank: int, number: int) -> None:
    if len(_hints) >= _HINTS:
        _hints.clear()
    _hints[alike, rank] = number
