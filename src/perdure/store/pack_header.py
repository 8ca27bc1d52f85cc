"""Where tensors lie in a pack, and the one spelling of a pack's header (docs/spec/format-v1.md, "Packs").

Shared by the writer, which plans, and the reader, which renders what it understood and compares.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec

__all__ = [
    "ALIGN_BYTES",
    "CODES",
    "DIGEST_BYTES",
    "DTYPES",
    "FORMAT",
    "HEADER_ALIGN_BYTES",
    "HEADER_LIMIT_BYTES",
    "NBYTES_LIMIT",
    "TILE_BYTES",
    "TILE_LIMITS",
    "PackEntry",
    "PackItem",
    "Pad",
    "frame",
    "place",
    "spell",
    "spell_metadata",
    "wrong_key",
]

FORMAT = 1
TILE_BYTES = 4 << 20
ALIGN_BYTES = 64  # of every tensor, from the start of the file
HEADER_ALIGN_BYTES = 4096  # of the data, so that a pack can be mapped and read past the page cache
HEADER_LIMIT_BYTES = 100_000_000  # what safetensors readers accept
TILE_LIMITS = (4096, 1 << 30)
NBYTES_LIMIT = 1 << 62
DIGEST_BYTES = 16
KEY_LIMIT_BYTES = 4096
_PLAIN = re.compile(rf"(?!__)[ -~]{{1,{KEY_LIMIT_BYTES}}}\Z")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

CODES: Mapping[str, tuple[str, int]] = MappingProxyType(
    {  # dtype: safetensors code, bytes of an element
        "bool": ("BOOL", 1),
        "uint8": ("U8", 1),
        "int8": ("I8", 1),
        "uint16": ("U16", 2),
        "int16": ("I16", 2),
        "uint32": ("U32", 4),
        "int32": ("I32", 4),
        "uint64": ("U64", 8),
        "int64": ("I64", 8),
        "float16": ("F16", 2),
        "bfloat16": ("BF16", 2),
        "float32": ("F32", 4),
        "float64": ("F64", 8),
        "complex64": ("C64", 8),
        "float8_e4m3fn": ("F8_E4M3", 1),
        "float8_e5m2": ("F8_E5M2", 1),
        "float8_e4m3fnuz": ("F8_E4M3FNUZ", 1),
        "float8_e5m2fnuz": ("F8_E5M2FNUZ", 1),
        "float8_e8m0fnu": ("F8_E8M0", 1),
    }
)
DTYPES = {code: (dtype, size) for dtype, (code, size) in CODES.items()}


# These are made by the million: a `msgspec.Struct` costs a tenth of a dataclass, and the collector need not visit it.
class PackItem(msgspec.Struct, frozen=True, gc=False):
    """What shall be packed: a tensor by torch's dtype name, or coded bytes under a dtype of any other name."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


class PackEntry(msgspec.Struct, frozen=True, gc=False):
    """A tensor in a pack, as stored: ``start`` in bytes from the start of the file, its tiles in the pack's count.

    What safetensors has no code for is stored as ``uint8`` of shape ``(nbytes,)``.
    """

    key: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int
    first_tile: int
    n_tiles: int


class Pad(msgspec.Struct, frozen=True, gc=False):
    """Room between two tensors, stored as a tensor of zeros of its own."""

    start: int
    nbytes: int


def wrong_key(key: str) -> str | None:
    if _PLAIN.match(key):  # nearly all
        return None
    if not key or len(key.encode("utf-8", "replace")) > KEY_LIMIT_BYTES:
        return f"must have 1 to {KEY_LIMIT_BYTES} bytes"
    if key.startswith("__"):
        return "is reserved: it starts with two underscores"
    if _CONTROL.search(key):
        return "has control characters"
    if not key.isascii() and any("\ud800" <= letter <= "\udfff" for letter in key):
        return "is not valid Unicode"
    return None


def place(stored: Sequence[PackItem], tile_bytes: int, *, start: int) -> tuple[list[PackEntry], list[Pad], int]:
    """Lay the items out from ``start`` on (a multiple of 64); also the end."""
    entries, pads = [], []
    tile, cursor = 0, start
    for item in stored:
        gap = -cursor % ALIGN_BYTES
        if gap:
            pads.append(Pad(cursor, gap))
            cursor += gap
        n_tiles = -(-item.nbytes // tile_bytes)
        entries.append(PackEntry(item.key, item.dtype, item.shape, cursor, item.nbytes, tile, n_tiles))
        tile += n_tiles
        cursor += item.nbytes
    return entries, pads, cursor


def spell(entries: Sequence[PackEntry], tile_bytes: int, digests: str, header_nbytes: int) -> bytes:
    """The header's JSON, without padding: no spaces, metadata first, then tensors and pads in the order of the data."""
    out = [spell_metadata(tile_bytes, digests).decode()]
    cursor, n_pads = header_nbytes, 0
    for entry in entries:
        gap = entry.start - cursor
        if gap:
            out.append(_spell_tensor(f"__pad.{n_pads}", "U8", (gap,), cursor - header_nbytes, gap))
            n_pads += 1
        code = CODES[entry.dtype][0]
        out.append(_spell_tensor(entry.key, code, entry.shape, entry.start - header_nbytes, entry.nbytes))
        cursor = entry.start + entry.nbytes
    return (",".join(out) + "}").encode("utf-8")


def spell_metadata(tile_bytes: int, digests: str) -> bytes:
    """The front of a header, up to the tensors."""
    return f'{{"__metadata__":{{"perdure":"{FORMAT}","tile_bytes":"{tile_bytes}","digests":"{digests}"}}'.encode()


def _spell_tensor(key: str, code: str, shape: Sequence[int], start: int, nbytes: int) -> str:
    quoted = key.replace("\\", "\\\\").replace('"', '\\"') if "\\" in key or '"' in key else key
    sizes = ",".join(map(str, shape))
    return f'"{quoted}":{{"dtype":"{code}","shape":[{sizes}],"data_offsets":[{start},{start + nbytes}]}}'


def frame(text: bytes, header_nbytes: int) -> bytes:
    return (header_nbytes - 8).to_bytes(8, "little") + text.ljust(header_nbytes - 8, b" ")
