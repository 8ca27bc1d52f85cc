"""The codecs that a frame's tiles can go through, by name.

Raw is what every other codec falls back to, tile by tile, when it does not make a tile smaller.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, Final

import numpy as np

from perdure.codec.cluster import Cluster
from perdure.codec.digest import BytesLike
from perdure.codec.dtypes import DType
from perdure.codec.mask import Mask
from perdure.codec.planes import Planes
from perdure.codec.stage import ArrayToBytes, Bytes, Level, Lossy
from perdure.codec.ulp import Ulp
from perdure.errors import FormatRefused

__all__ = ["CODECS", "LOSSY", "RAW", "ArrayToBytes", "Bytes", "Raw", "is_lossy"]


class Raw:
    """The bytes as they are."""

    name: ClassVar[str] = "raw"
    number: ClassVar[int] = 0

    def encode(self, tile: Bytes, *, dtype: DType, base: Bytes | None, level: Level) -> BytesLike:
        """``tile`` itself, no copy."""
        return tile

    def decode(self, coded: Bytes, out: Bytes, *, dtype: DType, base: Bytes | None) -> None:
        """Copy."""
        if coded.size != out.size:
            raise FormatRefused(f"{coded.size} bytes are no raw tile of {out.size} bytes")
        np.copyto(out, coded)


RAW: Final = Raw()
LOSSY: Final[Mapping[str, Lossy]] = MappingProxyType({Cluster.name: Cluster()})
"""The codecs that do not give back every bit, by name."""

_ALL: Final[tuple[ArrayToBytes, ...]] = (RAW, Mask(), Ulp(), Planes(), *LOSSY.values())
CODECS: Final[Mapping[str, ArrayToBytes]] = MappingProxyType({codec.name: codec for codec in _ALL})
"""Every codec by name."""


def is_lossy(name: str) -> bool:
    """Whether frames of this codec carry an error.

    >>> is_lossy("planes"), is_lossy("cluster")
    (False, True)
    """
    return name in LOSSY
