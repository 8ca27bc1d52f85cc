"""The index of a part: what its packs mean, as sorted leaves, so that one tensor of a million is found in one read.

A part is what one writer (a node) saved of a step. Its top says which ranks it is of, and lists the grids in which
tensors commonly lie; its leaves hold the entries, sorted by name: tensors, rank-local tensors, other names, values. An
entry says by number in which of the part's packs each piece lies; under which key follows from name and box, and where
in the pack says the pack's header. A tensor that lies in a grid has no boxes written out: grid and shape give those of
all ranks, and the part holds those of its own.

Written by `write_index`, read by `PartReader`; the format is in docs/spec/format-v1.md, "Index".
"""

from __future__ import annotations

import fnmatch
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from operator import attrgetter, lt
from typing import Annotated, Any, TypeVar

import msgspec

from perdure.codec.dtypes import nbytes
from perdure.errors import FormatRefused, LayoutError
from perdure.layout import Box, EvenGrid
from perdure.state.geometry import Geometry, Placed, geometry_of
from perdure.state.index import Catalog, CatalogTensor, Joining, RankIndex, SavedGrid, StoredPiece
from perdure.store import LeafRef, Part
from perdure.store.records import digest_of

__all__ = ["Index", "PartReader", "Patterns", "Written", "catalog_of", "write_index"]

LEAF_ENTRIES = 4096
LEAF_BYTES = 1 << 20
_GLOB = re.compile(r"[*?\[]")
_GEOMETRIES = 4096  # that a reader keeps
_KINDS = ("tensors", "locals", "aliases", "values")
Entry = TypeVar("Entry")
Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 62) - 1)]


class _Entry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    pass


class _Block(_Entry, frozen=True, array_like=True, gc=False):
    """A piece that is written out: of which rank, and its box."""

    rank: Count
    lo: tuple[Count, ...]
    hi: tuple[Count, ...]


class _Tensor(_Entry, frozen=True, array_like=True, gc=False):
    """A tensor that ranks share. ``where`` is the number of a grid or this part's blocks in turn.

    ``packs`` has for each block of this part the number of its pack; the block is a frame if ``-1 - number`` is there.
    """

    name: str
    dtype: str
    shape: tuple[Count, ...]
    where: Count | tuple[_Block, ...]
    packs: tuple[int, ...]


class _Local(_Entry, frozen=True, array_like=True, gc=False):
    """A tensor of one rank alone."""

    name: str
    rank: Count
    dtype: str
    shape: tuple[Count, ...]
    blocks: tuple[tuple[tuple[Count, ...], tuple[Count, ...]], ...]
    packs: tuple[int, ...]
    aliases: tuple[str, ...]


class _Alias(_Entry, frozen=True, array_like=True, gc=False):
    """Another name of a shared tensor."""

    alias: str
    name: str


class _Value(_Entry, frozen=True, array_like=True, gc=False):
    """A value as tagged JSON; ``rank`` if it is of one rank alone."""

    key: str
    rank: Count | None
    value: Any


_NAMED: dict[type, str] = {_Tensor: "name", _Local: "name", _Alias: "alias", _Value: "key"}
_ORDERS: dict[str, Callable[[Any], Any]] = {
    "tensors": attrgetter("name"),
    "locals": attrgetter("name", "rank"),
    "aliases": attrgetter("alias"),
    "values": lambda entry: (entry.key, -1 if entry.rank is None else entry.rank),
}


