"""A frame: one tensor as self-describing, checksummed bytes.

Encoding and decoding are pure, and bit-exact on every dtype, NaN payloads included, but for codecs that are lossy:
their frames say so and by how much. What a frame looks like is told in `perdure.codec.header`; how its tiles are coded,
in `perdure.codec.stages`.
"""

from __future__ import annotations

import functools
import operator
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from perdure.codec import dtypes, header
from perdure.codec.digest import TILE_BYTES, BytesLike, as_bytes, copy_and_digest, tile_digests
from perdure.codec.dtypes import DTYPES
from perdure.codec.error import TileError, measure, total
from perdure.codec.header import FrameInfo, frame_info, root_digest
from perdure.codec.stage import LEVELS, Bytes, DigestsOnTheWay, Level, Lossy
from perdure.codec.stages import CODECS, LOSSY, RAW
from perdure.errors import BlobCorrupt, CallError, FormatRefused

__all__ = ["decode", "decode_tile", "encode", "encode_parts"]

_ALIGN_BYTES: Final = 64
_MAX_THREADS: Final = 1024

_In = TypeVar("_In")
_Out = TypeVar("_Out")


def encode(
    array: npt.NDArray[Any],
    *,
    codec: str = "raw",
    base: npt.NDArray[Any] | None = None,
    dtype: str | None = None,
    shape: Sequence[int] | None = None,
    level: Level = "normal",
    threads: int = 1,
) -> bytes:
    """Turn ``array`` into a frame.

    For a dtype that NumPy lacks, pass the bytes: a uint8 array (or one of the unsigned type of the same width) with the
    true ``dtype`` and, where it differs from ``array.shape``, the true ``shape``. ``base`` is an earlier state of the
    same tensor, given in the same way, for codecs that store differences; raw and cluster use none. ``level`` is
    ``"small"`` for a smaller frame that takes longer to make. ``threads`` share the tiles; the interpreter's lock is
    released in the heavy parts. An array that is not contiguous is copied first. The frame of n bytes has at most
    n + 64 + n/1000 bytes (up to 6 dimensions or so; each costs 1 to 9 bytes), whatever the codec: a tile that does not
    get smaller is stored as it is. The frame is the same on every machine and for any number of threads.

    The codec `cluster` is lossy: for moments of optimizers that may be a little off, and for nothing that must come
    back as it was. ``frame_info(frame).error`` tells by how much; its level "small" is coarser.

    Raises: `CallError` if codec, dtype or level is unknown, the codec does not take the dtype, or dtype and shape do
    not fit the array's bytes.

    >>> frame = encode(np.arange(3, dtype=np.float32))
    >>> len(frame), decode(frame)
    (57, array([0., 1., 2.], dtype=float32))
    """
    return b"".join(encode_parts(array, codec=codec, base=base, dtype=dtype, shape=shape, level=level, threads=threads))


def encode_parts(
    array: npt.NDArray[Any],
    *,
    codec: str = "raw",
    base: npt.NDArray[Any] | None = None,
    dtype: str | None = None,
    shape: Sequence[int] | None = None,
    level: Level = "normal",
    threads: int = 1,
) -> list[memoryview]:
    """The frame that `encode` makes, in pieces: the header and each coded tile, for a writer that takes several.

    Saves a copy of the whole. A tile that is stored raw is the memory of ``array``, which must not change meanwhile.

    Raises: what `encode` raises.
    """
    stage = CODECS.get(codec)
    if stage is None:
        raise CallError(f"unknown codec {codec!r}; there are: {', '.join(CODECS)}", codec=codec)
    if level not in LEVELS:
        raise CallError(f"unknown level {level!r}; there are: {', '.join(LEVELS)}", level=level)
    name, dims, data = _described(array, dtype, shape)
    below = _base_bytes(base, dtype=name, shape=dims) if base is not None else None
    if codec in LOSSY:
        return _lossy_parts(LOSSY[codec], data, dtype=name, shape=dims, level=level, threads=threads)
    room = _Room(data.size)

    def code(at: slice) -> tuple[Bytes, bytes, bytes]:
        """The coded tile, its digest and that of its base: all in one go, while the tile is in the cache."""
        tile, under = data[at], _part(below, at)
        if under is not None and isinstance(stage, DigestsOnTheWay):
            digests = np.empty((2, 16), np.uint8)
            made = stage.encode_and_digest(tile, dtype=DTYPES[name], base=under, level=level, digests=digests)
            if made is not None:
                return _smaller(as_bytes(made), tile, room), digests[0].tobytes(), digests[1].tobytes()
        coded = _smaller(as_bytes(stage.encode(tile, dtype=DTYPES[name], base=under, level=level)), tile, room)
        return coded, tile_digests(tile), b"" if under is None or codec == RAW.name else tile_digests(under)

    coded = _on_threads(code, _tiles(data.size), threads)
    raw = sum(tile.size for tile, _, _ in coded) == data.size
    head = header.render(
        codec=RAW.name if raw else codec,
        dtype=name,
        shape=dims,
        base=None if raw or below is None else root_digest(b"".join(digest for _, _, digest in coded)),
        tile_bytes=TILE_BYTES,
        coded_nbytes=tuple(tile.size for tile, _, _ in coded),
        tile_digests=b"".join(digest for _, digest, _ in coded),
    )
    return [memoryview(head), *(tile.data for tile, _, _ in coded)]


