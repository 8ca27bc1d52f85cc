"""The element types that tensors have: names of our own over bytes.

A dtype here is a name, a width and nothing else: no arithmetic. That is all that saving needs, and it covers what NumPy
has no type for (bfloat16, the 8-bit floats, packed 4-bit floats). The names are torch's. torch's quantized dtypes
(``qint8`` ...) are missing on purpose: such a tensor is not its bytes alone, it has a scale beside them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from perdure.errors import CallError

__all__ = ["DTYPES", "DType", "dtype_named", "name_of", "nbytes"]


@dataclass(frozen=True, slots=True)
class DType:
    """One element type.

    ``bits`` is the width of one element of the tensor's shape, a multiple of 8: for ``float4_e2m1fn_x2`` an element is
    a byte that packs two 4-bit floats, as in torch. ``safetensors`` is the type's name in that format, ``None`` if it
    has none; there ``F4`` counts the floats, so the last dimension is twice as long. ``number`` stands for the type in
    a frame, for ever.
    """

    name: str
    bits: int
    safetensors: str | None
    number: int

    @property
    def itemsize(self) -> int:
        """Width of one element in bytes."""
        return self.bits // 8

    @property
    def numpy(self) -> np.dtype[Any]:
        """NumPy's dtype of the same name, or the unsigned integer of the same width where NumPy has none."""
        return np.dtype(self.name if self.name in _NUMPY else f"u{self.itemsize}")

    @property
    def in_numpy(self) -> bool:
        """Whether NumPy has this very type."""
        return self.name in _NUMPY


_NUMPY: Final = frozenset(
    {
        "bool",
        *(f"{sign}{width}" for sign in ("int", "uint") for width in (8, 16, 32, 64)),
        *("float16", "float32", "float64", "complex64", "complex128"),
    }
)

# The position in this table is the number in a frame: append, never reorder, never remove.
_TABLE: Final = (
    ("bool", 8, "BOOL"),
    ("uint8", 8, "U8"),
    ("int8", 8, "I8"),
    ("uint16", 16, "U16"),
    ("int16", 16, "I16"),
    ("uint32", 32, "U32"),
    ("int32", 32, "I32"),
    ("uint64", 64, "U64"),
    ("int64", 64, "I64"),
    ("float16", 16, "F16"),
    ("bfloat16", 16, "BF16"),
    ("float32", 32, "F32"),
    ("float64", 64, "F64"),
    ("complex32", 32, None),
    ("complex64", 64, "C64"),
    ("complex128", 128, None),
    ("float8_e4m3fn", 8, "F8_E4M3"),
    ("float8_e5m2", 8, "F8_E5M2"),
    ("float8_e4m3fnuz", 8, "F8_E4M3FNUZ"),
    ("float8_e5m2fnuz", 8, "F8_E5M2FNUZ"),
    ("float8_e8m0fnu", 8, "F8_E8M0"),
    ("float4_e2m1fn_x2", 8, "F4"),
    ("bits8", 8, None),
    ("bits16", 16, None),
    ("bits1x8", 8, None),
    ("bits2x4", 8, None),
    ("bits4x2", 8, None),
    *((f"{sign}{width}", 8, None) for sign in ("int", "uint") for width in range(1, 8)),
)

DTYPES: Final[Mapping[str, DType]] = MappingProxyType(
    {name: DType(name, bits, safetensors, number) for number, (name, bits, safetensors) in enumerate(_TABLE)}
)
"""Every dtype by name, in the order of their numbers."""


def dtype_named(name: str) -> DType:
    """The dtype of that name, with or without ``torch.`` in front.

    Raises: `CallError` for a name that is in no table.

    >>> dtype_named("torch.bfloat16").bits
    16
    """
    found = DTYPES.get(name.removeprefix("torch."))
    if found is None:
        raise CallError(f"unknown dtype {name!r}; perdure.codec.DTYPES lists the known ones", dtype=name)
    return found


def name_of(dtype: np.dtype[Any]) -> str:
    """The name of an array's dtype; types that other packages add to NumPy (bfloat16) count by name.

    Raises: `CallError` for objects, text, times, records, and numbers in foreign byte order.

    >>> name_of(np.dtype("f4"))
    'float32'
    """
    known = DTYPES.get(dtype.name)
    if known is None or known.itemsize != dtype.itemsize or not dtype.isnative:
        raise CallError(
            f"arrays of {dtype!r} cannot be encoded: convert them, or pass the bytes as uint8 with dtype= and shape=",
            dtype=str(dtype),
        )
    return known.name


def nbytes(dtype_name: str, shape: Sequence[int] | Iterable[int]) -> int:
    """Bytes of a contiguous tensor; exact for any size.

    Raises: `CallError` for an unknown dtype or a negative dimension.

    >>> nbytes("bfloat16", (3, 5)), nbytes("float64", ())
    (30, 8)
    """
    dims = tuple(int(dim) for dim in shape)
    if any(dim < 0 for dim in dims):
        raise CallError(f"a shape has no negative dimension: {dims}", shape=list(dims))
    return math.prod(dims) * dtype_named(dtype_name).itemsize
