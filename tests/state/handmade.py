"""Packs made without a save: any tiles, any cut, frames too; and sources that remember what was read from them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perdure.codec import copy_and_digest, encode, tile_digests
from perdure.codec.dtypes import DTYPES
from perdure.codec.header import render
from perdure.codec.stages import is_lossy
from perdure.layout import Box, Layout
from perdure.state.index import Catalog, CatalogTensor, StoredPiece
from perdure.store.pack import PackIndex, PackItem, parse_header, plan_pack

TILE = 4096


def framed(
    data: np.ndarray,
    dtype: str,
    shape: Sequence[int],
    *,
    base: str | None = None,
    codec: str = "raw",
    tile_bytes: int = TILE,
) -> bytes:
    """A frame of ``data`` with tiles of any size; if the codec is lossy, the one that `encode` makes."""
    if is_lossy(codec):
        return encode(data, codec=codec, dtype=dtype, shape=shape)
    stage = header_codecs()[codec]
    tiles = [data[at : at + tile_bytes] for at in range(0, data.size, tile_bytes)]
    coded = [bytes(stage.encode(tile, dtype=DTYPES[dtype], base=None, level="normal")) for tile in tiles]
    coded = [each if len(each) < tile.size else tile.tobytes() for each, tile in zip(coded, tiles, strict=True)]
    head = render(
        codec=codec if sum(map(len, coded)) < data.size else "raw",
        dtype=dtype,
        shape=tuple(shape),
        base=base,
        tile_bytes=tile_bytes,
        coded_nbytes=tuple(map(len, coded)),
        tile_digests=tile_digests(data, tile_bytes),
    )
    return head + b"".join(coded)


def header_codecs() -> Mapping[str, Any]:
    """The codecs of frames, as they are now (tests may have added one)."""
    from perdure.codec import header

    return header.CODECS


@dataclass
class Recorded:
    """A copy of a pack that remembers its reads, as ``(start, nbytes)``; ``fails`` has errors by number of read."""

    data: bytes
    tier: str = "disk"
    mapped: bool = False
    raw: bool = False
    file: str = "a.safetensors"
    fails: dict[int, Exception] = field(default_factory=dict)
    reads: list[tuple[int, int]] = field(default_factory=list)
    _lock: Any = field(default_factory=threading.Lock)

    def index(self) -> PackIndex:
        return parse_header(lambda start, nbytes: self.data[start : start + nbytes], len(self.data), file=self.file)

    def fetch(self, start: int, nbytes: int, into: memoryview | None = None) -> memoryview:
        with self._lock:
            self.reads.append((start, nbytes))
            error = self.fails.get(len(self.reads) - 1)
        if error is not None:
            raise error
        found = memoryview(self.data)[start : start + nbytes]
        if into is None:
            return found
        into[:nbytes] = found
        return into[:nbytes]

    def read_digested(self, start: int, nbytes: int, into: memoryview, tile_bytes: int) -> bytes:
        assert into.nbytes == nbytes
        if self.mapped:
            return copy_and_digest(self.fetch(start, nbytes), into, tile_bytes)
        return tile_digests(self.fetch(start, nbytes, into), tile_bytes)


@dataclass
class Made:
    """A catalog and the packs that it speaks of."""

    catalog: Catalog
    packs: dict[str, bytes]

    def recorded(self, **options: Any) -> dict[str, Recorded]:
        """Every pack as a source."""
        return {name: Recorded(data, file=options.get("tier", "disk") + " " + name, **options)
                for name, data in self.packs.items()}  # fmt: skip


def make(
    layout: Layout,
    wholes: Mapping[str, np.ndarray],
    *,
    tile_bytes: int = TILE,
    coded: Mapping[str, str] | None = None,
    base: str | None = None,
    frame_tile_bytes: int = TILE,
) -> Made:
    """Packs of ``layout``, one a rank, of which the first that holds a box has it; ``coded`` are frames, by codec.

    ``wholes`` are whole tensors, uint8 with the bytes of an element as one dim more.
    """
    coded = coded or {}
    entries: dict[str, list[tuple[PackItem, bytes]]] = {}
    tensors: dict[str, CatalogTensor] = {}
    for name, tensor in layout.items():
        pieces = {}
        for piece in tensor.pieces:
            if piece.box in pieces:
                continue
            block = np.ascontiguousarray(wholes[name][piece.box.within(Box.whole(tensor.shape))])
            data = block.tobytes()
            key, pack = f"{name}{piece.box}", f"pack{piece.rank}"
            item = PackItem(key, tensor.dtype, piece.box.shape, len(data))
            if name in coded:
                data = framed(
                    block.reshape(-1),
                    tensor.dtype,
                    piece.box.shape,
                    base=base,
                    codec=coded[name],
                    tile_bytes=frame_tile_bytes,
                )
                item = PackItem(key, "frame", (len(data),), len(data))
            entries.setdefault(pack, []).append((item, data))
            pieces[piece.box] = StoredPiece(piece.box, pack, key, coded=name in coded)
        tensors[name] = CatalogTensor(name, tensor.dtype, tensor.shape, tuple(pieces.values()))
    packs = {name: _pack(held, tile_bytes) for name, held in entries.items()}
    return Made(Catalog(1 + max(layout.ranks, default=0), tensors), packs)


def _pack(held: Sequence[tuple[PackItem, bytes]], tile_bytes: int) -> bytes:
    plan = plan_pack([item for item, _ in held], tile_bytes=tile_bytes)
    digests = b"".join(tile_digests(data, tile_bytes) for _, data in held)
    return b"".join(plan.chunks(plan.render_header(digests), [data for _, data in held]))