def _lossy_parts(
    stage: Lossy, data: Bytes, *, dtype: str, shape: tuple[int, ...], level: Level, threads: int
) -> list[memoryview]:
    """The frame of a lossy codec, in pieces; a raw one if it would not be smaller than that.

    Every tile is decoded again as a reader will do it: what a frame promises, a digest and an error, was seen.
    """
    if dtype not in stage.dtypes:
        raise CallError(
            f"the codec {stage.name!r} takes {', '.join(stage.dtypes)}, not {dtype}: convert the tensor to one of these"
            " or use a codec that gives back every bit, such as 'planes'",
            codec=stage.name,
            dtype=dtype,
        )

    room = _Room(data.size)

    def code(at: slice) -> tuple[Bytes, bytes, TileError]:
        """The coded tile, the digest of what it decodes to, and how far that is from the tile."""
        tile = data[at]
        coded = _smaller(as_bytes(stage.encode(tile, dtype=DTYPES[dtype], base=None, level=level)), tile, room)
        if coded is tile:
            return tile, tile_digests(tile), measure(tile, tile)
        decoded = np.empty_like(tile)
        stage.decode(coded, decoded, dtype=DTYPES[dtype], base=None)
        return coded, tile_digests(decoded), measure(tile, decoded)

    coded = _on_threads(code, _tiles(data.size), threads)
    if sum(tile.size for tile, _, _ in coded) + header.ERROR_NBYTES >= data.size:
        return encode_parts(data, dtype=dtype, shape=shape, threads=threads)
    head = header.render(
        codec=stage.name,
        dtype=dtype,
        shape=shape,
        base=None,
        tile_bytes=TILE_BYTES,
        coded_nbytes=tuple(tile.size for tile, _, _ in coded),
        tile_digests=b"".join(digest for _, digest, _ in coded),
        error=total(error for _, _, error in coded),
    )
    return [memoryview(head), *(tile.data for tile, _, _ in coded)]


def decode(
    frame: BytesLike,
    *,
    base: npt.NDArray[Any] | None = None,
    out: BytesLike | None = None,
    threads: int = 1,
) -> npt.NDArray[Any]:
    """Give back the array of ``frame``: a new one, writable, checked against the digest that the frame carries.

    For a dtype that NumPy lacks, the array has the unsigned integer type of the same width and the true shape;
    `frame_info` tells the true dtype. ``base`` is needed if ``frame_info(frame).base`` is not None, and ignored
    otherwise. Allocates the array only after the header has proved that the frame is whole and of the right size.
    With ``out``, writable and of exactly the tensor's bytes, the array is a view of that; memory that is there already
    saves the time to make its pages. After an error it may hold anything. ``threads`` share the tiles; the
    interpreter's lock is released in the heavy parts.

    Raises: `BlobCorrupt` if the frame was cut off or altered: use another copy (facts: ``tile``); `FormatRefused` if it
    is no frame that this release reads; `CallError` if the base is missing or is another one, or ``out`` does not fit.
    """
    data = as_bytes(frame)
    info = frame_info(data)
    if info.frame_nbytes != data.size:
        raise BlobCorrupt(f"the frame has {data.size} bytes, its header tells of {info.frame_nbytes}")
    below = _base_of(info, base)
    target = _aligned(info.nbytes) if out is None else as_bytes(out)
    if target.size != info.nbytes or not target.flags.writeable:
        raise CallError(f"out must be {info.nbytes} writable bytes; it has {target.size}", nbytes=info.nbytes)
    if out is not None and any(np.may_share_memory(target, each) for each in (data, below) if each is not None):
        raise CallError(
            "out overlaps the frame or the base, which are still read while it is written; give other memory"
        )
    ends = list(accumulate(info.coded_nbytes, initial=info.header_nbytes))

    def rebuild(tile: int) -> bytes:
        """The digest of the tile's base, if it has one."""
        at = slice(tile * info.tile_bytes, min((tile + 1) * info.tile_bytes, target.size))
        under = _part(below, at)
        seen = _decode_tile(info, tile, data[ends[tile] : ends[tile + 1]], target[at], under)
        return seen if under is None or seen else tile_digests(under, info.tile_bytes)

    try:
        seen = b"".join(_on_threads(rebuild, range(len(info.coded_nbytes)), threads))
    except (BlobCorrupt, FormatRefused):
        if below is not None:  # another base is the more likely reason, and the caller can do something about it
            _check_base(info, tile_digests(below, info.tile_bytes, threads=threads))
        raise
    if below is not None:
        _check_base(info, seen)
    try:
        return target.view(DTYPES[info.dtype].numpy).reshape(info.shape)
    except ValueError as error:  # an empty tensor whose other dimensions are beyond any array
        raise FormatRefused(f"no array can have the frame's shape {info.shape}") from error


