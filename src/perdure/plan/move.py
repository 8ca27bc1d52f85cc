"""A move: one box that goes from one piece to another."""

from __future__ import annotations

from dataclasses import dataclass

from perdure.layout.box import Box
from perdure.layout.piece import Piece

__all__ = ["Move"]


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
