"""The codec `mask`: which elements differ from the base, one bit each, and the elements that do.

BitSnap's packed bitmask (arXiv 2511.12376, section on model states, as far as the paper tells it). Bit-exact for every
dtype, as fast as memory; its ratio cannot pass 8 x itemsize, and where most elements change it is 1.
"""

from __future__ import annotations

from typing import ClassVar

from perdure.codec import mask_twin
from perdure.codec.digest import NATIVE, BytesLike
from perdure.codec.dtypes import DType
from perdure.codec.stage import Bytes, Digests, Level, coded_by
from perdure.errors import FormatRefused

if NATIVE:
    from perdure import _native

    _room, _encode, _decode = _native.mask_room, _native.mask_encode, _native.mask_decode
else:
    _room, _encode, _decode = mask_twin.mask_room, mask_twin.mask_encode, mask_twin.mask_decode

__all__ = ["Mask"]


class Mask:
    """A packed bitmask of changed elements and their values; without a base it does nothing."""

    name: ClassVar[str] = "mask"
    number: ClassVar[int] = 1

    def encode(self, tile: Bytes, *, dtype: DType, base: Bytes | None, level: Level) -> BytesLike:
        """The mask, then the changed elements."""
        if base is None:
            return tile
        width = _width(dtype)
        return coded_by(lambda out: _encode(tile, base, out, width), _room(tile.size, width))

    def encode_and_digest(
        self, tile: Bytes, *, dtype: DType, base: Bytes, level: Level, digests: Digests
    ) -> BytesLike | None:
        """The mask, the changed elements, and the digests."""
        width = _width(dtype)
        return coded_by(lambda out: _encode(tile, base, out, width, digests), _room(tile.size, width))

    def decode(self, coded: Bytes, out: Bytes, *, dtype: DType, base: Bytes | None) -> None:
        """The base, with the changed elements put in their places."""
        if base is None or not _decode(coded, base, out, _width(dtype)):
            raise _refused(coded, out)

    def decode_and_digest(self, coded: Bytes, out: Bytes, *, dtype: DType, base: Bytes, digests: Digests) -> None:
        """The same, and the digests."""
        if not _decode(coded, base, out, _width(dtype), digests):
            raise _refused(coded, out)


def _refused(coded: Bytes, out: Bytes) -> FormatRefused:
    return FormatRefused(f"{coded.size} bytes are no mask of a tile of {out.size} bytes and its changes")


def _width(dtype: DType) -> int:
    return min(dtype.itemsize, 8)  # a complex128 is two elements