def decode_tile(info: FrameInfo, tile: int, coded: BytesLike, out: BytesLike, *, base: BytesLike | None = None) -> None:
    """Decode tile number ``tile`` of the frame with header ``info`` into ``out``, checked against its digest.

    For readers of a part of a frame: ``coded`` are the ``info.coded_nbytes[tile]`` bytes of the coded tile, ``out`` is
    writable and has exactly the tile's decoded bytes. If the frame has a base, ``base`` holds the same tile of it; it
    is the caller who knows that this is the right one: another one shows in the digest of the decoded tile. Releases
    the interpreter's lock in the heavy parts; after an error ``out`` may hold anything.

    Raises: `BlobCorrupt` or `FormatRefused` if the tile is not what was encoded; `CallError` if the base is missing or
    sizes do not fit.
    """
    source, target = as_bytes(coded), as_bytes(out)
    size = min(info.tile_bytes, info.nbytes - tile * info.tile_bytes)
    if not 0 <= tile < len(info.coded_nbytes) or (source.size, target.size) != (info.coded_nbytes[tile], size):
        raise CallError(f"{source.size} and {target.size} bytes are not tile {tile} of this frame", tile=tile)
    below = None if base is None or info.base is None else as_bytes(base)
    if info.base is not None and source.size != target.size:
        if below is None:
            raise CallError(f"this frame needs its base, the tensor with digest {info.base}", base=info.base)
        if below.size != size:
            raise CallError(f"{below.size} bytes are not tile {tile} of this frame's base", tile=tile)
    _decode_tile(info, tile, source, target, below)


def _decode_tile(info: FrameInfo, tile: int, coded: Bytes, target: Bytes, base: Bytes | None) -> bytes:
    """Decode and check; returns the digest of the tile's base, or nothing if decoding did not come by it."""
    stage, seen = CODECS[info.codec], b""
    if coded.size == target.size:
        found = copy_and_digest(coded, target, info.tile_bytes)
    elif base is not None and isinstance(stage, DigestsOnTheWay):
        digests = np.empty((2, 16), np.uint8)
        with _damage(tile):
            stage.decode_and_digest(coded, target, dtype=DTYPES[info.dtype], base=base, digests=digests)
        found, seen = digests[0].tobytes(), digests[1].tobytes()
    else:
        with _damage(tile):
            stage.decode(coded, target, dtype=DTYPES[info.dtype], base=base)
        found = tile_digests(target, info.tile_bytes)
    if found != info.tile_digests[16 * tile : 16 * tile + 16]:
        raise BlobCorrupt(f"tile {tile} of the frame does not have its digest; use another copy", tile=tile)
    return seen


@contextmanager
def _damage(tile: int) -> Iterator[None]:
    """The header proved that a frame of this release was written: what no writer writes is damage here."""
    try:
        yield
    except FormatRefused as error:
        raise BlobCorrupt(f"tile {tile} of the frame is damaged: {error}; use another copy", tile=tile) from error


def _described(
    array: npt.NDArray[Any], dtype: str | None, shape: Sequence[int] | None
) -> tuple[str, tuple[int, ...], Bytes]:
    """The true dtype, the true shape and the contiguous bytes of what the caller passed."""
    _check_array(array, "array")
    if dtype is not None and not isinstance(dtype, str):
        raise CallError(f"dtype is {dtype!r}; give torch's name of it as a text, such as 'bfloat16'")
    try:
        dims = tuple(map(operator.index, array.shape if shape is None else shape))
    except TypeError:
        raise CallError(f"shape is {shape!r}; give whole numbers in a tuple") from None
    name = dtypes.name_of(array.dtype) if dtype is None else dtypes.dtype_named(dtype).name
    stands_in = array.dtype.kind == "u" and array.dtype.itemsize in (1, DTYPES[name].itemsize) and array.dtype.isnative
    if dtype is not None and not stands_in and dtypes.name_of(array.dtype) != name:
        raise CallError(f"an array of {array.dtype} does not hold the bytes of {name}", dtype=name)
    if len(dims) > header.MAX_DIMS or dtypes.nbytes(name, dims) != array.nbytes:
        raise CallError(
            f"{array.nbytes} bytes are no tensor of dtype {name} and shape {dims}: pass the true shape=",
            dtype=name,
            shape=list(dims),
        )
    return name, dims, as_bytes(np.ascontiguousarray(array))


