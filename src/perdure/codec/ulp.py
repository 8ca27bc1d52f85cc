"""The codec `ulp`: 16-bit and 8-bit floats as signed distances to their base, counted in units of the last place.

Theory. A float's bits, with the sign folded in, are an integer in the order of the values; between two steps of a
training most of these integers move by 0, 1 or 2. The distances go through an entropy coder (`native/rans.h`) whose
statistics depend on the exponent of the base, since the same update is many units of a small weight and none of a
large one. Bit-exact for every pattern. docs/spec/codecs.md tells every byte.
"""

from __future__ import annotations

from typing import ClassVar, Final

from perdure.codec import ulp_twin
from perdure.codec.digest import NATIVE, BytesLike
from perdure.codec.dtypes import DType
from perdure.codec.stage import Bytes, Digests, Level, coded_by
from perdure.errors import FormatRefused

if NATIVE:
    from perdure import _native

    _room, _encode, _decode = _native.ulp_room, _native.ulp_encode, _native.ulp_decode
else:
    _room, _encode, _decode = ulp_twin.ulp_room, ulp_twin.ulp_encode, ulp_twin.ulp_decode

__all__ = ["KINDS", "Ulp"]

KINDS: Final = {
    "bfloat16": 0,
    "float16": 1,
    "complex32": 1,
    "float8_e4m3fn": 2,
    "float8_e5m2": 2,
    "float8_e4m3fnuz": 2,
    "float8_e5m2fnuz": 2,
    "float8_e8m0fnu": 2,
}
"""The dtypes that have distances here, and how the kernels call their layout."""

_CONTEXTS: Final = {"normal": (4, 6), "small": (8, 8)}
"""Contexts that are used where they pay, and where the tile stays large without them; each of them costs time."""


class Ulp:
    """Distances to the base, entropy-coded; does nothing without a base or for another dtype."""

    name: ClassVar[str] = "ulp"
    number: ClassVar[int] = 2

    def encode(self, tile: Bytes, *, dtype: DType, base: Bytes | None, level: Level) -> BytesLike:
        """Blocks of 2^17 elements, each equal to the base, raw or coded."""
        kind = KINDS.get(dtype.name)
        if base is None or kind is None:
            return tile
        return coded_by(lambda out: _encode(tile, base, out, kind, *_CONTEXTS[level]), _room(tile.size, kind))

    def encode_and_digest(
        self, tile: Bytes, *, dtype: DType, base: Bytes, level: Level, digests: Digests
    ) -> BytesLike | None:
        """The blocks and the digests; nothing for another dtype."""
        kind = KINDS.get(dtype.name)
        if kind is None:
            return None
        return coded_by(lambda out: _encode(tile, base, out, kind, *_CONTEXTS[level], digests), _room(tile.size, kind))

    def decode(self, coded: Bytes, out: Bytes, *, dtype: DType, base: Bytes | None) -> None:
        """The base and the distances added up."""
        kind = KINDS.get(dtype.name)
        if base is None or kind is None or not _decode(coded, base, out, kind):
            raise _refused(coded, out)

    def decode_and_digest(self, coded: Bytes, out: Bytes, *, dtype: DType, base: Bytes, digests: Digests) -> None:
        """The same, and the digests."""
        kind = KINDS.get(dtype.name)
        if kind is None or not _decode(coded, base, out, kind, digests):
            raise _refused(coded, out)


def _refused(coded: Bytes, out: Bytes) -> FormatRefused:
    return FormatRefused(f"{coded.size} bytes are no distances of a tile of {out.size} bytes to its base")
