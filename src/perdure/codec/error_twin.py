"""The kernel of `perdure.codec.error` without C++: its oracle in the tests, its fallback where it is not built."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from perdure.codec.digest import BytesLike, as_bytes

__all__ = ["float32_error"]

_LANES: Final = 16
_PIECE: Final = 1 << 16


def float32_error(
    data: BytesLike, decoded: BytesLike, sums: npt.NDArray[np.float64], counts: npt.NDArray[np.uint64]
) -> None:
    """Write max |x - y|, max and sum of |x - y| / |x|, sum of (x - y)^2; and the finite elements, those but zeros.

    Raises: ValueError if the two are not equally many float32.
    """
    before, after = as_bytes(data), as_bytes(decoded)
    if before.size != after.size or before.size % 4 or sums.shape != (4,) or counts.shape != (2,):
        raise ValueError("two equally long arrays of float32 are compared, into 4 sums and 2 counts")
    finite = np.isfinite(_rows(before))
    x, y = (np.where(finite, _rows(part), np.float32(0)).astype(np.float64) for part in (before, after))
    some = x != 0
    distance = np.abs(x - y)
    relative = np.where(some, distance / np.where(some, np.abs(x), 1), 0)
    sums[:] = distance.max(initial=0), relative.max(initial=0), _summed(relative), _summed(distance * distance)
    counts[:] = np.count_nonzero(finite.ravel()[: before.size // 4]), np.count_nonzero(some)


def _rows(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Elements in rows of one for each lane, zeros behind the last."""
    values = data.view(np.float32)
    return np.pad(values, (0, -values.size % _LANES)).reshape(-1, _LANES)


def _summed(rows: npt.NDArray[Any]) -> float:
    """Each lane in the order of its elements, then the lanes in order; `cumsum` is the sum that never reorders."""
    lanes = np.zeros(_LANES)
    for at in range(0, len(rows), _PIECE):
        lanes = np.cumsum(np.vstack((lanes, rows[at : at + _PIECE])), axis=0)[-1]
    return float(np.cumsum(lanes)[-1])
