"""A pack: many tensors in one valid safetensors file, aligned, with the digest of every tile in its header.

Theory. Everything about a pack but its digests follows from names, dtypes and shapes. So a writer plans first, puts the
data where the plan says (often straight into shared memory, which then *is* the file), digests tile by tile on the way,
and renders the header last, into the room that the plan kept for it. A reader parses the header alone and knows for
every byte range of every tensor which tiles to read and what they must hash to.

The header has one spelling only: a reader renders what it understood and compares. That refuses duplicate keys, odd
numbers, reordered or unknown fields and whatever two JSON readers might understand differently.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, NoReturn

import msgspec
import xxhash

from perdure.errors import BlobMissing, CallError, FormatRefused
from perdure.store.api import as_bytes
from perdure.store.pack_header import (
    ALIGN_BYTES,
    CODES,
    DIGEST_BYTES,
    DTYPES,
    FORMAT,
    HEADER_ALIGN_BYTES,
    HEADER_LIMIT_BYTES,
    NBYTES_LIMIT,
    TILE_BYTES,
    TILE_LIMITS,
    PackEntry,
    PackItem,
    Pad,
    frame,
    place,
    spell,
    spell_metadata,
    wrong_key,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "ALIGN_BYTES",
    "CODES",
    "FORMAT",
    "HEADER_LIMIT_BYTES",
    "TILE_BYTES",
    "PackEntry",
    "PackIndex",
    "PackItem",
    "PackPlan",
    "Pad",
    "parse_header",
    "plan_pack",
]

_HEX = re.compile(r"\A[0-9a-f]*\Z")
_ZEROS = bytes(ALIGN_BYTES)


@dataclass(frozen=True, slots=True)
class PackPlan:
    """Where everything goes in a pack that is to be written. ``pads`` must be zero in the file."""

    entries: tuple[PackEntry, ...]
    pads: tuple[Pad, ...]
    tile_bytes: int
    n_tiles: int
    header_nbytes: int
    total_nbytes: int

    def render_header(self, digests: bytes) -> bytes:
        """The first ``header_nbytes`` of the file. ``digests``: 16 bytes a tile, in the order of the tiles."""
        if len(digests) != DIGEST_BYTES * self.n_tiles:
            raise CallError(f"{len(digests)} bytes of digests for {self.n_tiles} tiles; give 16 for each")
        text = spell(self.entries, self.tile_bytes, digests.hex(), self.header_nbytes)
        return frame(text, self.header_nbytes)

    def chunks(self, header: bytes, data: Sequence[Buffer]) -> Iterator[memoryview]:
        """The file as pieces to put in a store: ``header``, then the bytes of each entry, pads between them."""
        if len(data) != len(self.entries):
            raise CallError(f"{len(data)} buffers for {len(self.entries)} entries")
        yield memoryview(header)
        cursor = self.header_nbytes
        for entry, buffer in zip(self.entries, data, strict=True):
            view = as_bytes(buffer)
            if view.nbytes != entry.nbytes:
                raise CallError(f"{view.nbytes} bytes for {entry.key!r}, which has {entry.nbytes}", tensor=entry.key)
            yield memoryview(_ZEROS)[: entry.start - cursor]
            yield view
            cursor = entry.start + entry.nbytes


@dataclass(frozen=True, slots=True)
class PackIndex:
    """What the header of a pack says."""

    entries: tuple[PackEntry, ...]
    tile_bytes: int
    header_nbytes: int
    total_nbytes: int
    header_digest: str
    digests: bytes = field(repr=False)
    file: str = field(compare=False)
    _by_key: Mapping[str, PackEntry] = field(repr=False, compare=False)

    def entry(self, key: str) -> PackEntry:
        """The entry of ``key``; raises `BlobMissing` if the pack has none."""
        found = self._by_key.get(key)
        if found is None:
            raise BlobMissing(f"{self.file} holds no tensor {key!r}; use another copy", file=self.file, tensor=key)
        return found

    def tile_range(self, entry: PackEntry, lo: int, hi: int) -> range:
        """The tiles that hold bytes ``lo <= i < hi`` of ``entry``.

        The first may begin before ``lo`` and the last end after ``hi``: a digest is of a whole tile.
        """
        if not 0 <= lo <= hi <= entry.nbytes:
            raise CallError(f"bytes {lo} to {hi} are not in {entry.key!r} of {entry.nbytes} bytes", tensor=entry.key)
        if lo == hi:
            return range(entry.first_tile, entry.first_tile)
        return range(entry.first_tile + lo // self.tile_bytes, entry.first_tile - (-hi // self.tile_bytes))

    def tile_span(self, entry: PackEntry, tile: int) -> tuple[int, int]:
        """Where ``tile`` lies in the file: its first byte and the one after its last."""
        start = (tile - entry.first_tile) * self.tile_bytes
        assert 0 <= start < entry.nbytes
        return entry.start + start, entry.start + min(start + self.tile_bytes, entry.nbytes)

    def digest(self, tile: int) -> bytes:
        """The 16 bytes that ``tile`` must hash to."""
        assert 0 <= tile < len(self.digests) // DIGEST_BYTES
        return self.digests[tile * DIGEST_BYTES : (tile + 1) * DIGEST_BYTES]


def plan_pack(items: Sequence[PackItem], *, tile_bytes: int = TILE_BYTES) -> PackPlan:
    """Plan the pack of ``items``, in their order.

    Raises `CallError` for a key that is empty, too long, reserved or there twice, for bytes that do not fit dtype and
    shape, and for more names than a header holds.

    >>> plan = plan_pack([PackItem("w", "float32", (5,), 20), PackItem("b", "bfloat16", (2,), 4)])
    >>> [(e.key, e.start, e.nbytes, e.first_tile) for e in plan.entries], plan.pads, plan.total_nbytes
    ([('w', 4096, 20, 0), ('b', 4160, 4, 1)], (Pad(start=4116, nbytes=44),), 4164)
    """
    if not TILE_LIMITS[0] <= tile_bytes <= TILE_LIMITS[1]:
        raise CallError(f"tiles of {tile_bytes} bytes: choose {TILE_LIMITS[0]} to {TILE_LIMITS[1]}")
    keys: set[str] = set()
    stored = []
    for item in items:
        why = "is there twice" if item.key in keys else wrong_key(item.key)
        if why:
            raise CallError(f"the key {item.key[:80]!r} {why}", tensor=item.key[:80])
        keys.add(item.key)
        stored.append(_as_stored(item))
    entries, _, _ = place(stored, tile_bytes, start=0)
    n_tiles = sum(entry.n_tiles for entry in entries)
    # Offsets in the header count from the end of the header, so its length does not depend on where that is.
    text_nbytes = len(spell(entries, tile_bytes, "0" * (2 * DIGEST_BYTES * n_tiles), 0))
    header_nbytes = -(-(8 + text_nbytes) // HEADER_ALIGN_BYTES) * HEADER_ALIGN_BYTES
    if header_nbytes > HEADER_LIMIT_BYTES:
        raise CallError(f"a header of {header_nbytes} bytes is too long; use fewer tensors a pack or larger tiles")
    entries, pads, end = place(stored, tile_bytes, start=header_nbytes)
    return PackPlan(tuple(entries), tuple(pads), tile_bytes, n_tiles, header_nbytes, end)


def parse_header(read: Callable[[int, int], Buffer], total_nbytes: int, *, file: str = "the pack") -> PackIndex:
    """Read the header of a pack of ``total_nbytes`` bytes; ``read(start, nbytes)`` gives bytes of it.

    Not one byte of the data is looked at. Raises `FormatRefused`, saying why, for whatever the format would not write.
    """
    if not HEADER_ALIGN_BYTES <= total_nbytes <= NBYTES_LIMIT:
        _refuse(file, f"{total_nbytes} bytes are no pack")
    header_nbytes = 8 + int.from_bytes(as_bytes(read(0, 8)), "little")
    if header_nbytes > min(HEADER_LIMIT_BYTES, total_nbytes) or header_nbytes % HEADER_ALIGN_BYTES:
        _refuse(file, f"a header of {header_nbytes} bytes is too long, cut, or not a multiple of {HEADER_ALIGN_BYTES}")
    raw = bytes(as_bytes(read(0, header_nbytes)))
    metadata, tensors = _decode(raw[8:], file)
    tile_bytes = int(metadata.tile_bytes)
    if not TILE_LIMITS[0] <= tile_bytes <= TILE_LIMITS[1]:
        _refuse(file, f"tiles of {tile_bytes} bytes")
    entries, end, in_place = _read_entries(tensors, tile_bytes, header_nbytes, file)
    n_tiles = sum(entry.n_tiles for entry in entries)
    if end != total_nbytes:
        _refuse(file, f"its tensors end at byte {end}, the file at {total_nbytes}")
    if len(metadata.digests) != 2 * DIGEST_BYTES * n_tiles or not _HEX.match(metadata.digests):
        _refuse(file, f"{len(metadata.digests)} characters are not the digests of {n_tiles} tiles")
    # What the library spells is what `spell` spells, a million tensors faster.
    front = spell_metadata(tile_bytes, metadata.digests)
    text = front + (b"," if tensors else b"") + msgspec.json.encode(tensors)[1:]
    short = header_nbytes - 8 - len(text) < HEADER_ALIGN_BYTES  # no more padding than there must be
    if not in_place or not short or frame(text, header_nbytes) != raw:
        _refuse(file, "gaps, overlaps, duplicate keys, or a spelling that is not that of the format")
    return PackIndex(
        entries=tuple(entries),
        tile_bytes=tile_bytes,
        header_nbytes=header_nbytes,
        total_nbytes=total_nbytes,
        header_digest=xxhash.xxh3_128_hexdigest(raw),
        digests=bytes.fromhex(metadata.digests),
        file=file,
        _by_key=MappingProxyType({entry.key: entry for entry in entries}),
    )


class _Metadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    perdure: Annotated[str, msgspec.Meta(pattern=r"\A(0|[1-9][0-9]{0,8})\Z")]
    tile_bytes: Annotated[str, msgspec.Meta(pattern=r"\A[1-9][0-9]{0,9}\Z")]
    digests: str


_Count = Annotated[int, msgspec.Meta(ge=0, le=NBYTES_LIMIT)]


class _Front(msgspec.Struct, frozen=True):
    """The metadata alone; what else there is is passed over."""

    metadata: msgspec.Raw = msgspec.field(name="__metadata__", default=msgspec.Raw())


class _Tensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    dtype: str
    shape: Annotated[tuple[_Count, ...], msgspec.Meta(max_length=64)]
    data_offsets: tuple[_Count, _Count]


def _decode(text: bytes, file: str) -> tuple[_Metadata, dict[str, _Tensor]]:
    try:
        raw = msgspec.json.decode(text, type=_Front).metadata
        if not bytes(raw):
            _refuse(file, "no __metadata__: it is not a pack")
        declared = msgspec.json.decode(raw, type=dict[str, str])
        if "perdure" not in declared:
            _refuse(file, "a safetensors file of another writer; import it")
        if declared["perdure"] != str(FORMAT):
            found = declared["perdure"][:20]
            raise FormatRefused(
                f"{file} was written by format {found}; this release reads {FORMAT}: upgrade perdure",
                file=file,
                found=found,
                reads=FORMAT,
            )
        metadata = msgspec.json.decode(raw, type=_Metadata)
        front = spell_metadata(int(metadata.tile_bytes), metadata.digests)
        if not text.startswith(front):
            _refuse(file, "__metadata__ does not come first, or is spelled in another way")
        # All tensors in one go; that nothing is there twice shows when the whole is spelled again.
        rest = text[len(front) :]
        return metadata, msgspec.json.decode(b"{" + rest.removeprefix(b","), type=dict[str, _Tensor])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        _refuse(file, f"its header cannot be read: {error}")


def _read_entries(
    tensors: Mapping[str, _Tensor], tile_bytes: int, header_nbytes: int, file: str
) -> tuple[list[PackEntry], int, bool]:
    """The tensors without the pads; where they end, if each lies behind the one before; and whether `place` would have
    put all of them, and the pads, just there.
    """
    entries: list[PackEntry] = []
    tile = n_pads = cursor = 0  # counted from the end of the header, which is aligned
    end, padded, in_place = header_nbytes, False, True
    for key, tensor in tensors.items():
        start, stop = tensor.data_offsets
        in_place = in_place and start == cursor
        cursor = stop
        if key == f"__pad.{n_pads}":
            n_pads += 1
            gap = -start % ALIGN_BYTES
            in_place = in_place and gap > 0 and tensor == _Tensor("U8", (gap,), (start, start + gap))
            padded = True
            continue
        why = wrong_key(key)
        if why:
            _refuse(file, f"the key {key[:80]!r} {why}")
        known = DTYPES.get(tensor.dtype)
        if known is None:
            _refuse(file, f"{key[:80]!r} has the unknown dtype {tensor.dtype[:20]!r}")
        dtype, element_bytes = known
        nbytes = stop - start
        if nbytes != math.prod(tensor.shape) * element_bytes:
            _refuse(file, f"{key[:80]!r} has {nbytes} bytes, which its dtype and shape do not fill")
        in_place = in_place and not start % ALIGN_BYTES
        padded = False
        n_tiles = -(-nbytes // tile_bytes)
        end += -end % ALIGN_BYTES
        entries.append(PackEntry(key, dtype, tensor.shape, end, nbytes, tile, n_tiles))
        end += nbytes
        tile += n_tiles
    return entries, end, in_place and not padded


def _as_stored(item: PackItem) -> PackItem:
    if item.dtype not in CODES:
        if item.nbytes < 0:
            raise CallError(f"{item.key!r} has {item.nbytes} bytes", tensor=item.key)
        return PackItem(item.key, "uint8", (item.nbytes,), item.nbytes)
    wanted = math.prod(item.shape) * CODES[item.dtype][1]
    if min(item.shape, default=0) < 0 or item.nbytes != wanted:
        raise CallError(
            f"{item.key!r} has {item.nbytes} bytes; {item.dtype} of shape {item.shape} has {wanted}", tensor=item.key
        )
    return item


def _refuse(file: str, why: str) -> NoReturn:
    raise FormatRefused(f"{file} is refused: {why}; use another copy", file=file, why=why)
