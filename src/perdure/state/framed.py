"""Read a part of a frame in a pack: its header within known bounds, then single tiles, each checked.

The header proves itself and holds the digest of every decoded tile, so no other byte of the entry has to be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from perdure.codec import FrameInfo, frame_info, n_tiles
from perdure.codec.dtypes import nbytes as nbytes_of
from perdure.errors import BlobCorrupt, IntegrityError, fault_in
from perdure.state.source import PackSource
from perdure.store.pack import PackEntry

__all__ = ["read_header"]

_PROBE_BYTES = 4096  # holds the header of a frame of up to 200 tiles, so mostly one read is enough
_FIXED_BYTES = 88
_SIZE = slice(12, 16)
_TILE_LOG2 = 9
_LEAST_LOG2 = 12


def read_header(
    source: PackSource, entry: PackEntry, *, name: str, dtype: str, shape: Sequence[int]
) -> tuple[FrameInfo, tuple[int, ...], int]:
    """The header of the frame at ``entry``, where each coded tile begins (the last is the end), the bytes read for it.

    Never reads more than a header of the block's own dtype and shape can have, whatever the frame claims.

    Raises `FormatRefused` or `BlobCorrupt`, naming tensor and file, if the frame is not the one of the block.
    """
    facts = {"tensor": name, "file": source.file, "tier": source.tier}
    try:
        head = source.fetch(entry.start, min(entry.nbytes, _PROBE_BYTES))
        size = int.from_bytes(head[_SIZE], "little")
        if len(head) < size <= min(entry.nbytes, _most_bytes(dtype, shape, head[_TILE_LOG2])):
            head = source.fetch(entry.start, size)
        info = frame_info(head)
    except IntegrityError as error:
        raise type(error)(
            f"{name} in {source.file} ({source.tier}): {fault_in(error)}; use another copy",
            **{**error.facts, **facts},
        ) from error
    if (entry.dtype, entry.shape) != ("uint8", (entry.nbytes,)):
        raise BlobCorrupt(
            f"{entry.key} in {source.file} is {entry.dtype}{list(entry.shape)}, not the bytes of a frame; "
            "use another copy",
            **facts,
        )
    if (info.dtype, info.shape) != (dtype, tuple(shape)) or info.frame_nbytes != entry.nbytes:
        raise BlobCorrupt(
            f"{entry.key} in {source.file} is a frame of {info.dtype}{list(info.shape)} in {info.frame_nbytes} bytes, "
            "not that of its box; use another copy",
            **facts,
        )
    return info, tuple(accumulate(info.coded_nbytes, initial=0)), len(head)


def _most_bytes(dtype: str, shape: Sequence[int], log2: int) -> int:
    tiles = n_tiles(nbytes_of(dtype, shape), 1 << max(log2, _LEAST_LOG2))
    return _FIXED_BYTES + 10 * len(shape) + 20 * tiles
