"""The codec `planes`: the bytes of elements grouped by their place in the element, each group entropy-coded if it pays.

Works without a base: the exponents of floats lie close together, their mantissas are noise (ZipNN, LMC). With a base,
elements may first become their distance to it, or their XOR with it, whichever a sample says is smaller.
docs/spec/codecs.md tells every byte.
"""

from __future__ import annotations

from typing import ClassVar, Final

from perdure.codec import planes_twin
from perdure.codec.digest import NATIVE, BytesLike
from perdure.codec.dtypes import DType
from perdure.codec.stage import Bytes, Level, coded_by
from perdure.errors import FormatRefused

if NATIVE:
    from perdure import _native

    _room, _encode, _decode = _native.planes_room, _native.planes_encode, _native.planes_decode
else:
    _room, _encode, _decode = planes_twin.planes_room, planes_twin.planes_encode, planes_twin.planes_decode

__all__ = ["Planes", "layout_of"]

_COMPLEX: Final = ("complex32", "complex64", "complex128")


class Planes:
    """Planes of bytes, entropy-coded, with or without a base."""

    name: ClassVar[str] = "planes"
    number: ClassVar[int] = 3

    def encode(self, tile: Bytes, *, dtype: DType, base: Bytes | None, level: Level) -> BytesLike:
        """Blocks of planes, each of one value, raw or coded."""
        width, floats = layout_of(dtype)
        return coded_by(lambda out: _encode(tile, base, out, width, floats), _room(tile.size, width))

    def decode(self, coded: Bytes, out: Bytes, *, dtype: DType, base: Bytes | None) -> None:
        """The planes, put together again."""
        if not _decode(coded, base, out, *layout_of(dtype)):
            raise FormatRefused(f"{coded.size} bytes are no planes of a tile of {out.size} bytes")


def layout_of(dtype: DType) -> tuple[int, bool]:
    """The bytes of one number, and whether its top bit is a sign apart from its magnitude.

    >>> from perdure.codec.dtypes import DTYPES
    >>> layout_of(DTYPES["complex64"]), layout_of(DTYPES["int16"])
    ((4, True), (2, False))
    """
    if dtype.name in _COMPLEX:
        return dtype.itemsize // 2, True
    signed = dtype.name.startswith(("float", "bfloat")) and dtype.name not in ("float8_e8m0fnu", "float4_e2m1fn_x2")
    return dtype.itemsize, signed
