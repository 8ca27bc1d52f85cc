"""A frame: one tensor as self-describing, checksummed bytes.

Encoding and decoding are pure and bit-exact on every dtype, NaN payloads included. What a frame looks like is told in
`perdure.codec.header`; how its tiles are coded, in `perdure.codec.stages`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from perdure.codec import dtypes, header
from perdure.codec.digest import TILE_BYTES, BytesLike, as_bytes, copy_and_digest, tile_digests
from perdure.codec.dtypes import DTYPES, DType
from perdure.codec.header import FrameInfo, frame_info, root_digest
from perdure.codec.stages import CODECS, RAW, ArrayToBytes, Bytes
from perdure.errors import BlobCorrupt, CallError, FormatRefused

__all__ = ["decode", "decode_tile", "encode"]

_ALIGN_BYTES: Final = 64


def encode(
    array: npt.NDArray[Any],
    *,
    codec: str = "raw",
    base: npt.NDArray[Any] | None = None,
    dtype: str | None = None,
    shape: Sequence[int] | None = None,
) -> bytes:
    """Turn ``array`` into a frame.

    For a dtype that NumPy lacks, pass the bytes: a uint8 array (or one of the unsigned type of the same width) with the
    true ``dtype`` and, where it differs from ``array.shape``, the true ``shape``. ``base`` is an earlier state of the
    same tensor, given in the same way, for codecs that store differences; raw makes no use of it. An array that is not
    contiguous is copied first. The frame of n bytes has at most n + 64 + n/1000 bytes (up to 6 dimensions or so; each
    costs 1 to 9 bytes).

    Raises: `CallError` if codec or dtype is unknown, or dtype and shape do not fit the array's bytes.

    >>> frame = encode(np.arange(3, dtype=np.float32))
    >>> len(frame), decode(frame)
    (57, array([0., 1., 2.], dtype=float32))
    """
    stage = CODECS.get(codec)
    if stage is None:
        raise CallError(f"unknown codec {codec!r}; there are: {', '.join(CODECS)}", codec=codec)
    name, dims, data = _described(array, dtype, shape)
    below = _base_bytes(base, dtype=name, shape=dims) if base is not None else None
    coded = [_smaller(stage, data[at], _part(below, at), DTYPES[name]) for at in _tiles(data.size)]
    raw = sum(map(len, coded)) == data.size
    head = header.render(
        codec=RAW.name if raw else codec,
        dtype=name,
        shape=dims,
        base=None if raw or below is None else root_digest(tile_digests(below)),
        tile_bytes=TILE_BYTES,
        coded_nbytes=tuple(map(len, coded)),
        tile_digests=tile_digests(data),
    )
    return b"".join((head, *(tile.data for tile in coded)))


def decode(frame: BytesLike, *, base: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
    """Give back the array of ``frame``: a new one, writable, checked against the digest that the frame carries.

    For a dtype that NumPy lacks, the array has the unsigned integer type of the same width and the true shape;
    `frame_info` tells the true dtype. ``base`` is needed if ``frame_info(frame).base`` is not None, and ignored
    otherwise. Allocates the array only after the header has proved that the frame is whole and of the right size.

    Raises: `BlobCorrupt` if the frame was cut off or altered: use another copy (facts: ``tile``); `FormatRefused` if it
    is no frame that this release reads; `CallError` if the base is missing or is another one.
    """
    data = as_bytes(frame)
    info = frame_info(data)
    if info.frame_nbytes != data.size:
        raise BlobCorrupt(f"the frame has {data.size} bytes, its header tells of {info.frame_nbytes}")
    below = _checked_base(info, base)
    out = _aligned(info.nbytes)
    start = info.header_nbytes
    for tile, (at, size) in enumerate(zip(_tiles(out.size, info.tile_bytes), info.coded_nbytes, strict=True)):
        _decode_tile(info, tile, data[start : start + size], out[at], _part(below, at))
        start += size
    try:
        return out.view(DTYPES[info.dtype].numpy).reshape(info.shape)
    except ValueError as error:  # an empty tensor whose other dimensions are beyond any array
        raise FormatRefused(f"no array can have the frame's shape {info.shape}") from error


def decode_tile(info: FrameInfo, tile: int, coded: BytesLike, out: BytesLike) -> None:
    """Decode tile number ``tile`` of the frame with header ``info`` into ``out``, checked against its digest.

    For readers of a part of a frame: ``coded`` are the ``info.coded_nbytes[tile]`` bytes of the coded tile, ``out`` is
    writable and has exactly the tile's decoded bytes. Frames on a base are decoded whole, by `decode`. Releases the
    interpreter's lock in the heavy parts; after an error ``out`` may hold anything.

    Raises: `BlobCorrupt` or `FormatRefused` if the tile is not what was encoded; `CallError` if sizes do not fit.
    """
    source, target = as_bytes(coded), as_bytes(out)
    size = min(info.tile_bytes, info.nbytes - tile * info.tile_bytes)
    if not 0 <= tile < len(info.coded_nbytes) or (source.size, target.size) != (info.coded_nbytes[tile], size):
        raise CallError(f"{source.size} and {target.size} bytes are not tile {tile} of this frame", tile=tile)
    if info.base is not None:
        raise CallError(f"this frame needs its base, the tensor with digest {info.base}", base=info.base)
    _decode_tile(info, tile, source, target, None)


def _decode_tile(info: FrameInfo, tile: int, coded: Bytes, target: Bytes, base: Bytes | None) -> None:
    if coded.size == target.size:
        found = copy_and_digest(coded, target, info.tile_bytes)
    else:
        CODECS[info.codec].decode(coded, target, dtype=DTYPES[info.dtype], base=base)
        found = tile_digests(target, info.tile_bytes)
    if found != info.tile_digests[16 * tile : 16 * tile + 16]:
        raise BlobCorrupt(f"tile {tile} of the frame does not have its digest", tile=tile)


def _described(
    array: npt.NDArray[Any], dtype: str | None, shape: Sequence[int] | None
) -> tuple[str, tuple[int, ...], Bytes]:
    """The true dtype, the true shape and the contiguous bytes of what the caller passed."""
    name = dtypes.name_of(array.dtype) if dtype is None else dtypes.dtype_named(dtype).name
    stands_in = array.dtype.kind == "u" and array.dtype.itemsize in (1, DTYPES[name].itemsize) and array.dtype.isnative
    if dtype is not None and not stands_in and dtypes.name_of(array.dtype) != name:
        raise CallError(f"an array of {array.dtype} does not hold the bytes of {name}", dtype=name)
    dims = tuple(int(dim) for dim in (array.shape if shape is None else shape))
    if len(dims) > header.MAX_DIMS or dtypes.nbytes(name, dims) != array.nbytes:
        raise CallError(
            f"{array.nbytes} bytes are no tensor of dtype {name} and shape {dims}: pass the true shape=",
            dtype=name,
            shape=list(dims),
        )
    return name, dims, as_bytes(np.ascontiguousarray(array))


def _base_bytes(base: npt.NDArray[Any], *, dtype: str, shape: tuple[int, ...]) -> Bytes:
    """The bytes of a base, which must be as many as those of the tensor on top of it."""
    if base.nbytes != dtypes.nbytes(dtype, shape):
        raise CallError(f"the base has {base.nbytes} bytes, the tensor {dtypes.nbytes(dtype, shape)}", dtype=dtype)
    return as_bytes(np.ascontiguousarray(base))


def _checked_base(info: FrameInfo, base: npt.NDArray[Any] | None) -> Bytes | None:
    """The bytes of the base that ``info`` names; None if it names none."""
    if info.base is None:
        return None
    if base is None:
        raise CallError(f"this frame needs its base, the tensor with digest {info.base}", base=info.base)
    below = _base_bytes(base, dtype=info.dtype, shape=info.shape)
    found = root_digest(tile_digests(below, info.tile_bytes))
    if found != info.base:
        raise CallError(f"this frame was made on base {info.base}, not {found}", base=info.base, found=found)
    return below


def _smaller(stage: ArrayToBytes, tile: Bytes, base: Bytes | None, dtype: DType) -> Bytes:
    """The coded tile, or the tile itself if coding does not make it smaller."""
    coded = as_bytes(stage.encode(tile, dtype=dtype, base=base))
    return coded if coded.size < tile.size else tile


def _part(data: Bytes | None, at: slice) -> Bytes | None:
    return None if data is None else data[at]


def _tiles(nbytes: int, tile_bytes: int = TILE_BYTES) -> list[slice]:
    return [slice(start, min(start + tile_bytes, nbytes)) for start in range(0, nbytes, tile_bytes)]


def _aligned(nbytes: int) -> Bytes:
    """An uninitialised array that starts where the fused copy is fastest."""
    room = np.empty(nbytes + _ALIGN_BYTES, np.uint8)
    skip = -int(room.__array_interface__["data"][0]) % _ALIGN_BYTES
    return room[skip : skip + nbytes]
