"""Compare two saved steps: which tensors came, went or changed, and by how much; values and meta.

Two tensors of the same cut are compared by the digests that their packs have recorded; not a byte of data is read. Only
what is cut in another way, tiled otherwise, or coded, is read from both sides, piece by piece, verified, and compared.
Both indexes are walked in the order of names, so what is kept grows with the packs' headers alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from heapq import merge
from itertools import groupby
from typing import Any

import msgspec
import numpy as np

from perdure.layout import Box
from perdure.state.disk_pack import DiskPack
from perdure.state.index import Catalog, CatalogTensor, StoredPiece
from perdure.state.items import Held, Memory, TensorItem
from perdure.state.load import Match, load
from perdure.state.part_reader import PartReader
from perdure.state.stored import StoredBase
from perdure.store import Commit, PackRef, Run
from perdure.store.pack_header import TILE_BYTES

__all__ = ["Changed", "Difference", "Side", "compare", "first_difference"]

_SLAB_BYTES = 64 << 20  # of each side, where data is read


@dataclass(frozen=True, slots=True)
class Changed:
    """A tensor that both steps have and that differs: in form, or in ``tiles`` of ``of_tiles``."""

    name: str
    form: str | None
    tiles: int = 0
    of_tiles: int = 0


@dataclass(slots=True)
class Difference:
    """What step B has differently from step A. Values and meta: name to what A and what B has (None: nothing)."""

    added: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    changed: list[Changed] = field(default_factory=list)
    aliases: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    values: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    meta: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    n_same: int = 0
    tiles: int = 0
    of_tiles: int = 0
    read_bytes: int = 0

    @property
    def same(self) -> bool:
        """Whether all tensors and values are the same, bit by bit; ``meta`` is what somebody said of the save."""
        return not (self.added or self.removed or self.changed or self.aliases or self.values)


class Side:
    """One of the two steps, read as it is asked for."""

    def __init__(self, run: Run, commit: Commit) -> None:
        self.commit = commit
        self._readers: list[PartReader] = []
        self._refs: dict[str, PackRef] = {}
        self._packs: dict[str, DiskPack] = {}
        self._run = run
        for ref in commit.parts:
            part = run.read_part(ref)
            self._readers.append(PartReader.of(run, ref, part))
            self._refs.update({pack.name: pack for pack in part.packs})

    @property
    def world(self) -> int:
        """How many ranks saved it."""
        return self._readers[0].index.world if self._readers else 0

    def tensors(self) -> Iterator[tuple[str, CatalogTensor]]:
        """Every tensor, with the pieces of all parts, in the order of names; those of one rank as ``name@rank3``."""
        shared = merge(*(_named(reader.tensors()) for reader in self._readers), key=_first)
        local = merge(*(sorted(_named(reader.locals()), key=_first) for reader in self._readers), key=_first)
        for name, group in groupby(merge(shared, local, key=_first), key=_first):
            found = [tensor for _, tensor in group]
            pieces = tuple(sorted((p for each in found for p in each.pieces), key=lambda p: (p.box.lo, p.box.hi)))
            one = found[0]
            yield name, CatalogTensor(one.name, one.dtype, one.shape, pieces, (), one.rank)

    def aliases(self) -> dict[str, str]:
        """Other names of tensors."""
        return {alias: name for reader in self._readers for alias, name in reader.aliases()}

    def values(self) -> dict[str, Any]:
        """Every value, as tagged JSON; those of one rank as ``key@rank3``."""
        found = (each for reader in self._readers for each in reader.values())
        return {key if rank is None else f"{key}@rank{rank}": value for key, rank, value in found}

    def place(self, piece: StoredPiece) -> tuple[str, str]:
        """What tells the bytes of a piece for sure: the digest of the header of its pack, and its key."""
        return self._refs[piece.pack].header_digest, piece.key

    def digests(self, piece: StoredPiece) -> tuple[int, bytes]:
        """The size and digests of the tiles of a piece."""
        index = self.source(piece.pack).index()
        entry = index.entry(piece.key)
        return index.tile_bytes, index.digests[16 * entry.first_tile : 16 * (entry.first_tile + entry.n_tiles)]

    def base_of(self, key: str) -> StoredBase | None:
        """How the base of the frame under a key is computed."""
        return next((found for reader in self._readers if (found := reader.base(key)) is not None), None)

    def source(self, pack: str) -> DiskPack:
        """A pack, its header read once."""
        if pack not in self._packs:
            self._packs[pack] = DiskPack(self._run, self._refs[pack])
        return self._packs[pack]

    def read(self, tensor: CatalogTensor, box: Box) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The verified bytes of a box."""
        nbytes = box.size * (tensor.nbytes // max(Box.whole(tensor.shape).size, 1))
        data = np.empty(nbytes, np.uint8)
        memory = Memory(int(data.__array_interface__["data"][0]), nbytes, data)
        item = TensorItem(tensor.name, tensor.dtype, tensor.shape, (Held(box, memory),))
        shared = replace(tensor, rank=None)  # one of a rank alone may be cut otherwise on the other side as well
        catalog = Catalog(self.world, {tensor.name: shared}, base_of=self.base_of)
        load(catalog, [Match(item, shared)], lambda pack: [self.source(pack)])
        return data


def compare(a: Side, b: Side, *, on_tensor: Callable[[str], None] = lambda name: None) -> Difference:
    """Compare step A with step B, bit by bit. Raises `BlobCorrupt` for what does not verify where data is read."""
    found = Difference()
    for name, mine, other in _zipped(a.tensors(), b.tensors()):
        on_tensor(name)
        if mine is None:
            found.added.append(name)
        elif other is None:
            found.removed.append(name)
        else:
            _compare(found, name, a, mine, b, other)
    found.aliases = _different(a.aliases(), b.aliases())
    found.values = _different(a.values(), b.values())
    found.meta = _different(a.commit.meta, b.commit.meta)
    return found


def first_difference(a: Any, b: Any, *, at: str = "") -> tuple[str, Any, Any]:
    """The first place where two values of JSON differ, as a path into them, and what each has there.

    What one side does not have is None there, as where it has None: the path tells.

    >>> first_difference({"groups": [{"lr": 0.1}]}, {"groups": [{"lr": 0.2}]})
    ('.groups[0].lr', 0.1, 0.2)
    """
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted({*a, *b}):
            if key not in a or key not in b:
                return f"{at}.{key}", a.get(key), b.get(key)
            if not _alike(a[key], b[key]):
                return first_difference(a[key], b[key], at=f"{at}.{key}")
    if isinstance(a, list) and isinstance(b, list):
        for i, (one, two) in enumerate(zip(a, b, strict=False)):
            if not _alike(one, two):
                return first_difference(one, two, at=f"{at}[{i}]")
        i = min(len(a), len(b))
        if len(a) != len(b):
            return f"{at}[{i}]", a[i] if i < len(a) else None, b[i] if i < len(b) else None
    return at, a, b


def _alike(a: Any, b: Any) -> bool:
    """Whether two values of JSON are the same; 1, 1.0 and true are not."""
    return msgspec.json.encode(a, order="sorted") == msgspec.json.encode(b, order="sorted")


def _compare(found: Difference, name: str, a: Side, mine: CatalogTensor, b: Side, other: CatalogTensor) -> None:
    if (mine.dtype, mine.shape) != (other.dtype, other.shape):
        form = f"{mine.dtype}{list(mine.shape)} -> {other.dtype}{list(other.shape)}"
        found.changed.append(Changed(name, form))
        return
    tiles, of_tiles = _by_digests(a, mine, b, other) or _by_data(found, a, mine, b, other)
    found.tiles += tiles
    found.of_tiles += of_tiles
    if tiles:
        found.changed.append(Changed(name, None, tiles, of_tiles))
    else:
        found.n_same += 1


def _by_digests(a: Side, mine: CatalogTensor, b: Side, other: CatalogTensor) -> tuple[int, int] | None:
    """Changed tiles and all tiles; None if digests do not tell."""
    if [piece.box for piece in mine.pieces] != [piece.box for piece in other.pieces]:
        return None
    changed = total = 0
    for one, two in zip(mine.pieces, other.pieces, strict=True):
        tile_a, digests_a = a.digests(one)
        if a.place(one) == b.place(two):
            total += len(digests_a) // 16
            continue
        tile_b, digests_b = b.digests(two)
        if (one.coded, tile_a) != (two.coded, tile_b) or (one.coded and digests_a != digests_b):
            return None
        if digests_a != digests_b:
            changed += sum(digests_a[i : i + 16] != digests_b[i : i + 16] for i in range(0, len(digests_a), 16))
        total += len(digests_a) // 16
    return changed, total


def _by_data(found: Difference, a: Side, mine: CatalogTensor, b: Side, other: CatalogTensor) -> tuple[int, int]:
    changed = total = 0
    for box in _slabs(mine):
        one, two = a.read(mine, box), b.read(other, box)
        found.read_bytes += one.size + two.size
        for at in range(0, one.size, TILE_BYTES):
            total += 1
            changed += not np.array_equal(one[at : at + TILE_BYTES], two[at : at + TILE_BYTES])
    return changed, total


def _slabs(tensor: CatalogTensor) -> Iterator[Box]:
    """The tensor, cut so that a slab fits the memory that a comparison may use."""
    whole = Box.whole(tensor.shape)
    width = tensor.nbytes // max(whole.size, 1)
    todo = [] if whole.empty else [whole]
    while todo:
        box = todo.pop()
        dim = max(range(box.ndim), key=lambda d: (box.shape[d] > 1, -d), default=None)
        if box.size * width <= _SLAB_BYTES or dim is None or box.shape[dim] == 1:
            yield box
            continue
        middle = (box.lo[dim] + box.hi[dim]) // 2
        todo.append(Box((*box.lo[:dim], middle, *box.lo[dim + 1 :]), box.hi))
        todo.append(Box(box.lo, (*box.hi[:dim], middle, *box.hi[dim + 1 :])))


def _zipped(
    mine: Iterable[tuple[str, CatalogTensor]], others: Iterable[tuple[str, CatalogTensor]]
) -> Iterator[tuple[str, CatalogTensor | None, CatalogTensor | None]]:
    marked = merge(((name, 0, t) for name, t in mine), ((name, 1, t) for name, t in others), key=lambda e: e[:2])
    for name, group in groupby(marked, key=lambda each: each[0]):
        sides: list[CatalogTensor | None] = [None, None]
        for _, side, tensor in group:
            sides[side] = tensor
        yield name, sides[0], sides[1]


def _different(a: dict[str, Any], b: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {
        key: (a.get(key), b.get(key))
        for key in sorted({*a, *b})
        if (key in a) != (key in b) or not _alike(a.get(key), b.get(key))
    }


def _named(tensors: Iterable[CatalogTensor]) -> Iterator[tuple[str, CatalogTensor]]:
    return ((each.name if each.rank is None else f"{each.name}@rank{each.rank}", each) for each in tensors)


def _first(pair: tuple[str, Any]) -> str:
    return pair[0]
