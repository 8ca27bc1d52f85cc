"""The kernels of `native/predict.h` without C++: their oracle in the tests, their fallback where they are not built.

One NumPy function is one correctly rounded operation, so that these have the kernels' bits; see the header for what the
kernels promise. Arrays are bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from perdure.errors import CallError

__all__ = ["predict_rounding", "predict_square", "predict_update"]

_Bytes = npt.NDArray[np.uint8]
_REALS: Final[dict[int, tuple[Any, Any, int]]] = {
    4: (np.float32, np.uint32, 0x7F800000),
    8: (np.float64, np.uint64, 0x7FF << 52),
}
_SUBNORMAL: Final = np.full(1, 1e-40, np.float32)


def predict_update(
    x: _Bytes,
    keep: float,
    moments: Sequence[_Bytes],
    squares: Sequence[_Bytes | None],
    by: Sequence[float],
    eps: Sequence[float],
    out: _Bytes,
    width: int,
) -> None:
    """``keep * x``, less ``by * moment / (sqrt(square) + eps)`` for each term; not a number: the bits of ``x``."""
    real, word, infinity = _REALS[width]

    def compute() -> npt.NDArray[Any]:
        total: npt.NDArray[Any] = real(keep) * x.view(real)
        for moment, square, factor, small in zip(moments, squares, by, eps, strict=True):
            step = real(factor) * moment.view(real)
            total = total - (step if square is None else step / (np.sqrt(square.view(real)) + real(small)))
        return total

    bits: npt.NDArray[Any] = _exactly(compute).view(word)
    none = bits & ~word(1 << (8 * width - 1)) > word(infinity)
    out.view(word)[:] = np.where(none, x.view(word), bits)


def predict_square(
    square: _Bytes,
    before: _Bytes,
    moment: _Bytes,
    keep: float,
    fade: float,
    by: float,
    rest: float,
    out: _Bytes,
    width: int,
) -> None:
    """``keep * square + by * d**2 + rest * before**2``, d being ``moment - fade * before``; below 0: ``square``."""
    real, word, infinity = _REALS[width]

    def compute() -> npt.NDArray[Any]:
        was: npt.NDArray[Any] = before.view(real)
        d = moment.view(real) - real(fade) * was
        return np.asarray(real(keep) * square.view(real) + real(by) * (d * d) + real(rest) * (was * was))

    bits: npt.NDArray[Any] = _exactly(compute).view(word)
    out.view(word)[:] = np.where(bits > word(infinity), square.view(word), bits)


def predict_rounding(x: _Bytes, out: _Bytes, width: int, to: int) -> None:
    """``x`` rounded to bfloat16 (0), float16 (1) or float32 (2)."""
    bits = x.view(np.uint32) if width == 4 else _single(x.view(np.uint64))
    if to == 2:
        out.view(np.uint32)[:] = bits
        return
    nan = bits & np.uint32(0x7FFFFFFF) > np.uint32(0x7F800000)
    if to == 0:
        rounded = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1)) >> np.uint32(16)
        out.view(np.uint16)[:] = np.where(nan, np.uint32(0x7FC0), rounded)
        return
    number = np.where(nan, np.uint32(0), bits).view(np.float32)
    quiet = bits >> np.uint32(16) & np.uint32(0x8000) | np.uint32(0x7E00) | bits >> np.uint32(13) & np.uint32(0x3FF)
    out.view(np.uint16)[:] = np.where(nan, quiet, _exactly(lambda: number.astype(np.float16)).view(np.uint16))


def _single(bits: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint32]:
    nan = bits & np.uint64((1 << 63) - 1) > np.uint64(0x7FF << 52)
    number = np.where(nan, np.uint64(0), bits).view(np.float64)
    quiet = bits >> np.uint64(32) & np.uint64(0x80000000) | bits >> np.uint64(29) & np.uint64(0x3FFFFF)
    rounded = _exactly(lambda: number.astype(np.float32)).view(np.uint32)
    return np.where(nan, quiet.astype(np.uint32) | np.uint32(0x7FC00000), rounded)


def _exactly(compute: Callable[[], npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """What ``compute`` returns; infinities and NaNs are results like others, lost subnormals are not."""
    if not (_SUBNORMAL * np.float32(1))[0] > 0:
        raise CallError("this thread flushes subnormal numbers to 0 (torch.set_flush_denormal): predict on another one")
    with np.errstate(all="ignore"):
        return np.ascontiguousarray(compute())
