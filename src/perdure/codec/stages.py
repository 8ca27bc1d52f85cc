"""The stages that a frame's tiles go through, and the codecs made of them.

A stage is a type: what goes in and what comes out is in its signature, so a chain that cannot work is a type error. Raw
is the one codec of this release, and what every other falls back to, tile by tile, when it does not make a tile
smaller.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, Final, Protocol

import numpy as np
import numpy.typing as npt

from perdure.codec.digest import BytesLike
from perdure.codec.dtypes import DType
from perdure.errors import FormatRefused

__all__ = ["CODECS", "RAW", "ArrayToBytes", "Bytes", "Raw"]

Bytes = npt.NDArray[np.uint8]


class ArrayToBytes(Protocol):
    """A stage that turns a tile of elements into bytes and back.

    A tile is uint8[n], the elements' bytes in native order, a whole number of elements (itemsizes are powers of two and
    so are tiles). Stages are pure, keep no state, and run on any thread.
    """

    name: ClassVar[str]
    """What users call it."""
    number: ClassVar[int]
    """What stands for it in a frame, for ever."""

    def encode(self, tile: Bytes, *, dtype: DType, base: Bytes | None) -> BytesLike:
        """The coded tile; ``base`` holds the same elements of the base tensor, if there is one."""
        ...

    def decode(self, coded: Bytes, out: Bytes, *, dtype: DType, base: Bytes | None) -> None:
        """Write the tile to ``out``, of exactly its size.

        Raises: `FormatRefused` if ``coded`` is nothing that `encode` returns; never reads or writes outside of the
        arrays.
        """
        ...


class Raw:
    """The bytes as they are."""

    name: ClassVar[str] = "raw"
    number: ClassVar[int] = 0

    def encode(self, tile: Bytes, *, dtype: DType, base: Bytes | None) -> BytesLike:
        """``tile`` itself, no copy."""
        return tile

    def decode(self, coded: Bytes, out: Bytes, *, dtype: DType, base: Bytes | None) -> None:
        """Copy."""
        if coded.size != out.size:
            raise FormatRefused(f"{coded.size} bytes are no raw tile of {out.size} bytes")
        np.copyto(out, coded)


RAW: Final = Raw()
CODECS: Final[Mapping[str, ArrayToBytes]] = MappingProxyType({codec.name: codec for codec in (RAW,)})
"""Every codec by name."""
