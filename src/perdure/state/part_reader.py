"""Read the index of one part, leaf by leaf, as it is asked for; see `perdure.state.manifest` for what it means.

Tensors that lie alike share one `Geometry`, so that a million of them are walked through in little memory.
"""

from __future__ import annotations

import functools
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from operator import lt
from typing import Any, TypeVar

import msgspec

from perdure.codec.dtypes import nbytes
from perdure.errors import FormatRefused, LayoutError
from perdure.layout import Box, EvenGrid
from perdure.state.entries import (
    KINDS,
    ORDERS,
    AliasEntry,
    BaseEntry,
    BlockEntry,
    Index,
    LocalEntry,
    NoteEntry,
    TensorEntry,
    ValueEntry,
    name_of,
)
from perdure.state.geometry import Geometry, Placed, geometry_of
from perdure.state.index import CatalogTensor
from perdure.state.relations import n_sources
from perdure.state.stored import Segment, StoredBase, StoredPieces, StoredSource
from perdure.store import LeafRef, Part, PartRef, Run

__all__ = ["PartReader"]

_GEOMETRIES = 4096  # that a reader keeps
_grid = functools.lru_cache(_GEOMETRIES)(lambda saved: saved.grid)  # one object for all parts: many are compared
Entry = TypeVar("Entry")


