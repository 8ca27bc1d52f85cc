"""Where the blocks of a tensor lie that one part holds, worked out once for all tensors that lie alike.

A commit of a million tensors has a few dozen shapes and cuts. What follows from shape and cut alone (the boxes, what
the key of each has behind the tensor's name, what a pack stores it as) is a `Geometry`; a tensor is a name beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from perdure.codec.dtypes import DTYPES, nbytes
from perdure.layout import Box, EvenGrid
from perdure.state.index import checked, piece_key
from perdure.state.stored import Geometry, StoredPiece
from perdure.store.pack import CODES

__all__ = ["Geometry", "Placed", "geometry_of", "stored_as"]


class Placed(NamedTuple):
    """A tensor as one part has it; ``packs`` has the number of the pack of each block, ``-1 - number`` for a frame."""

    name: str
    rank: int | None
    dtype: str
    shape: tuple[int, ...]
    geometry: Geometry
    packs: tuple[int, ...]

    @property
    def key_stem(self) -> str:
        """What the keys of its blocks begin with."""
        return self.name if self.rank is None else f"{self.name}@rank{self.rank}"


def stored_as(dtype: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """The dtype and shape that a pack says of a tensor: bytes, where safetensors lacks the dtype."""
    return (dtype, shape) if dtype in CODES else ("uint8", (nbytes(dtype, shape),))


def geometry_of(
    name: str, dtype: str, shape: tuple[int, ...], blocks: Sequence[tuple[int, Box]], grid: EvenGrid | None
) -> Geometry:
    """The geometry of ``blocks``; raises `FormatRefused`, naming the tensor, if there can be none such."""
    boxes = tuple(box for _, box in blocks)
    checked(name, dtype, shape, tuple(StoredPiece(box, "", "") for box in boxes), (), None)
    suffixes = tuple(piece_key("", shape, box, None) for box in boxes)
    stored = tuple(stored_as(dtype, box.shape) for box in boxes)
    sizes = [box.size for box in boxes]
    most_nbytes = max(sizes, default=0) * DTYPES[dtype].itemsize
    return Geometry(tuple(rank for rank, _ in blocks), boxes, suffixes, stored, grid, sum(sizes), most_nbytes)
