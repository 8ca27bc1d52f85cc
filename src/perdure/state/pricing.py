"""What a tensor costs on a base, in bits an element: estimated from a few elements of many, or coded for real.

The estimate ranks; where a block is large enough for it to pay, coding a sample decides.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from perdure.codec import encode
from perdure.codec.dtypes import DTYPES
from perdure.codec.stage import Bytes

__all__ = ["alone_bits", "codec_for", "coded_nbytes", "distance_bits", "spread"]

_MANTISSA: Final = {"float32": 23, "float64": 52, "bfloat16": 7, "float16": 10}
_SAMPLE_PLACES: Final = 4
_SAMPLE_RUN: Final = 1 << 14


def codec_for(dtype: str) -> str:
    """The codec that a tensor on a computed base takes."""
    return "ulp" if dtype in ("bfloat16", "float16") else "planes"


def distance_bits(now: npt.NDArray[Any], base: npt.NDArray[Any], dtype: str) -> npt.NDArray[np.float64]:
    """The estimated cost of each row of ``now`` on that of ``base``: the sizes of distances, and what is below them.

    Rows are of ``dtype``, or of words of its width.
    """
    word = np.dtype(f"i{DTYPES[dtype].itemsize}")
    wide = np.float64 if word.itemsize == 8 else np.float32
    apart = np.abs((_ordered(now.view(word)) - _ordered(base.view(word))).astype(wide))
    classes = np.ceil(np.log2(1 + apart)).astype(np.int64)
    below = np.maximum(classes - 1, 0).mean(axis=1) + (classes > 0).mean(axis=1)
    whole = 8 * word.itemsize
    return np.asarray(np.minimum(_entropy(classes, whole + 2) + below, whole))


def alone_bits(now: npt.NDArray[Any], dtype: str) -> npt.NDArray[np.float64]:
    """The estimated cost of each row of ``now`` without a base: its exponents' entropy, and mantissas as they are."""
    width, mantissa = DTYPES[dtype].itemsize, _MANTISSA[dtype]
    top = (now.view(f"u{width}") >> np.array(mantissa, f"u{width}")).astype(np.int64)
    same = (now.view(f"u{width}") == now.view(f"u{width}")[:, :1]).all(axis=1)
    sign = top >> 8 * width - 1 - mantissa
    size = top & (1 << 8 * width - 1 - mantissa) - 1
    below = np.minimum(size.max(axis=1, keepdims=True) - size, 63)  # the exponents from the largest down: few bins do
    return np.where(same, 0.0, _entropy(2 * below + sign, 128) + mantissa)


def coded_nbytes(now: Bytes, base: Bytes | None, dtype: str) -> int:
    """The size of the frame of ``now`` (bytes of ``dtype``) on ``base``."""
    shape = (now.size // DTYPES[dtype].itemsize,)
    return len(
        encode(now, codec=codec_for(dtype) if base is not None else "planes", base=base, dtype=dtype, shape=shape)
    )


def spread(size: int) -> list[slice]:
    """Elements from several places of a block of ``size`` that are worth coding for a trial: 64 Ki, or a quarter."""
    run = min(_SAMPLE_RUN, size // (4 * _SAMPLE_PLACES))
    starts = np.linspace(0, size - run, _SAMPLE_PLACES).astype(int)
    return [slice(int(start), int(start) + run) for start in starts]


def _ordered(words: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Floats, given as signed words, as integers in the order of their values; the widest differences wrap."""
    width = 8 * words.dtype.itemsize
    if width <= 16:
        words = words.astype(np.int32) << 32 - width
        return np.asarray((words ^ (words >> 31 & 0x7FFFFFFF)) >> 32 - width)
    return np.asarray(words ^ (words >> width - 1 & np.array(np.iinfo(words.dtype).max, words.dtype)))


def _entropy(symbols: npt.NDArray[np.int64], bins: int) -> npt.NDArray[np.float64]:
    """The order-0 entropy of each row of symbols below ``bins``, in bits a symbol."""
    rows, size = symbols.shape
    flat = (symbols + np.arange(rows)[:, None] * bins).ravel()
    share = np.bincount(flat, minlength=rows * bins).reshape(rows, bins) / size
    terms = np.where(share > 0, -share * np.log2(np.where(share > 0, share, 1)), 0.0)
    return np.asarray(terms.sum(axis=1))
