"""Bases of frames while a step is read: computed tile by tile from blocks that lie in the store, each of them verified.

A frame whose base is stored nowhere names a relation and the blocks that it is computed from
(`perdure.state.relations`). Those may be frames with bases of their own, of the same step; what lies in an older step
is raw, or a frame that stands alone. Tiles that were computed or decoded are kept for a while, because the tensors that
hang together want the same ones.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from perdure.codec import FrameInfo, decode_tile
from perdure.codec.dtypes import DTYPES
from perdure.codec.dtypes import nbytes as nbytes_of
from perdure.codec.stage import Bytes
from perdure.errors import BlobCorrupt, BlobMissing, FormatRefused, IntegrityError, StorageError, fault_in
from perdure.state.framed import read_header
from perdure.state.geometry import stored_as
from perdure.state.predicting import predict
from perdure.state.relations import Rounding
from perdure.state.source import PackSource
from perdure.state.stored import StoredBase, StoredSource
from perdure.store.pack import PackEntry, PackIndex

__all__ = ["Bases"]

_MOST_DEPTH: Final = 8  # a copy follows from a master, that from a second moment, that from a first moment
_KEPT_BYTES: Final = 128 << 20

Tile = tuple[int, int, Bytes]
"""from which byte of its block to which, and the bytes"""


class Bases:
    """``base_of`` says how the base of a key is computed, ``sources`` gives the copies of a pack.

    Used from any thread.
    """

    def __init__(
        self, base_of: Callable[[str], StoredBase | None], sources: Callable[[str], Sequence[PackSource]]
    ) -> None:
        self._base_of, self._sources = base_of, sources
        self._tiles: OrderedDict[tuple[str, str, int], Tile] = OrderedDict()
        self._nbytes = 0
        self._headers: dict[tuple[str, str, int], tuple[FrameInfo, tuple[int, ...]]] = {}
        self._lock = threading.Lock()

    def of(
        self, key: str, dtype: str, shape: Sequence[int], *, file: str, depth: int = 0
    ) -> Callable[[int, int], Bytes]:
        """What computes bytes ``lo <= i < hi`` of the base of the frame ``key``.

        Raises `FormatRefused` if the index does not say how, or if blocks need one another.
        """
        found = self._base_of(key)
        if found is None or depth > _MOST_DEPTH:
            why = "the index does not say how" if found is None else "one base needs the next without end"
            raise FormatRefused(f"the base of {key!r} in {file} cannot be computed: {why}; use another step", file=file)
        width = DTYPES[dtype].itemsize
        wide = found.sources[0].dtype if isinstance(found.relation, Rounding) else None

        def compute(lo: int, hi: int) -> Bytes:
            inputs = []
            for source in found.sources:
                if source.dtype not in DTYPES:
                    raise FormatRefused(f"the base of {key!r} in {file} needs {source.dtype[:40]!r}", file=file)
                size = DTYPES[source.dtype].itemsize
                inputs.append(self._bytes(source, shape, lo // width * size, hi // width * size, depth))
            return predict(found.relation, inputs, dtype=dtype, wide=wide)

        return compute

    def _bytes(self, source: StoredSource, shape: Sequence[int], lo: int, hi: int, depth: int) -> Bytes:
        """Bytes ``lo <= i < hi`` of a block, from the first copy of its pack that verifies."""
        copies = [each for each in self._sources(source.pack) if not each.raw]  # memory holds this step alone
        problem: IntegrityError | StorageError = BlobMissing(
            f"no copy of {source.pack}, which holds {source.key}, can be reached", tensor=source.key, file=source.pack
        )
        for number, copy in enumerate(copies):
            try:
                parts: list[Bytes] = []
                at = lo
                while at < hi:
                    first, last, tile = self._tile(number, copy, source, shape, at, depth)
                    parts.append(tile[at - first : min(hi, last) - first])
                    at = last
                return parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else np.empty(0, np.uint8)
            except (IntegrityError, StorageError) as error:
                problem = error
        raise problem

    def _tile(
        self, number: int, copy: PackSource, source: StoredSource, shape: Sequence[int], at: int, depth: int
    ) -> Tile:
        """The tile of a block that holds byte ``at``, verified."""
        index = copy.index()
        entry = index.entry(source.key)
        header = self._header(number, copy, source, shape, entry) if source.coded else None
        tile_bytes = index.tile_bytes if header is None else header[0].tile_bytes
        which = (source.pack, source.key, at // tile_bytes)
        with self._lock:
            kept = self._tiles.get(which)
            if kept is not None:
                self._tiles.move_to_end(which)
                return kept
        nbytes = nbytes_of(source.dtype, shape)
        lo, hi = which[2] * tile_bytes, min((which[2] + 1) * tile_bytes, nbytes)
        if header is None:
            if (entry.dtype, entry.shape) != stored_as(source.dtype, tuple(shape)):
                raise BlobCorrupt(
                    f"{source.key} in {copy.file} is {entry.dtype}{list(entry.shape)}, not what a base follows from",
                    tensor=source.key,
                    file=copy.file,
                )
            data = _raw(copy, index, entry, which[2], lo, hi)
        else:
            data = self._decoded(copy, source, shape, entry, header, which[2], lo, hi, depth)
        with self._lock:
            if which not in self._tiles:
                self._tiles[which] = (lo, hi, data)
                self._nbytes += data.size
            while self._nbytes > _KEPT_BYTES and len(self._tiles) > 1:
                _, (_, _, gone) = self._tiles.popitem(last=False)
                self._nbytes -= gone.size
        return lo, hi, data

    def _header(
        self, number: int, copy: PackSource, source: StoredSource, shape: Sequence[int], entry: PackEntry
    ) -> tuple[FrameInfo, tuple[int, ...]]:
        name = (source.pack, source.key, number)
        known = self._headers.get(name)
        if known is None:
            info, starts, _ = read_header(copy, entry, name=source.key, dtype=source.dtype, shape=shape)
            known = self._headers[name] = (info, starts)
        return known

    def _decoded(
        self,
        copy: PackSource,
        source: StoredSource,
        shape: Sequence[int],
        entry: PackEntry,
        header: tuple[FrameInfo, tuple[int, ...]],
        tile: int,
        lo: int,
        hi: int,
        depth: int,
    ) -> Bytes:
        info, starts = header
        first, last = (entry.start + info.header_nbytes + starts[at] for at in (tile, tile + 1))
        coded = copy.fetch(first, last - first)
        base = None
        if info.base is not None and last - first < hi - lo:
            base = self.of(source.key, source.dtype, shape, file=copy.file, depth=depth + 1)(lo, hi)
        out = np.empty(hi - lo, np.uint8)
        try:
            decode_tile(info, tile, coded, out, base=base)
        except IntegrityError as error:
            raise BlobCorrupt(
                f"{source.key} in {copy.file} ({copy.tier}), from which a base follows, cannot be decoded: "
                f"{fault_in(error)}",
                tensor=source.key,
                file=copy.file,
                tile=tile,
            ) from error
        return out


def _raw(copy: PackSource, index: PackIndex, entry: PackEntry, tile: int, lo: int, hi: int) -> Bytes:
    out = np.empty(hi - lo, np.uint8)
    found = copy.read_digested(entry.start + lo, hi - lo, memoryview(out.data), index.tile_bytes)
    at = 16 * (entry.first_tile + tile)
    if found != index.digests[at : at + 16]:
        raise BlobCorrupt(
            f"{entry.key} in {copy.file} ({copy.tier}), from which a base follows, is corrupt: tile {tile} does "
            "not hash to its digest",
            tensor=entry.key,
            file=copy.file,
            tile=tile,
        )
    return out
