"""Fill live memory from saved packs: match names, plan the moves, read, verify every tile, copy.

Nothing is written before all names, shapes and dtypes have been compared. Each pack may have several sources (memory,
disk); a tile that does not hash to its digest makes the piece come from the next source, and the reader is told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from perdure.codec.digest import copy_and_digest, tile_digests
from perdure.codec.dtypes import nbytes
from perdure.errors import BlobCorrupt, BlobMissing, IntegrityError, StateMismatch, StorageError
from perdure.layout import Box, Layout, Piece, TensorLayout
from perdure.plan import reshard
from perdure.state.index import Catalog, CatalogTensor, StoredPiece
from perdure.state.items import Memory, TensorItem
from perdure.state.scopes import OnResize, rank_local_source
from perdure.store.pack import PackEntry, PackIndex

__all__ = ["LoadReport", "Match", "PackSource", "load", "match"]


class PackSource(Protocol):
    """One copy of a pack. ``tier`` is "memory" or "disk"; ``file`` names it for people."""

    tier: str
    file: str

    def index(self) -> PackIndex:
        """The pack's header, checked."""
        ...

    def fetch(self, start: int, nbytes: int, into: memoryview | None = None) -> memoryview:
        """``nbytes`` bytes from ``start``, in ``into`` if given; without it maybe a view of the source itself."""
        ...


@dataclass(frozen=True, slots=True)
class Match:
    """A live tensor and what was saved for it."""

    item: TensorItem
    saved: CatalogTensor


@dataclass(slots=True)
class LoadReport:
    """What a load did: bytes by tier, tiles verified, and a sentence for each bad copy that it passed over."""

    tier_nbytes: dict[str, int] = field(default_factory=dict)
    verified_tiles: int = 0
    notes: list[str] = field(default_factory=list)


def match(
    catalog: Catalog,
    items: Sequence[TensorItem],
    value_keys: Sequence[tuple[str, bool, OnResize]],
    *,
    rank: int,
    world: int,
) -> list[Match]:
    """Pair live tensors with saved ones; raise `StateMismatch` that lists every key that does not fit.

    ``value_keys`` are ``(key, local, on_resize)``. Names that are saved but not wanted are unexpected, names that are
    wanted but not saved are missing.
    """
    found: list[Match] = []
    misfits = _Misfits()
    used: set[str] = set()
    for item in items:
        saved = _saved_for(catalog, item.name, item, rank, world)
        if saved is None:
            if _fresh(item.local, item.on_resize, catalog, world):
                used.add(item.name)
            else:
                misfits.missing.append(item.name)
            continue
        used.add(saved.name)
        for alias in item.aliases:
            other = _saved_for(catalog, alias, item, rank, world)
            if other is None:
                misfits.missing.append(alias)
            elif other.name != saved.name:
                used.add(other.name)
                misfits.sentences.append(f"{item.name} and {alias} are one tensor here but were saved as two")
        misfits.compare(item, saved)
        found.append(Match(item, saved))
    like = rank % max(catalog.world, 1)  # the saved rank whose local state this rank would take
    misfits.unexpected += [name for name in catalog.tensors if name not in used]
    misfits.unexpected += [name for of, name in catalog.local_tensors if of == like and name not in used]
    wanted = {(key, local) for key, local, _ in value_keys}
    for key, local, on_resize in value_keys:
        there = (like, key) in catalog.local_values if local else key in catalog.values
        if not there and not _fresh(local, on_resize, catalog, world):
            misfits.missing.append(key)
    misfits.unexpected += [key for key in catalog.values if (key, False) not in wanted]
    misfits.unexpected += [key for of, key in catalog.local_values if of == like and (key, True) not in wanted]
    misfits.refuse()
    return found


