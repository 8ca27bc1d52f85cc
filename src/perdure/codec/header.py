"""The header of a frame, format 0: everything that must be known before a byte of the tensor is decoded.

All integers are little-endian. A frame is a header and then its coded tiles, one after another, and nothing else.

| at | bytes | what |
|---|---|---|
| 0 | 4 | magic ``PRDF`` |
| 4 | 1 | version, 0 |
| 5 | 1 | number of the codec (`perdure.codec.stages`) |
| 6 | 1 | number of the dtype (`perdure.codec.dtypes`) |
| 7 | 1 | dimensions, at most 64 |
| 8 | 1 | flags: 1 = there is a base, 2 = lossy; the others are 0 |
| 9 | 1 | t: tiles of 2**t decoded bytes, 12 to 26 |
| 10 | 2 | 0 |
| 12 | 4 | bytes of the whole header |
| 16 | 8 | check: first 8 bytes of the XXH3-128 of the header with zeros here |
| 24 | 16 | digest of the decoded bytes |
| 40 | 16 | digest of the base's bytes, if there is a base |
| | 32 | the error (`perdure.codec.error`), if lossy: four float64, not negative and finite |
| | | each dimension as LEB128, in the fewest bytes |
| | 4 a tile | bytes of the coded tile, at most those of the decoded one; if equal, the tile is raw whatever the codec |
| | 16 a tile | digest of the decoded tile, if there is more than one tile |

The digest of the decoded bytes is that of the one tile; of several, the XXH3-128 of their digests one after another; of
none, that of the empty string. A frame is lossy if its codec is, and only then; its digests are those of what it
decodes to, not of what was encoded. The error is, in this order: the largest absolute one, the largest relative one,
the mean relative one, the root of the mean square of the absolute ones. Anything that a writer would not have written
is refused, so that a frame has one spelling.
"""

from __future__ import annotations

import struct
from dataclasses import astuple, dataclass
from typing import Final

import numpy as np

from perdure.codec import dtypes
from perdure.codec.digest import BytesLike, as_bytes, digest, n_tiles
from perdure.codec.dtypes import DTYPES
from perdure.codec.error import FrameError
from perdure.codec.stages import CODECS, RAW, is_lossy
from perdure.errors import BlobCorrupt, FormatRefused

__all__ = ["FrameInfo", "frame_info", "render", "root_digest"]

MAGIC: Final = b"PRDF"
VERSION: Final = 0
MAX_DIMS: Final = 64
TILE_LOG2: Final = range(12, 27)

