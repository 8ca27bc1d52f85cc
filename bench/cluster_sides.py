"""The ways to store moments that `bench/cluster.py` compares: ours, casts, and quantizers of 8 bits and of clusters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from perdure.codec import decode, encode

__all__ = ["SIDES", "Side"]

Floats = npt.NDArray[np.float32]
_BLOCK = 2048


@dataclass(frozen=True, slots=True)
class Side:
    """One way: what a tensor becomes, and how many bytes it takes. ``resumed`` sides are trained on."""

    name: str
    through: Callable[[Floats], tuple[Floats, int]]
    resumed: bool = False


def raw(x: Floats) -> tuple[Floats, int]:
    return x, x.nbytes


def by_codec(codec: str, level: str = "normal") -> Callable[[Floats], tuple[Floats, int]]:
    def through(x: Floats) -> tuple[Floats, int]:
        frame = encode(x, codec=codec, level=level)  # type: ignore[arg-type]
        return decode(frame), len(frame)

    return through


def bfloat16(x: Floats) -> tuple[Floats, int]:
    return _rounded(x)[0], 2 * x.size


def bfloat16_coded(x: Floats) -> tuple[Floats, int]:
    """The cast, and what the lossless `planes` makes of it."""
    back, bits = _rounded(x)
    return back, len(encode(bits, codec="planes", dtype="bfloat16"))


def _rounded(x: Floats) -> tuple[Floats, npt.NDArray[np.uint16]]:
    """To the nearest bfloat16, ties to even; for finite numbers far from the largest."""
    bits = x.view(np.uint32)
    top = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1)) >> np.uint32(16)).astype(np.uint16)
    return (top.astype(np.uint32) << np.uint32(16)).view(np.float32), top


def int8(x: Floats) -> tuple[Floats, int]:
    """Blocks of 2,048 with their largest magnitude as a float32; -127 to 127, or 0 to 255 where nothing is negative."""
    steps = np.float32(127 if (x < 0).any() else 255)
    blocks = np.pad(x, (0, -x.size % _BLOCK)).reshape(-1, _BLOCK)
    scale = np.abs(blocks).max(axis=1, keepdims=True)
    scale[scale == 0] = 1
    back = np.rint(blocks / scale * steps) / steps * scale
    return back.ravel()[: x.size].astype(np.float32), x.size + 4 * len(scale)


def dynamic8(x: Floats) -> tuple[Floats, int]:
    """The 256 values of 8-bit optimizers (arXiv 2110.02861): seven decades up to the largest, finer at the top."""
    values = [0.0, 1.0]
    for decade in range(7):
        edges = np.linspace(0.1, 1, 2 ** (decade + (x >= 0).all()) + 1)
        middles = (edges[:-1] + edges[1:]) / 2 * 10.0 ** (decade - 6)
        values += [*middles, *(-middles if (x < 0).any() else ())]
    table = np.sort(np.array(values))
    blocks = np.pad(x, (0, -x.size % _BLOCK)).reshape(-1, _BLOCK)
    scale = np.abs(blocks).max(axis=1, keepdims=True)
    scale[scale == 0] = 1
    nearest = np.searchsorted((table[:-1] + table[1:]) / 2, (blocks / scale).ravel())
    back = table[nearest].reshape(blocks.shape) * scale
    return back.ravel()[: x.size].astype(np.float32), x.size + 4 * len(scale)


def quantiles(clusters: int) -> Callable[[Floats], tuple[Floats, int]]:
    """BitSnap's cluster quantization as far as it is known: clusters of equally many elements, 256 even steps in each.

    Counted: the label's bits, 8 bits of value, two float32 a cluster. The paper's own numbers of clusters and bits, and
    how it finds clusters, are not known to us.
    """

    def through(x: Floats) -> tuple[Floats, int]:
        edges = np.sort(x)[np.linspace(0, x.size - 1, clusters + 1).astype(np.int64)].astype(np.float64)
        label = np.clip(np.searchsorted(edges, x, side="right") - 1, 0, clusters - 1)
        low, step = edges[label], (np.diff(edges) / 255)[label]
        value = np.rint((x - low) / np.where(step > 0, step, 1))
        bits = 8 + (clusters - 1).bit_length()
        return (low + step * value).astype(np.float32), -(-x.size * bits // 8) + 8 * clusters

    return through


SIDES = (
    Side("raw", raw),
    Side("planes (lossless)", by_codec("planes")),
    Side("cluster", by_codec("cluster"), resumed=True),
    Side("cluster, small", by_codec("cluster", "small"), resumed=True),
    Side("bf16 cast", bfloat16, resumed=True),
    Side("bf16 cast + planes", bfloat16_coded),
    Side("int8, blocks of 2048", int8, resumed=True),
    Side("dynamic int8, 2048", dynamic8, resumed=True),
    Side("16 quantile clusters", quantiles(16)),
    Side("256 quantile clusters", quantiles(256)),
)