class PartReader:
    """The index of one part, read leaf by leaf as it is asked for; ``read`` gives the bytes of a leaf, verified.

    Raises `FormatRefused` for what no writer writes.
    """

    def __init__(self, part: Part, read: Callable[[LeafRef], memoryview], *, file: str) -> None:
        self._part, self._read, self.file = part, read, file
        try:
            self.index = msgspec.json.decode(part.index, type=Index)
            self._grids: list[EvenGrid] = [_grid(each) for each in self.index.layouts]
        except (msgspec.MsgspecError, LayoutError) as error:
            raise self._refused(str(error)) from error
        ranks = self.index.ranks
        if msgspec.json.encode(self.index) != bytes(part.index) or list(ranks) != sorted(set(ranks)):
            raise self._refused("its index is spelled in another way, or its ranks do not rise")
        if ranks and ranks[-1] >= self.index.world:
            raise self._refused(f"it is of rank {ranks[-1]} of {self.index.world}")
        self._mine = frozenset(ranks)
        self._pack_names = tuple(pack.name for pack in part.packs)
        self._least_nbytes = min((pack.nbytes for pack in part.packs), default=0)
        self._geometries: dict[tuple[str, tuple[int, ...], int | tuple[BlockEntry, ...]], Geometry] = {}
        self._alike: dict[tuple[str, tuple[int, ...], int | tuple[BlockEntry, ...], tuple[int, ...]], Geometry] = {}
        self._of = {kind: [leaf for leaf in part.leaves if leaf.kind == kind] for kind in KINDS}
        self._kept: dict[int, dict[str, Any]] = {}  # leaves that are asked for key by key: start -> entries
        self._check_order()

    @classmethod
    def of(cls, run: Run, ref: PartRef, part: Part) -> PartReader:
        """The index of ``part``, which ``run`` keeps as ``ref``."""
        return cls(part, lambda leaf: run.read_leaf(ref, leaf), file=ref.name)

    def tensors(self, wanted: Callable[[str, str], bool] = lambda first, last: True) -> Iterator[CatalogTensor]:
        """The shared tensors, with the pieces that this part holds, sorted by name.

        ``wanted`` gets the first and last name of a leaf and says whether to read it.
        """
        for tensor, _ in self.sized(wanted):
            yield tensor

    def sized(
        self, wanted: Callable[[str, str], bool] = lambda first, last: True
    ) -> Iterator[tuple[CatalogTensor, int]]:
        """The shared tensors as `tensors` gives them, and how many elements of each this part holds."""
        for placed in self.placed(wanted):
            yield self._catalogued(placed, ()), placed.geometry.size

    def tensor(self, name: str) -> CatalogTensor | None:
        """The shared tensor ``name``, or None; reads one leaf."""
        leaf = self._leaf_of("tensors", name)
        found = None if leaf is None else self._one(leaf, name, TensorEntry)
        return None if found is None else self._tensor(found)

    def locals(self, *, of: int | None = None) -> Iterator[CatalogTensor]:
        """The tensors of one rank alone (rank ``of``, or any), sorted by name and rank."""
        for entry in self._entries("locals", LocalEntry):
            if of is None or entry.rank == of:
                yield self._local(entry)

    def aliases(self) -> Iterator[tuple[str, str]]:
        """Other names of shared tensors: the other name, the name."""
        for entry in self._entries("aliases", AliasEntry):
            yield entry.alias, entry.name

    def alias(self, alias: str) -> str | None:
        """The name of the tensor that is also called ``alias``, or None; reads one leaf."""
        leaf = self._leaf_of("aliases", alias)
        found = None if leaf is None else self._one(leaf, alias, AliasEntry)
        return None if found is None else found.name

    def values(self) -> Iterator[tuple[str, int | None, Any]]:
        """Values: key, the rank that it is of alone or None, tagged JSON."""
        for entry in self._entries("values", ValueEntry):
            if entry.rank is not None and entry.rank not in self._mine:
                raise self._refused(f"the value {entry.key!r} is of rank {entry.rank}, which is of another part")
            yield entry.key, entry.rank, entry.value

    def base(self, key: str) -> StoredBase | None:
        """How the base of the frame ``key`` is computed; None if it has none. Reads a leaf, once."""
        entry = self._keyed("bases", key, BaseEntry)
        if entry is None:
            return None
        n = len(self._pack_names)
        if len(entry.sources) != n_sources(entry.relation) or any(not -n <= each.pack < n for each in entry.sources):
            raise self._refused(f"the base of {key!r} is not computed from {len(entry.sources)} blocks of {n} packs")
        return StoredBase(
            entry.relation,
            tuple(
                StoredSource(
                    each.key,
                    each.dtype,
                    self._pack_names[each.pack if each.pack >= 0 else -1 - each.pack],
                    each.pack < 0,
                )
                for each in entry.sources
            ),
        )

    def note(self, key: str) -> str | None:
        """Why the block under ``key`` is stored as it is (``""``: the part as a whole), if its writer said so."""
        entry = self._keyed("notes", key, NoteEntry)
        return None if entry is None else entry.text

    def placed(self, wanted: Callable[[str, str], bool] = lambda first, last: True) -> Iterator[Placed]:
        """The shared tensors as `tensors` gives them, without an object for every piece: for looking at all of them."""
        for entry in self._entries("tensors", TensorEntry, wanted):
            yield self._placed(entry)

    def segment(self, placed: Placed) -> Segment:
        """What this part holds of a tensor that `placed` gave."""
        return Segment(placed.geometry, placed.packs, self._pack_names, placed.key_stem)

    def placed_locals(self) -> Iterator[Placed]:
        """The tensors of one rank alone, as `placed`."""
        for entry in self._entries("locals", LocalEntry):
            yield self._placed_local(entry)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _tensor(self, entry: TensorEntry) -> CatalogTensor:
        return self._catalogued(self._placed(entry), ())

    def _local(self, entry: LocalEntry) -> CatalogTensor:
        return self._catalogued(self._placed_local(entry), entry.aliases)

    def _placed(self, entry: TensorEntry) -> Placed:
        alike = (entry.dtype, entry.shape, entry.where, entry.packs)
        geometry = self._alike.get(alike)
        if geometry is None:
            geometry = self._geometries.get(alike[:3]) or self._geometry(entry)
            self._check_packs(entry.name, geometry, entry.packs)
            if len(self._alike) >= _GEOMETRIES:
                self._alike.clear()
            self._alike[alike] = geometry
        return Placed(entry.name, None, entry.dtype, entry.shape, geometry, entry.packs)

    def _placed_local(self, entry: LocalEntry) -> Placed:
        if entry.rank not in self._mine:
            raise self._refused(f"{entry.name!r} is of rank {entry.rank}, which is of another part")
        try:
            boxes = [(entry.rank, Box(lo, hi)) for lo, hi in entry.blocks]
        except LayoutError as error:
            raise self._refused(f"{entry.name!r}: {error}") from error
        geometry = self._checked(entry, boxes, None)
        self._check_packs(entry.name, geometry, entry.packs)
        return Placed(entry.name, entry.rank, entry.dtype, entry.shape, geometry, entry.packs)

    def _geometry(self, entry: TensorEntry) -> Geometry:
        """Where the blocks of a tensor are that this part holds. Tensors that lie alike share one."""
        grid: EvenGrid | None = None
        blocks: list[tuple[int, Box]]
        try:
            if isinstance(entry.where, int):
                if entry.where >= len(self._grids):
                    raise self._refused(f"{entry.name!r} lies in grid {entry.where}, which is not there")
                grid = self._grids[entry.where]
                if grid.last >= self.index.world:
                    raise self._refused(f"the grid of {entry.name!r} has ranks beyond {self.index.world}")
                blocks = grid.blocks_of(entry.shape, self.index.ranks, most=len(entry.packs))
            else:
                blocks = [(block.rank, Box(block.lo, block.hi)) for block in entry.where]
                if any(rank not in self._mine for rank, _ in blocks):
                    raise self._refused(f"{entry.name!r} has a block of a rank of another part")
        except LayoutError as error:
            raise self._refused(f"{entry.name!r}: {error}") from error
        made = self._checked(entry, blocks, grid)
        if len(self._geometries) >= _GEOMETRIES:
            self._geometries.clear()
        self._geometries[entry.dtype, entry.shape, entry.where] = made
        return made

    def _checked(
        self, entry: TensorEntry | LocalEntry, blocks: Sequence[tuple[int, Box]], grid: EvenGrid | None
    ) -> Geometry:
        try:
            return geometry_of(entry.name, entry.dtype, entry.shape, blocks, grid)
        except FormatRefused as error:
            raise self._refused(str(error)) from error

    def _check_packs(self, name: str, geometry: Geometry, packs: tuple[int, ...]) -> None:
        n = len(self._part.packs)
        if len(packs) != len(geometry.boxes) or (packs and not -n <= min(packs) <= max(packs) < n):
            raise self._refused(f"{name!r} names {len(packs)} packs for {len(geometry.boxes)} blocks, of {n} packs")
        if geometry.most_nbytes > self._least_nbytes:
            for stored, number in zip(geometry.stored, packs, strict=True):
                if number >= 0 and nbytes(*stored) > self._part.packs[number].nbytes:
                    raise self._refused(f"{name!r} has a block of {nbytes(*stored)} bytes, more than its pack has")

    def _catalogued(self, placed: Placed, aliases: tuple[str, ...]) -> CatalogTensor:
        pieces = StoredPieces((self.segment(placed),))
        return CatalogTensor(placed.name, placed.dtype, placed.shape, pieces, aliases, placed.rank)

    def _entries(
        self, kind: str, type_: type[Entry], wanted: Callable[[str, str], bool] = lambda first, last: True
    ) -> Iterator[Entry]:
        for leaf in self._of[kind]:
            if wanted(leaf.first, leaf.last):
                yield from self._decoded(leaf, type_)

    def _decoded(self, leaf: LeafRef, type_: type[Entry]) -> list[Entry]:
        data = self._read(leaf)
        try:
            entries = msgspec.json.decode(data, type=list[type_])  # type: ignore[valid-type]
            same = msgspec.json.encode(entries) + b"\n" == data
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise self._refused(f"its leaf {leaf.first!r}: {error}") from error
        names = list(map(ORDERS[leaf.kind], entries))
        if not same or not all(map(lt, names, names[1:])) or len(entries) != leaf.count or not entries:
            raise self._refused(f"its leaf {leaf.first!r} is spelled in another way, or not sorted")
        if (name_of(entries[0]), name_of(entries[-1])) != (leaf.first, leaf.last):
            raise self._refused(f"its leaf {leaf.first!r} to {leaf.last!r} holds others")
        return entries

    def _keyed(self, kind: str, key: str, type_: type[Entry]) -> Entry | None:
        """The entry of ``key``, from a leaf that is decoded once."""
        leaf = self._leaf_of(kind, key)
        if leaf is None:
            return None
        known = self._kept.get(leaf.start)
        if known is None:
            known = self._kept[leaf.start] = {name_of(each): each for each in self._decoded(leaf, type_)}
        return known.get(key)

    def _one(self, leaf: LeafRef, name: str, type_: type[Entry]) -> Entry | None:
        """The entry ``name`` of a leaf, without making the others: the leaf is what its writer wrote, thus sorted."""
        data = self._read(leaf)
        try:
            raws = msgspec.json.decode(data, type=list[msgspec.Raw])
            at = bisect_left(raws, name, key=lambda raw: name_of(msgspec.json.decode(raw, type=type_)))
            entry = msgspec.json.decode(raws[at], type=type_) if at < len(raws) else None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise self._refused(f"its leaf {leaf.first!r}: {error}") from error
        return entry if entry is not None and name_of(entry) == name else None

    def _leaf_of(self, kind: str, name: str) -> LeafRef | None:
        leaves = self._of[kind]
        at = bisect_right(leaves, name, key=lambda leaf: leaf.first) - 1
        return leaves[at] if at >= 0 and name <= leaves[at].last else None

    def _check_order(self) -> None:
        end = 0
        for leaf in self._part.leaves:
            if leaf.start != end or leaf.kind not in KINDS:
                raise self._refused("its leaves leave a gap, overlap, or are of an unknown kind")
            end += leaf.nbytes
        if [kind for kind in KINDS for _ in self._of[kind]] != [leaf.kind for leaf in self._part.leaves]:
            raise self._refused("its leaves are not in their order")
        for leaves in self._of.values():
            for one, other in pairwise(leaves):
                if one.last > other.first:
                    raise self._refused("its leaves are not sorted")

    def _refused(self, why: str) -> FormatRefused:
        return FormatRefused(
            f"{self.file} is refused: {why}; use another copy or an older step", file=self.file, why=why
        )
