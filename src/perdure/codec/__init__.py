"""Bytes to fewer bytes and back: dtypes, digests, and frames that carry one tensor each.

Pure: no file, no socket, no mesh. NumPy only; torch tensors come as views of their bytes.
"""

from perdure.codec.digest import NATIVE, TILE_BYTES, copy_and_digest, digest, n_tiles, tile_digests
from perdure.codec.dtypes import DTYPES, DType, nbytes
from perdure.codec.error import FrameError
from perdure.codec.frame import decode, decode_tile, encode, encode_parts
from perdure.codec.header import FrameInfo, frame_info
from perdure.codec.stages import CODECS

__all__ = [
    "CODECS",
    "DTYPES",
    "NATIVE",
    "TILE_BYTES",
    "DType",
    "FrameError",
    "FrameInfo",
    "copy_and_digest",
    "decode",
    "decode_tile",
    "digest",
    "encode",
    "encode_parts",
    "frame_info",
    "n_tiles",
    "nbytes",
    "tile_digests",
]