@dataclass(slots=True)
class _Misfits:
    """What of saved and live state does not fit."""

    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    shape: list[str] = field(default_factory=list)
    dtype: list[str] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)

    def compare(self, item: TensorItem, saved: CatalogTensor) -> None:
        name = item.name
        if saved.shape != item.shape:
            self.shape.append(name)
            self.sentences.append(f"{name} has shape {list(item.shape)} here, {list(saved.shape)} in the checkpoint")
        elif saved.dtype != item.dtype:
            self.dtype.append(name)
            self.sentences.append(f"{name} is {item.dtype} here, {saved.dtype} in the checkpoint")
        elif saved.rank is not None and {each.box for each in item.held} != {each.box for each in saved.pieces}:
            self.shape.append(name)
            self.sentences.append(f"{name} is rank-local, and this rank holds other parts of it than were saved")

    def refuse(self) -> None:
        sentences = list(self.sentences)
        if self.missing:
            sentences.insert(0, f"not in the checkpoint: {_some(self.missing)}")
        if self.unexpected:
            sentences.insert(0, f"in the checkpoint but not here: {_some(self.unexpected)}")
        if sentences:
            raise StateMismatch(
                "the checkpoint does not fit this state: " + "; ".join(sentences[:8]),
                missing=self.missing,
                unexpected=self.unexpected,
                shape=self.shape,
                dtype=self.dtype,
            )


def load(catalog: Catalog, matches: Sequence[Match], sources: Callable[[str], Sequence[PackSource]]) -> LoadReport:
    """Fill every matched item. Raises the `IntegrityError` of the last source when a piece is bad in all of them.

    After an error live memory may be half written: the caller loads another step or gives up.
    """
    report = LoadReport()
    names = [match.saved.name for match in matches if match.saved.rank is None]
    place = {pack: number for number, pack in enumerate(catalog.packs())}
    have = catalog.layout(list(dict.fromkeys(names)))
    reader = len(place)  # this process, as a rank beyond those that hold packs
    want: dict[str, TensorLayout] = {}
    homes: dict[tuple[str, Box], list[Memory]] = {}
    for matched in matches:
        item, saved = matched.item, matched.saved
        for held in item.held:
            homes.setdefault((_home(saved), held.box), []).append(held.memory)
        if saved.rank is None:
            boxes = dict.fromkeys(held.box for held in item.held)
            pieces = tuple(Piece.alone(reader, box) for box in boxes)
            known = want.get(saved.name)
            pieces = pieces if known is None else tuple(dict.fromkeys(known.pieces + pieces))
            want[saved.name] = TensorLayout(saved.shape, pieces, have[saved.name].dtype)
    stored = {(name, place[piece.pack], piece.box): piece for name in want for piece in catalog.tensors[name].pieces}
    for move in reshard(have, Layout(want)).moves:
        piece = stored[move.name, move.source.rank, move.source.box]
        for memory in homes[move.name, move.dest.box]:
            _fill(report, move.name, move.box, piece, move.dest.box, memory, catalog.tensors[move.name].dtype, sources)
    for matched in matches:
        if matched.saved.rank is not None:
            for piece in matched.saved.pieces:
                for memory in homes.get((_home(matched.saved), piece.box), ()):
                    _fill(report, matched.saved.name, piece.box, piece, piece.box, memory, matched.saved.dtype, sources)
    return report


def _fill(
    report: LoadReport,
    name: str,
    box: Box,
    piece: StoredPiece,
    dest_box: Box,
    memory: Memory,
    dtype: str,
    sources: Callable[[str], Sequence[PackSource]],
) -> None:
    copies = sources(piece.pack)
    for i, source in enumerate(copies):
        try:
            report.verified_tiles += _fill_from(source, name, box, piece, dest_box, memory, dtype)
        except (IntegrityError, StorageError) as error:
            if i + 1 == len(copies):
                raise
            report.notes.append(f"{error}; took the copy on {copies[i + 1].tier}")
            continue
        moved = box.size * nbytes(dtype, (1,))
        report.tier_nbytes[source.tier] = report.tier_nbytes.get(source.tier, 0) + moved
        return
    raise BlobMissing(f"no copy of {piece.pack}, which holds {name}, can be reached", tensor=name, file=piece.pack)


