"""A piece: what one rank holds of one tensor, and where in its own tensor it lies."""

from __future__ import annotations

from dataclasses import dataclass

from perdure.errors import LayoutError
from perdure.layout.box import Box

__all__ = ["Piece"]


@dataclass(frozen=True, slots=True)
class Piece:
    """Rank ``rank`` holds ``box`` of a tensor at ``place`` of its own tensor.

    ``box`` is in global coordinates. ``place`` is in coordinates of the rank's own tensor: a box of the same shape, or
    a span of one dim and the same size that holds the box row-major (a flat buffer, ZeRO).

    >>> Piece.alone(1, Box((4, 0), (8, 2))).place
    Box(lo=(0, 0), hi=(4, 2))

    Raises `LayoutError` if box and place do not fit each other, or for a negative rank.
    """

    rank: int
    box: Box
    place: Box

    def __post_init__(self) -> None:
        fits = self.place.shape == self.box.shape or (self.place.ndim == 1 and self.place.size == self.box.size)
        if not fits or self.rank < 0 or min(self.place.lo, default=0) < 0:
            raise LayoutError(f"rank {self.rank} cannot hold box {self.box} at {self.place}", rank=self.rank)

    @classmethod
    def alone(cls, rank: int, box: Box) -> Piece:
        """The piece that is the whole of the rank's own tensor."""
        return cls(rank, box, Box.whole(box.shape))

    @property
    def flat(self) -> bool:
        """Whether the piece lies row-major in a buffer of one dim, and its box has another number of dims."""
        return self.place.ndim != self.box.ndim