class Index(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The top of a part's index: the ranks that it is of, in rising order, and the grids that its tensors name."""

    world: Annotated[int, msgspec.Meta(ge=1, le=1 << 24)]
    ranks: tuple[Count, ...]
    layouts: tuple[SavedGrid, ...]


@dataclass(frozen=True, slots=True)
class Written:
    """A part's index as it goes into the part: the top, the references to the leaves, and the leaves."""

    index: msgspec.Raw
    refs: tuple[LeafRef, ...]
    leaves: tuple[bytes, ...]


def write_index(ranks: Sequence[RankIndex], packs: Mapping[str, int]) -> Written:
    """The index of what ``ranks`` (those of one writer) saved; ``packs`` says in which of its packs each key lies.

    The same indexes give the same bytes.
    """
    ranks = sorted(ranks, key=lambda each: each.rank)
    layouts = ranks[0].layouts
    tensors: dict[str, _Tensor] = {}
    blocks: dict[str, list[tuple[_Block, int]]] = {}
    grids: dict[str, int | None] = {}
    locals_: list[_Local] = []
    aliases: dict[str, str] = {}
    values: list[_Value] = []
    for index in ranks:
        for saved in index.tensors:
            numbers = tuple(packs[piece.key] for piece in saved.pieces)
            if saved.local:
                where = tuple((piece.lo, piece.hi) for piece in saved.pieces)
                locals_.append(
                    _Local(
                        saved.name, index.rank, saved.dtype, saved.shape, where, numbers, tuple(sorted(saved.aliases))
                    )
                )
                continue
            tensors[saved.name] = _Tensor(saved.name, saved.dtype, saved.shape, (), ())
            grids[saved.name] = saved.layout
            mine = [_Block(index.rank, piece.lo, piece.hi) for piece in saved.pieces]
            blocks.setdefault(saved.name, []).extend(sorted(zip(mine, numbers, strict=True), key=_by_box))
            aliases.update(dict.fromkeys(saved.aliases, saved.name))
        values += [_Value(v.key, index.rank if v.local else None, v.value) for v in index.values]
    entries: dict[str, list[Any]] = {
        "tensors": [_placed(tensors[name], blocks[name], grids[name], layouts) for name in sorted(tensors)],
        "locals": sorted(locals_, key=lambda each: (each.name, each.rank)),
        "aliases": [_Alias(alias, aliases[alias]) for alias in sorted(aliases)],
        "values": sorted(values, key=lambda each: (each.key, -1 if each.rank is None else each.rank)),
    }
    top = Index(world=ranks[0].world, ranks=tuple(each.rank for each in ranks), layouts=layouts)
    refs: list[LeafRef] = []
    leaves: list[bytes] = []
    start = 0
    for kind in _KINDS:
        for first, last, count, data in _leaves(entries[kind]):
            refs.append(
                LeafRef(
                    kind=kind,
                    first=first,
                    last=last,
                    count=count,
                    start=start,
                    nbytes=len(data),
                    digest=digest_of(data),
                )
            )
            leaves.append(data)
            start += len(data)
    return Written(msgspec.Raw(msgspec.json.encode(top)), tuple(refs), tuple(leaves))


class PartReader:
    """The index of one part, read leaf by leaf as it is asked for; ``read`` gives the bytes of a leaf, verified.

    Raises `FormatRefused` for what no writer writes.
    """

    def __init__(self, part: Part, read: Callable[[LeafRef], memoryview], *, file: str) -> None:
        self._part, self._read, self.file = part, read, file
        try:
            self.index = msgspec.json.decode(part.index, type=Index)
            self._grids: list[EvenGrid] = [each.grid for each in self.index.layouts]
        except (msgspec.MsgspecError, LayoutError) as error:
            raise self._refused(str(error)) from error
        ranks = self.index.ranks
        if msgspec.json.encode(self.index) != bytes(part.index) or list(ranks) != sorted(set(ranks)):
            raise self._refused("its index is spelled in another way, or its ranks do not rise")
        if ranks and ranks[-1] >= self.index.world:
            raise self._refused(f"it is of rank {ranks[-1]} of {self.index.world}")
        self._mine = frozenset(ranks)
        self._least_nbytes = min((pack.nbytes for pack in part.packs), default=0)
        self._geometries: dict[tuple[str, tuple[int, ...], int | tuple[_Block, ...]], Geometry] = {}
        self._of = {kind: [leaf for leaf in part.leaves if leaf.kind == kind] for kind in _KINDS}
        self._check_order()

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
        found = None if leaf is None else self._one(leaf, name, _Tensor)
        return None if found is None else self._tensor(found)

    def locals(self, wanted: Callable[[str, str], bool] = lambda first, last: True) -> Iterator[CatalogTensor]:
        """The tensors of one rank alone, sorted by name and rank."""
        for entry in self._entries("locals", _Local, wanted):
            yield self._local(entry)

    def aliases(self) -> Iterator[tuple[str, str]]:
        """Other names of shared tensors: the other name, the name."""
        for entry in self._entries("aliases", _Alias):
            yield entry.alias, entry.name

    def alias(self, alias: str) -> str | None:
        """The name of the tensor that is also called ``alias``, or None; reads one leaf."""
        leaf = self._leaf_of("aliases", alias)
        found = None if leaf is None else self._one(leaf, alias, _Alias)
        return None if found is None else found.name

    def values(self) -> Iterator[tuple[str, int | None, Any]]:
        """Values: key, the rank that it is of alone or None, tagged JSON."""
        for entry in self._entries("values", _Value):
            if entry.rank is not None and entry.rank not in self._mine:
                raise self._refused(f"the value {entry.key!r} is of rank {entry.rank}, which is of another part")
            yield entry.key, entry.rank, entry.value

    def placed(self, wanted: Callable[[str, str], bool] = lambda first, last: True) -> Iterator[Placed]:
        """The shared tensors as `tensors` gives them, without an object for every piece: for looking at all of them."""
        for entry in self._entries("tensors", _Tensor, wanted):
            yield self._placed(entry)

    def placed_locals(self) -> Iterator[Placed]:
        """The tensors of one rank alone, as `placed`."""
        for entry in self._entries("locals", _Local):
            yield self._placed_local(entry)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _tensor(self, entry: _Tensor) -> CatalogTensor:
        return self._catalogued(self._placed(entry), ())

    def _local(self, entry: _Local) -> CatalogTensor:
        return self._catalogued(self._placed_local(entry), entry.aliases)

    def _placed(self, entry: _Tensor) -> Placed:
        known = self._geometries.get((entry.dtype, entry.shape, entry.where))
        geometry = known or self._geometry(entry)
        self._check_packs(entry.name, geometry, entry.packs)
        return Placed(entry.name, None, entry.dtype, entry.shape, geometry, entry.packs)

    def _placed_local(self, entry: _Local) -> Placed:
        if entry.rank not in self._mine:
            raise self._refused(f"{entry.name!r} is of rank {entry.rank}, which is of another part")
        try:
            boxes = [(entry.rank, Box(lo, hi)) for lo, hi in entry.blocks]
        except LayoutError as error:
            raise self._refused(f"{entry.name!r}: {error}") from error
        geometry = self._checked(entry, boxes, None)
        self._check_packs(entry.name, geometry, entry.packs)
        return Placed(entry.name, entry.rank, entry.dtype, entry.shape, geometry, entry.packs)

    def _geometry(self, entry: _Tensor) -> Geometry:
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

    def _checked(self, entry: _Tensor | _Local, blocks: Sequence[tuple[int, Box]], grid: EvenGrid | None) -> Geometry:
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
        refs, stem = self._part.packs, placed.key_stem
        pieces = tuple(
            StoredPiece(box, refs[number if number >= 0 else -1 - number].name, stem + suffix, number < 0)
            for box, suffix, number in zip(placed.geometry.boxes, placed.geometry.suffixes, placed.packs, strict=True)
        )
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
        names = list(map(_ORDERS[leaf.kind], entries))
        if not same or not all(map(lt, names, names[1:])) or len(entries) != leaf.count or not entries:
            raise self._refused(f"its leaf {leaf.first!r} is spelled in another way, or not sorted")
        if (_name(entries[0]), _name(entries[-1])) != (leaf.first, leaf.last):
            raise self._refused(f"its leaf {leaf.first!r} to {leaf.last!r} holds others")
        return entries

    def _one(self, leaf: LeafRef, name: str, type_: type[Entry]) -> Entry | None:
        """The entry ``name`` of a leaf, without making the others: the leaf is what its writer wrote, thus sorted."""
        data = self._read(leaf)
        try:
            raws = msgspec.json.decode(data, type=list[msgspec.Raw])
            at = bisect_left(raws, name, key=lambda raw: _name(msgspec.json.decode(raw, type=type_)))
            entry = msgspec.json.decode(raws[at], type=type_) if at < len(raws) else None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise self._refused(f"its leaf {leaf.first!r}: {error}") from error
        return entry if entry is not None and _name(entry) == name else None

    def _leaf_of(self, kind: str, name: str) -> LeafRef | None:
        leaves = self._of[kind]
        at = bisect_right(leaves, name, key=lambda leaf: leaf.first) - 1
        return leaves[at] if at >= 0 and name <= leaves[at].last else None

    def _check_order(self) -> None:
        end = 0
        for leaf in self._part.leaves:
            if leaf.start != end or leaf.kind not in _KINDS:
                raise self._refused("its leaves leave a gap, overlap, or are of an unknown kind")
            end += leaf.nbytes
        if [kind for kind in _KINDS for _ in self._of[kind]] != [leaf.kind for leaf in self._part.leaves]:
            raise self._refused("its leaves are not in their order")
        for leaves in self._of.values():
            for one, other in zip(leaves, leaves[1:], strict=False):
                if one.last > other.first:
                    raise self._refused("its leaves are not sorted")

    def _refused(self, why: str) -> FormatRefused:
        return FormatRefused(
            f"{self.file} is refused: {why}; use another copy or an older step", file=self.file, why=why
        )


def catalog_of(readers: Sequence[PartReader], *, wanted: Sequence[str] | None = None) -> Catalog:
    """The catalog of a step from all of its parts; ``wanted`` (patterns of names, with ``*``) reads what fits alone.

    A tensor of one rank is also called ``name@rank3``. Without ``wanted`` values come along, with it they do not.
    Raises `FormatRefused` where parts contradict each other or a rank is in none of them.
    """
    joining = Joining()
    chosen = None if wanted is None else Patterns(wanted)
    sizes: dict[str, int] = {}
    for reader in readers:
        with _told(reader.file):
            joining.ranks(reader.file, reader.index.world, reader.index.ranks)
    every = f"{readers[0].file} and {len(readers) - 1} more" if len(readers) > 1 else "".join(r.file for r in readers)
    with _told(every):
        joining.all_there()  # before what is said of all ranks is worked out
    for reader in readers:
        with _told(reader.file):
            _join(joining, reader, chosen, sizes)
    with _told(every):
        catalog = joining.done()
        for name, size in sizes.items():
            if size != prod(catalog.tensors[name].shape):
                raise FormatRefused(
                    f"the blocks of {name!r} hold {size} elements of {prod(catalog.tensors[name].shape)}", tensor=name
                )
    return catalog


def _join(joining: Joining, reader: PartReader, chosen: Patterns | None, sizes: dict[str, int]) -> None:
    """Tell what a part says; ``sizes`` counts the elements that there are of each tensor."""
    others: dict[str, list[str]] = {}
    for alias, name in reader.aliases():
        others.setdefault(name, []).append(alias)

    def enter(tensor: CatalogTensor, size: int) -> None:
        sizes[tensor.name] = sizes.get(tensor.name, 0) + size
        joining.tensor(replace(tensor, aliases=tuple(others.pop(tensor.name, ()))))

    if chosen is None:
        for tensor, size in reader.sized():
            enter(tensor, size)
        if others:
            raise FormatRefused(f"{min(others)!r} has other names, but is not there")
        for local in reader.locals():
            joining.tensor(local)
        for key, rank, value in reader.values():
            joining.value(key, rank, value)
        return
    meant = {name for name, aliases in others.items() if any(chosen.fit(alias) for alias in aliases)}
    for name in sorted(meant | chosen.literal):
        found = reader.tensor(name)
        if found is not None:
            enter(found, sum(piece.box.size for piece in found.pieces))
        elif name in meant:
            raise FormatRefused(f"{name!r} has other names, but is not there")
    for tensor, size in reader.sized(chosen.may_hold) if chosen.globs else ():
        if chosen.fit(tensor.name) and tensor.name not in meant | chosen.literal:
            enter(tensor, size)
    for local in reader.locals():
        if chosen.fit(f"{local.name}@rank{local.rank}"):
            joining.tensor(local)


@contextmanager
def _told(file: str) -> Iterator[None]:
    """Let a refusal that names no file leave as one of ``file``."""
    try:
        yield
    except FormatRefused as error:
        if "file" in error.facts:
            raise
        raise FormatRefused(
            f"{file} is refused: {error}; use another copy or an older step", **error.facts, file=file
        ) from error


class Patterns:
    """Names and patterns with ``*``, ``?`` and ``[``, and which leaves they can have entries in."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self.literal = {each for each in patterns if not _GLOB.search(each)}
        self.globs = [each for each in patterns if _GLOB.search(each)]
        self._fronts = [_GLOB.split(each, maxsplit=1)[0] for each in self.globs]

    def fit(self, name: str) -> bool:
        return name in self.literal or any(fnmatch.fnmatchcase(name, each) for each in self.globs)

    def may_hold(self, first: str, last: str) -> bool:
        return any(first[: len(front)] <= front and last >= front for front in self._fronts)


def _by_box(block: tuple[_Block, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return block[0].lo, block[0].hi


def _placed(
    tensor: _Tensor, blocks: Sequence[tuple[_Block, int]], grid: int | None, layouts: Sequence[SavedGrid]
) -> _Tensor:
    where: int | tuple[_Block, ...] = tuple(block for block, _ in blocks) if grid is None else grid
    packs = tuple(number for _, number in blocks)
    return _Tensor(tensor.name, tensor.dtype, tensor.shape, where, packs)


def _name(entry: Any) -> str:
    """What an entry is found by."""
    name: str = getattr(entry, _NAMED[type(entry)])
    return name


def _leaves(entries: Sequence[Any]) -> Iterator[tuple[str, str, int, bytes]]:
    """Cut sorted entries into leaves: first name, last name, count, bytes."""
    encoded: list[bytes] = []
    size = first = 0
    for i, entry in enumerate(entries):
        data = msgspec.json.encode(entry)
        if encoded and (len(encoded) >= LEAF_ENTRIES or size + len(data) > LEAF_BYTES):
            yield _name(entries[first]), _name(entries[i - 1]), len(encoded), _joined(encoded)
            encoded, size, first = [], 0, i
        encoded.append(data)
        size += len(data)
    if encoded:
        yield _name(entries[first]), _name(entries[-1]), len(encoded), _joined(encoded)


def _joined(encoded: Sequence[bytes]) -> bytes:
    return b"[" + b",".join(encoded) + b"]\n"
