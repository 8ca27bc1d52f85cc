"""The blocks of a saved tensor and where each lies, without an object for every block.

What the parts of a commit say of a tensor is kept as they say it: a segment for each part, whose boxes and ranks are
shared by all tensors that lie alike there. A block is written out when somebody asks for it, by rank and box or in
turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, overload

from perdure.layout import Box, EvenGrid

__all__ = ["Segment", "StoredPiece", "StoredPieces"]


@dataclass(frozen=True, slots=True)
class StoredPiece:
    """A block of a saved tensor and the pack that holds it."""

    box: Box
    pack: str
    key: str
    coded: bool = False
    """whether the entry is a frame (`perdure.codec`) whose decoded bytes are the box"""


class Segment(NamedTuple):
    """What one part holds of a tensor: the ``ranks`` and ``boxes`` of its blocks, and of each

    what its key has behind ``stem``, and in ``numbers`` which of ``packs`` it lies in (``-1 - number`` for a frame).
    ``grid`` is set if the blocks of all parts make one.
    """

    ranks: tuple[int, ...]
    boxes: tuple[Box, ...]
    suffixes: tuple[str, ...]
    grid: EvenGrid | None
    numbers: tuple[int, ...]
    packs: Sequence[str]
    stem: str

    def piece(self, at: int) -> StoredPiece:
        """Block number ``at``."""
        number = self.numbers[at]
        pack = self.packs[number if number >= 0 else -1 - number]
        return StoredPiece(self.boxes[at], pack, self.stem + self.suffixes[at], number < 0)


class StoredPieces(Sequence[StoredPiece]):
    """The blocks of ``segments``, in order. Equal to any sequence of equal pieces; a slice is a tuple."""

    __slots__ = ("grid", "segments")

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = tuple(segments)
        grids = {segment.grid for segment in self.segments}
        self.grid = next(iter(grids)) if len(grids) == 1 else None

    def __len__(self) -> int:
        return sum(len(segment.boxes) for segment in self.segments)

    def __iter__(self) -> Iterator[StoredPiece]:
        return (segment.piece(at) for segment in self.segments for at in range(len(segment.boxes)))

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
        for number, at in _places(tuple(segment.ranks for segment in self.segments)).get(rank, ()):
            if self.segments[number].boxes[at] == box:
                return self.segments[number].piece(at)
        return None

    def packs(self) -> set[str]:
        """The packs that hold a block."""
        return {
            segment.packs[number if number >= 0 else -1 - number]
            for segment in self.segments
            for number in segment.numbers
        }


@lru_cache(maxsize=1024)
def _places(ranks: tuple[tuple[int, ...], ...]) -> dict[int, list[tuple[int, int]]]:
    """Rank to the segments, and places there, where its blocks are; alike for all tensors that lie alike."""
    found: dict[int, list[tuple[int, int]]] = {}
    for number, segment in enumerate(ranks):
        for at, rank in enumerate(segment):
            found.setdefault(rank, []).append((number, at))
    return found
