"""The lossy codec `cluster`: moments of optimizers, each element within a known ratio of the truth.

After BitSnap's cluster quantization (arXiv 2511.12376: clusters, 8-bit values within them). The clusters here are
octaves of the number line, so that the relative error of every element is bounded, and an entropy coder gives frequent
clusters short codes, where quantiles would give all of them the same (`bench/cluster.py` compares the two). Signs,
zeros, numbers below the normal ones, infinities and NaNs come back exactly. `native/cluster.h` has the theory;
docs/spec/codecs.md tells every byte.
"""

from __future__ import annotations

from typing import ClassVar, Final

from perdure.codec import cluster_twin
from perdure.codec.digest import NATIVE, BytesLike
from perdure.codec.dtypes import DType
from perdure.codec.stage import Bytes, Level, coded_by
from perdure.errors import FormatRefused

if NATIVE:
    from perdure import _native

    _room, _encode, _decode = _native.cluster_room, _native.cluster_encode, _native.cluster_decode
else:
    _room, _encode, _decode = cluster_twin.cluster_room, cluster_twin.cluster_encode, cluster_twin.cluster_decode

__all__ = ["VALUE_BITS", "Cluster"]

VALUE_BITS: Final = {"normal": 8, "small": 6}
"""The bits b of a value within its cluster; the relative error is at most 2^-(b+1)."""


class Cluster:
    """Octaves and values within them, for float32."""

    name: ClassVar[str] = "cluster"
    number: ClassVar[int] = 4
    dtypes: ClassVar[tuple[str, ...]] = ("float32",)

    def encode(self, tile: Bytes, *, dtype: DType, base: Bytes | None, level: Level) -> BytesLike:
        """Literals, middle octaves, signs, and cells of cluster and value; a base is of no use."""
        return coded_by(lambda out: _encode(tile, out, VALUE_BITS[level]), _room(tile.size))

    def decode(self, coded: Bytes, out: Bytes, *, dtype: DType, base: Bytes | None) -> None:
        """The rounded numbers."""
        if dtype.name not in self.dtypes or not _decode(coded, out):
            raise FormatRefused(f"{coded.size} bytes are no clusters of a tile of {out.size} bytes")
