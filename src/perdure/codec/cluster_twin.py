"""The kernels of `cluster` without C++: their oracle in the tests, their fallback where they are not built."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from perdure.codec.digest import BytesLike, as_bytes
from perdure.codec.planes_twin import planes_decode, planes_encode, planes_room

__all__ = ["cluster_decode", "cluster_encode", "cluster_room"]

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.int64]

_HEADER_BYTES: Final = 14
_GROUP: Final = 64
_MIDDLE: Final = 128
_LITERAL: Final = 255
_SIGN: Final = 1 << 31
_LEAST_NORMAL: Final = 1 << 23
_INFINITY: Final = 255 << 23
_VALUE_BITS: Final = range(4, 9)


def cluster_room(nbytes: int) -> int:
    """The bytes that ``out`` needs."""
    n = nbytes // 4
    rest = planes_room(-(-n // _GROUP), 1) + planes_room(-(-n // 8), 1) + planes_room(2 * n, 2)
    return _HEADER_BYTES + 4 * n + rest


def cluster_encode(data: BytesLike, out: Bytes, value_bits: int) -> int:
    """Encode a tile of float32 into ``out``; the bytes written."""
    words = as_bytes(data).view(np.uint32).astype(np.int64)
    size = words & ~_SIGN
    shift = 23 - value_bits
    rounded = size + (1 << shift >> 1)
    normal = (size >= _LEAST_NORMAL) & (rounded < _INFINITY)
    octaves = np.where(normal, rounded >> 23, 0)
    middles = _middles(octaves, normal)
    labels = octaves - np.repeat(middles, _GROUP)[: words.size] + _MIDDLE
    near = normal & (labels >= 1) & (labels < _LITERAL)
    literal = ~near & (size != 0)
    values = rounded >> shift & (1 << value_bits) - 1
    cells = np.where(near, labels << 8 | values, np.where(literal, _LITERAL << 8, 0)).astype(np.uint16)
    negative = words >= _SIGN
    any_negative = bool(negative.any())
    parts = (
        words[literal].astype("<u4").tobytes(),
        _planes(middles.astype(np.uint8), 1),
        _planes(np.packbits(negative, bitorder="little"), 1) if any_negative else b"",
    )
    sizes = np.array((len(parts[0]) // 4, len(parts[1]), len(parts[2])), "<u4").tobytes()
    coded = b"".join((bytes((value_bits, any_negative)), sizes, *parts, _planes(cells, 2)))
    out[: len(coded)] = np.frombuffer(coded, np.uint8)
    return len(coded)


def cluster_decode(coded: BytesLike, out: Bytes) -> bool:
    """Decode a tile into ``out``; whether it was one."""
    data, n = as_bytes(coded), out.size // 4
    if data.size < _HEADER_BYTES or data[0] not in _VALUE_BITS or data[1] > 1:
        return False
    value_bits, sizes = int(data[0]), data[2:_HEADER_BYTES].view("<u4").tolist()
    ends = np.cumsum((_HEADER_BYTES, 4 * sizes[0], *sizes[1:])).tolist()
    if sizes[0] > n or (sizes[2] != 0) != data[1] or ends[-1] > data.size:
        return False
    middles, signs = np.zeros(-(-n // _GROUP), np.uint8), np.zeros(-(-n // 8), np.uint8)
    cells = np.zeros(n, np.uint16)
    if not planes_decode(data[ends[1] : ends[2]], None, middles, 1, False):
        return False
    if sizes[2] and not planes_decode(data[ends[2] : ends[3]], None, signs, 1, False):
        return False
    if not planes_decode(data[ends[3] :], None, cells.view(np.uint8), 2, False):
        return False
    labels = (cells >> 8).astype(np.int64)
    octaves = labels + np.repeat(middles.astype(np.int64), _GROUP)[:n] - _MIDDLE
    values = (cells & (1 << value_bits) - 1).astype(np.int64)
    size = np.where(labels == 0, 0, ((octaves << 23) + (values << 23 - value_bits)) & ~_SIGN & 0xFFFFFFFF)
    words = size | np.unpackbits(signs, count=n, bitorder="little").astype(np.int64) << 31
    literal = labels == _LITERAL
    if np.count_nonzero(literal) != sizes[0]:
        return False
    words[literal] = data[ends[0] : ends[1]].view("<u4")
    out[:] = words.astype(np.uint32).view(np.uint8)
    return True


def _planes(array: npt.NDArray[Any], width: int) -> bytes:
    out = np.empty(planes_room(array.nbytes, width), np.uint8)
    return out[: planes_encode(array, None, out, width, False)].tobytes()


def _middles(octaves: Words, normal: npt.NDArray[np.bool_]) -> Words:
    """The mean octave of each group, rounded; a group without any has that of the one before, the first one 128."""
    pad = (0, -octaves.size % _GROUP)
    sums, counts = (np.pad(part, pad).reshape(-1, _GROUP).sum(axis=1) for part in (octaves, normal))
    found = np.where(counts > 0, (2 * sums + counts) // np.maximum(2 * counts, 1), 0)
    last = np.maximum.accumulate(np.where(counts > 0, np.arange(found.size), -1))
    return np.where(last >= 0, found[np.maximum(last, 0)], _MIDDLE)