_FIXED: Final = struct.Struct("<4sBBBBBBHI8s16s")
_CHECK: Final = slice(16, 24)
_HAS_BASE: Final = 1
_LOSSY: Final = 2
_ERROR: Final = struct.Struct("<4d")
ERROR_NBYTES: Final = _ERROR.size
_MAX_DIM: Final = (1 << 63) - 1
_DTYPE_NAMES: Final = tuple(DTYPES)
_CODEC_NAMES: Final = {codec.number: name for name, codec in CODECS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameInfo:
    """What a frame says of itself."""

    codec: str
    """name of the codec"""
    dtype: str
    """true dtype of the tensor"""
    shape: tuple[int, ...]
    """its shape, in elements"""
    digest: str
    """digest of the decoded bytes (32 hexadecimal digits); what a frame made on top of this tensor calls its base"""
    base: str | None
    """digest of the tensor that is needed to decode this one, or None"""
    error: FrameError | None
    """how far the decoded tensor is from the one that was encoded; None if the frame is lossless"""
    tile_bytes: int
    """decoded bytes of each tile but the last"""
    coded_nbytes: tuple[int, ...]
    """bytes of each coded tile; a tile that has as many as its decoded bytes is stored raw"""
    tile_digests: bytes
    """digests of the decoded tiles, 16 bytes each"""
    header_nbytes: int
    """where the first coded tile starts"""

    @property
    def nbytes(self) -> int:
        """Bytes of the decoded tensor."""
        return dtypes.nbytes(self.dtype, self.shape)

    @property
    def frame_nbytes(self) -> int:
        """Bytes of the whole frame."""
        return self.header_nbytes + sum(self.coded_nbytes)


def root_digest(tile_digests: bytes) -> str:
    """The digest of a tensor from those of its tiles."""
    return tile_digests.hex() if len(tile_digests) == 16 else digest(tile_digests)


def render(
    *,
    codec: str,
    dtype: str,
    shape: tuple[int, ...],
    base: str | None,
    tile_bytes: int,
    coded_nbytes: tuple[int, ...],
    tile_digests: bytes,
    error: FrameError | None = None,
) -> bytes:
    """The bytes of a header; `encode` calls this with values that it has checked."""
    tail = b"".join(
        (
            bytes.fromhex(base) if base else b"",
            _ERROR.pack(*astuple(error)) if error else b"",
            *map(_leb128, shape),
            np.array(coded_nbytes, "<u4").tobytes(),
            tile_digests if len(tile_digests) > 16 else b"",
        )
    )
    header = bytearray(
        _FIXED.pack(
            MAGIC,
            VERSION,
            CODECS[codec].number,
            DTYPES[dtype].number,
            len(shape),
            (_HAS_BASE if base else 0) | (_LOSSY if error else 0),
            tile_bytes.bit_length() - 1,
            0,
            _FIXED.size + len(tail),
            bytes(8),
            bytes.fromhex(root_digest(tile_digests)),
        )
        + tail
    )
    header[_CHECK] = bytes.fromhex(digest(header))[:8]
    return bytes(header)


def frame_info(frame: BytesLike) -> FrameInfo:
    """Read the header of ``frame``, which may be the frame's beginning alone; tiles are neither needed nor looked at.

    Allocates no more than the header's own size, whatever the header claims.

    Raises: `FormatRefused` if this is no frame of a version, codec and dtype that this release reads, or one that no
    release writes; `BlobCorrupt` if it is one whose header is cut off or altered.
    """
    data = as_bytes(frame)
    if data.size < _FIXED.size:
        raise FormatRefused(f"{data.size} bytes are too few for a frame")
    fixed = _FIXED.unpack(data[: _FIXED.size].tobytes())
    magic, version, codec, dtype, dims, flags, log2, reserved, size, check, root = fixed
    if magic != MAGIC:
        raise FormatRefused("this is no frame: it does not start with PRDF")
    if version != VERSION:
        raise FormatRefused(f"frames of version {version} need another release of perdure", version=version)
    if size < _FIXED.size or size > data.size:
        raise BlobCorrupt(f"the frame is cut off: its header has {size} bytes, {data.size} are there")
    header = bytearray(data[:size].tobytes())
    header[_CHECK] = bytes(8)
    if bytes.fromhex(digest(header))[:8] != check:
        raise BlobCorrupt("the frame's header is damaged")
    if codec not in _CODEC_NAMES or dtype >= len(_DTYPE_NAMES):
        raise FormatRefused(f"codec {codec} or dtype {dtype} is unknown to this release", codec=codec, dtype=dtype)
    if dims > MAX_DIMS or flags & ~(_HAS_BASE | _LOSSY) or log2 not in TILE_LOG2 or reserved:
        raise FormatRefused("the frame's header holds a value out of bounds")

    cursor = _Cursor(bytes(header), _FIXED.size)
    base = cursor.take(16).hex() if flags & _HAS_BASE else None
    error = FrameError(*_ERROR.unpack(cursor.take(_ERROR.size))) if flags & _LOSSY else None
    if (error is not None) != is_lossy(_CODEC_NAMES[codec]) or (error is not None and not error.possible):
        raise FormatRefused("a frame tells its error if its codec is lossy, and only then")
    shape = tuple(cursor.leb128() for _ in range(dims))
    nbytes, tile_bytes = dtypes.nbytes(_DTYPE_NAMES[dtype], shape), 1 << log2
    tiles = n_tiles(nbytes, tile_bytes)
    coded = tuple(np.frombuffer(cursor.take(4 * tiles), "<u4").tolist())
    digests = cursor.take(16 * tiles) if tiles > 1 else root * tiles
    if cursor.left():
        raise FormatRefused("the frame's header is longer than its fields")
    if bytes.fromhex(root_digest(digests)) != root:
        raise FormatRefused("the frame's digest is not that of its tiles' digests")
    last_bytes = nbytes - (tiles - 1) * tile_bytes
    if any(n > tile_bytes for n in coded[:-1]) or (tiles and coded[-1] > last_bytes):
        raise FormatRefused("a tile of the frame is larger than its decoded bytes")
    if (codec == RAW.number) != (sum(coded) == nbytes) or (codec == RAW.number and base is not None):
        raise FormatRefused("a frame is raw if all of its tiles are, and only then; a raw one has no base")
    return FrameInfo(
        codec=_CODEC_NAMES[codec],
        dtype=_DTYPE_NAMES[dtype],
        shape=shape,
        digest=root.hex(),
        base=base,
        error=error,
        tile_bytes=tile_bytes,
        coded_nbytes=coded,
        tile_digests=digests,
        header_nbytes=size,
    )


def _leb128(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class _Cursor:
    """Reads fields off the tail of a header; whatever would reach past its end is refused before anything is made."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at

    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, n: int) -> bytes:
        if n > self.left():
            raise FormatRefused("the frame's header is shorter than its fields")
        self._at += n
        return self._data[self._at - n : self._at]

    def leb128(self) -> int:
        value = shift = 0
        while shift < 70:  # ten bytes; a longer one would take ever longer
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        if byte >= 0x80 or value > _MAX_DIM or (byte == 0 and shift):
            raise FormatRefused("a dimension of the frame is out of bounds or not in its shortest form")
        return value