def _fill_from(
    source: PackSource, name: str, box: Box, piece: StoredPiece, dest_box: Box, memory: Memory, dtype: str
) -> int:
    """Copy ``box`` and return the number of tiles verified on the way."""
    index = source.index()
    entry = index.entry(piece.key)
    width = nbytes(dtype, (1,))
    if entry.nbytes != piece.box.size * width:
        raise BlobCorrupt(
            f"{piece.key} in {source.file} has {entry.nbytes} bytes, not those of its box",
            tensor=name,
            file=source.file,
        )
    if box.empty or not entry.nbytes:
        return 0
    if piece.box == dest_box == box:
        target = memory.view()
        got = source.fetch(entry.start, entry.nbytes, target) if source.tier != "memory" else None
        if got is None:
            digests = copy_and_digest(source.fetch(entry.start, entry.nbytes), target, index.tile_bytes)
        else:
            digests = tile_digests(target, index.tile_bytes)
        _verify(index, entry, 0, digests, name, source)
        return entry.n_tiles
    # Rows of the first dim that the box touches, widened to whole tiles.
    rows = Box((*box.lo[:1], *piece.box.lo[1:]), (*box.hi[:1], *piece.box.hi[1:]))
    row_nbytes = entry.nbytes // (piece.box.shape[0] if piece.box.shape else 1)
    first = (box.lo[0] - piece.box.lo[0]) * row_nbytes if box.lo else 0
    last = first + rows.size * width
    tiles = index.tile_range(entry, first, last)
    start, end = index.tile_span(entry, tiles[0])[0], index.tile_span(entry, tiles[-1])[1]
    data = source.fetch(start, end - start)
    _verify(index, entry, tiles[0] - entry.first_tile, tile_digests(data, index.tile_bytes), name, source)
    element = np.dtype(f"u{width}") if width in (1, 2, 4, 8) else np.dtype((np.void, width))
    at = start - entry.start
    have = np.frombuffer(data[first - at : last - at], element).reshape(rows.shape)
    want = np.frombuffer(memory.view(), element).reshape(dest_box.shape)
    want[box.within(dest_box)] = have[box.within(rows)]
    return len(tiles)


def _verify(index: PackIndex, entry: PackEntry, first_tile: int, digests: bytes, name: str, source: PackSource) -> None:
    at = 16 * (entry.first_tile + first_tile)
    want = index.digests[at : at + len(digests)]
    if digests == want:
        return
    bad = next(i for i in range(0, len(digests), 16) if digests[i : i + 16] != want[i : i + 16]) // 16
    raise BlobCorrupt(
        f"{name} is corrupt in {source.file} ({source.tier}): tile {first_tile + bad} does not hash to its digest",
        tensor=name,
        file=source.file,
        tile=first_tile + bad,
        tier=source.tier,
    )


def _saved_for(catalog: Catalog, name: str, item: TensorItem, rank: int, world: int) -> CatalogTensor | None:
    """What was saved as ``name``, for the scope of ``item``."""
    if not item.local:
        return catalog.find(name)
    source = rank_local_source(item.on_resize, rank=rank, world=world, saved_world=catalog.world, key=name)
    return None if source is None else catalog.find_local(source, name)


def _fresh(local: bool, on_resize: OnResize, catalog: Catalog, world: int) -> bool:
    """Whether the live state stays as it is because the world has another size."""
    return local and on_resize == "fresh" and world != catalog.world


def _home(saved: CatalogTensor) -> str:
    return saved.name if saved.rank is None else f"{saved.name}@rank{saved.rank}"


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:6])
    return shown if len(names) <= 6 else f"{shown} and {len(names) - 6} more"
