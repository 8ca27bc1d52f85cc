"""The one place where geometry meets an array: select a box of a piece in the rank's own array.

Works on whatever slices and reshapes as NumPy does (arrays, torch tensors); never copies.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from perdure.layout.box import Box
from perdure.layout.layout import Piece

__all__ = ["Sliceable", "view"]


class Sliceable(Protocol):
    """An array of any library."""

    def __getitem__(self, key: Any, /) -> Any: ...

    def reshape(self, shape: Any, /) -> Any: ...


Array = TypeVar("Array", bound=Sliceable)


def view(own: Array, piece: Piece, box: Box) -> Array:
    """The elements ``box`` (global, inside ``piece.box``) of ``piece``, as a view of the rank's ``own`` array.

    A flat piece is reshaped row-major; a slice of one dim always reshapes without a copy, whatever its stride.

    Raises `LayoutError` if ``box`` leaves the piece.
    """
    inner = box.within(piece.box)
    # The trailing `...` keeps a scalar an array: `own[()]` would give a copy.
    part = own[(*(slice(low, high) for low, high in zip(piece.place.lo, piece.place.hi, strict=True)), ...)]
    if piece.flat:
        part = part.reshape(piece.box.shape)
    found: Array = part[(*inner, ...)]
    return found