def _check_array(array: object, what: str) -> None:
    """Raise `CallError` unless ``array`` is one of NumPy's that holds all that it shows."""
    if type(array).__module__.partition(".")[0] == "torch":
        raise CallError(
            f"{what} is a torch tensor; pass its bytes: tensor.contiguous().view(torch.uint8).numpy(), with dtype= and "
            "shape= of the tensor"
        )
    if not isinstance(array, np.ndarray):
        raise CallError(f"{what} is a {type(array).__name__}; give a NumPy array")
    if isinstance(array, np.ma.MaskedArray):
        raise CallError(f"{what} is a masked array, whose mask a frame cannot hold; give its data and its mask apart")


def _base_bytes(base: npt.NDArray[Any], *, dtype: str, shape: tuple[int, ...]) -> Bytes:
    """The bytes of a base, which must be as many as those of the tensor on top of it."""
    _check_array(base, "base")
    if base.nbytes != dtypes.nbytes(dtype, shape):
        raise CallError(
            f"the base has {base.nbytes} bytes, the tensor {dtypes.nbytes(dtype, shape)}; give the same tensor of "
            "another step",
            dtype=dtype,
        )
    return as_bytes(np.ascontiguousarray(base))


def _base_of(info: FrameInfo, base: npt.NDArray[Any] | None) -> Bytes | None:
    """The bytes of what is to be the base that ``info`` names; None if it names none."""
    if info.base is None:
        return None
    if base is None:
        raise CallError(f"this frame needs its base, the tensor with digest {info.base}", base=info.base)
    return _base_bytes(base, dtype=info.dtype, shape=info.shape)


def _check_base(info: FrameInfo, digests: bytes) -> None:
    """Raise `CallError` unless the tiles with ``digests`` are those of the base that ``info`` names."""
    found = root_digest(digests)
    if found != info.base:
        raise CallError(
            f"this frame was made on base {info.base}, not {found}; give the tensor that it was encoded with",
            base=info.base,
            found=found,
        )


def _smaller(coded: Bytes, tile: Bytes, room: _Room) -> Bytes:
    """The coded tile, kept in ``room``, or the tile itself if coding does not make it smaller."""
    return room.keep(coded) if coded.size < tile.size else tile


class _Room:
    """Where the coded tiles of a frame lie, one after another, whatever thread they come from.

    The pages of one large piece of memory are made several times faster than those of many pieces, and only where
    something is kept.
    """

    def __init__(self, nbytes: int) -> None:
        self._free = np.empty(nbytes, np.uint8)
        self._lock = threading.Lock()

    def keep(self, coded: Bytes) -> Bytes:
        """A copy of ``coded``; all copies together fit, for each is shorter than its tile."""
        with self._lock:
            piece, self._free = self._free[: coded.size], self._free[coded.size :]
        np.copyto(piece, coded)
        return piece


def _on_threads(work: Callable[[_In], _Out], items: Iterable[_In], threads: int) -> list[_Out]:
    """What ``work`` returns for each item, in order; the first error in order is raised."""
    if type(threads) is not int or not 1 <= threads <= _MAX_THREADS:
        raise CallError(f"threads must be a whole number from 1 to {_MAX_THREADS}, not {threads!r}")
    listed = list(items)
    if threads == 1 or len(listed) < 2:
        return [work(item) for item in listed]
    return list(_pool(threads).map(work, listed))


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Threads that stay: each keeps the memory that kernels code in, which takes as long to make as a tile to code."""
    return ThreadPoolExecutor(threads, thread_name_prefix="perdure codec")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not live on in a child


def _part(data: Bytes | None, at: slice) -> Bytes | None:
    return None if data is None else data[at]


def _tiles(nbytes: int) -> list[slice]:
    return [slice(start, min(start + TILE_BYTES, nbytes)) for start in range(0, nbytes, TILE_BYTES)]


def _aligned(nbytes: int) -> Bytes:
    """An uninitialised array that starts where the fused copy is fastest."""
    try:
        room = np.empty(nbytes + _ALIGN_BYTES, np.uint8)
    except MemoryError as error:
        raise CallError(
            f"there is no memory for the {nbytes} bytes that the frame decodes to", nbytes=nbytes
        ) from error
    skip = -int(room.__array_interface__["data"][0]) % _ALIGN_BYTES
    return room[skip : skip + nbytes]
