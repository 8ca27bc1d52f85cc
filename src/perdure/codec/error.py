"""How far what a lossy frame decodes to is from what was encoded: measured by the encoder, stored in the frame.

Sums are kept in 16 lanes (element i belongs to lane i mod 16), each added up in the order of the elements, then the
lanes in order, then the tiles in order: so the same numbers come out on every machine, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from perdure.codec import error_twin
from perdure.codec.digest import NATIVE
from perdure.codec.stage import Bytes

if NATIVE:
    from perdure import _native

    _error = _native.float32_error
else:
    _error = error_twin.float32_error

__all__ = ["FrameError", "TileError", "measure", "total"]


@dataclass(frozen=True, slots=True)
class FrameError:
    """The error of a lossy frame. Values that are not finite count nowhere: they come back as they were.

    The relative error of x decoded as y is |x - y| / |x|; zeros, which come back as they were too, do not count in it.
    """

    max_absolute: float
    """the largest |x - y| over all finite elements"""
    max_relative: float
    """the largest relative error over all finite elements but zeros"""
    mean_relative: float
    """the mean relative error over the same elements"""
    root_mean_square: float
    """the square root of the mean of (x - y)^2 over all finite elements"""

    @property
    def possible(self) -> bool:
        """Whether these can be errors: not negative, finite, no mean above its maximum."""
        parts = (self.max_absolute, self.max_relative, self.mean_relative, self.root_mean_square)
        return (
            all(math.isfinite(part) and math.copysign(1, part) > 0 for part in parts)
            and self.mean_relative <= self.max_relative * _ROUNDED
            and self.root_mean_square <= self.max_absolute * _ROUNDED
        )


_ROUNDED = 1 + 1e-9  # the mean of equal numbers may round above them


@dataclass(frozen=True, slots=True)
class TileError:
    """What `total` needs of one tile: maxima, sums, and over how many elements."""

    max_absolute: float = 0.0
    max_relative: float = 0.0
    sum_relative: float = 0.0
    sum_square: float = 0.0
    n_finite: int = 0
    n_relative: int = 0


def measure(tile: Bytes, decoded: Bytes) -> TileError:
    """The error of the float32 numbers of ``decoded`` against those of ``tile``, both uint8[4 n]; releases the lock."""
    sums, counts = np.zeros(4, np.float64), np.zeros(2, np.uint64)
    _error(tile, decoded, sums, counts)
    largest, relative, sum_relative, sum_square = sums.tolist()
    n_finite, n_relative = counts.tolist()
    return TileError(largest, relative, sum_relative, sum_square, n_finite, n_relative)


def total(tiles: Iterable[TileError]) -> FrameError:
    """The error of the whole tensor from those of its tiles, in order."""
    largest = relative = sum_relative = sum_square = 0.0
    n_finite = n_relative = 0
    for tile in tiles:
        largest, relative = max(largest, tile.max_absolute), max(relative, tile.max_relative)
        sum_relative += tile.sum_relative
        sum_square += tile.sum_square
        n_finite += tile.n_finite
        n_relative += tile.n_relative
    return FrameError(largest, relative, sum_relative / max(n_relative, 1), math.sqrt(sum_square / max(n_finite, 1)))
