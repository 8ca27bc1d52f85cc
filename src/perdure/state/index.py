"""What a rank tells of the tensors that it saved, and the catalog that joins what all ranks, or all parts, tell.

A `RankIndex` goes from a rank to its agent; `perdure.state.manifest` writes the indexes of a node into a part. Both are
strict: an unknown or missing field, a box outside its tensor, a byte count that does not fit the dtype are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import msgspec

from perdure.codec.dtypes import DTYPES, nbytes
from perdure.errors import FormatRefused, LayoutError
from perdure.layout import Box, EvenGrid, Layout, Piece, TensorLayout
from perdure.state.stored import Segment, StoredBase, StoredPiece, StoredPieces

__all__ = [
    "Catalog",
    "CatalogTensor",
    "Joining",
    "RankIndex",
    "SavedGrid",
    "SavedPiece",
    "SavedTensor",
    "SavedValue",
    "StoredPiece",
    "checked",
    "piece_key",
]

Key = TypeVar("Key", str, tuple[int, str])
_MAX_DIMS = 64


class SavedPiece(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where the block ``lo <= index < hi`` lies: under ``key`` in the pack of the rank that wrote it."""

    key: str
    lo: tuple[int, ...]
    hi: tuple[int, ...]


class SavedGrid(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An `EvenGrid` of the ranks that wrote the blocks of a tensor."""

    parts: tuple[int, ...]
    first: int
    strides: tuple[int, ...]

    @property
    def grid(self) -> EvenGrid:
        """The grid; raises `LayoutError` if there can be none such."""
        return EvenGrid(self.parts, self.first, self.strides)


class SavedTensor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One tensor in a rank's index; ``pieces`` are those that this rank wrote.

    ``layout`` is the position in the index's ``layouts`` of the grid that the pieces of all ranks make, if they do.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[SavedPiece, ...]
    aliases: tuple[str, ...] = ()
    local: bool = False
    layout: int | None = None


class SavedValue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One value in a rank's index, as tagged JSON."""

    key: str
    value: Any
    local: bool = False


class RankIndex(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that one rank wrote of a step. ``layouts`` are the same on every rank."""

    rank: int
    world: int
    tensors: tuple[SavedTensor, ...]
    values: tuple[SavedValue, ...]
    layouts: tuple[SavedGrid, ...] = ()


@dataclass(frozen=True, slots=True)
class CatalogTensor:
    """A saved tensor with its pieces from every rank; ``rank`` is set for rank-local ones."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: Sequence[StoredPiece]
    aliases: tuple[str, ...] = ()
    rank: int | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return nbytes(self.dtype, self.shape)


@dataclass(frozen=True, slots=True)
class Catalog:
    """Everything in a checkpoint, by name."""

    world: int
    tensors: dict[str, CatalogTensor]
    local_tensors: dict[tuple[int, str], CatalogTensor] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    local_values: dict[tuple[int, str], Any] = field(default_factory=dict)
    base_of: Callable[[str], StoredBase | None] = field(default=lambda key: None, compare=False)
    """how the base of the frame under a key is computed; None if it has none"""

    @classmethod
    def join(cls, indexes: Iterable[tuple[str, RankIndex]]) -> Catalog:
        """Join ``(pack name, index)`` of every rank; raise `FormatRefused` where they contradict each other."""
        joining = Joining()
        for pack, index in indexes:
            joining.ranks(pack, index.world, [index.rank])
            for saved in index.tensors:
                pieces = tuple(StoredPiece(_box(saved.name, p.lo, p.hi), pack, p.key) for p in saved.pieces)
                rank = index.rank if saved.local else None
                joining.tensor(checked(saved.name, saved.dtype, saved.shape, pieces, saved.aliases, rank))
            for value in index.values:
                joining.value(value.key, index.rank if value.local else None, value.value)
        return joining.done()

    def find(self, name: str) -> CatalogTensor | None:
        """The shared tensor called ``name``, under its own name or an alias."""
        found = self.tensors.get(name)
        return found if found is not None else self.tensors.get(self.aliases.get(name, ""))

    def find_local(self, rank: int, name: str) -> CatalogTensor | None:
        """The tensor that ``rank`` alone saved as ``name``, under its own name or an alias."""
        found = self.local_tensors.get((rank, name))
        if found is not None:
            return found
        return next((each for (of, _), each in self.local_tensors.items() if of == rank and name in each.aliases), None)

    def layout(self, names: Sequence[str] | None = None) -> Layout:
        """Where the pieces of shared tensors lie; a piece's ``rank`` is the position of its pack in `packs`.

        Only the width of a dtype counts in a layout, so each is given as the unsigned integer of that width.
        """
        place = {pack: i for i, pack in enumerate(self.packs())}
        return Layout(
            {
                name: TensorLayout(
                    self.tensors[name].shape,
                    tuple(Piece.alone(place[p.pack], p.box) for p in self.tensors[name].pieces),
                    f"uint{DTYPES[self.tensors[name].dtype].bits}",
                )
                for name in (self.tensors if names is None else names)
            }
        )

    def packs(self) -> list[str]:
        """The names of all packs, sorted."""
        found: set[str] = set()
        for tensor in (*self.tensors.values(), *self.local_tensors.values()):
            pieces = tensor.pieces
            found.update(pieces.packs() if isinstance(pieces, StoredPieces) else (piece.pack for piece in pieces))
        return sorted(found)


class _Segments(NamedTuple):
    """What is known of a tensor while parts are joined."""

    dtype: str
    shape: tuple[int, ...]
    segments: list[Segment]
    aliases: dict[str, None]


class Joining:
    """A catalog in the making. Every method raises `FormatRefused` for what contradicts what was said before."""

    def __init__(self) -> None:
        self._world = 0
        self._ranks: set[int] = set()
        self._tensors: dict[str, list[CatalogTensor]] = {}
        self._segments: dict[str, _Segments] = {}
        self._local_tensors: dict[tuple[int, str], CatalogTensor] = {}
        self._aliases: dict[str, str] = {}
        self._values: dict[str, Any] = {}
        self._local_values: dict[tuple[int, str], Any] = {}

    def ranks(self, who: str, world: int, ranks: Iterable[int]) -> None:
        """``who`` (a pack or part, for messages) holds what ``ranks`` of ``world`` wrote."""
        self._world = self._world or world
        for rank in ranks:
            if world != self._world or not 0 <= rank < world or rank in self._ranks:
                raise FormatRefused(f"{who} is of rank {rank} of {world}, others are of {self._world} ranks")
            self._ranks.add(rank)

    def tensor(self, tensor: CatalogTensor) -> None:
        """A checked tensor, or some pieces of it."""
        if tensor.rank is not None:
            _enter(self._local_tensors, (tensor.rank, tensor.name), tensor)
            return
        known = self._tensors.setdefault(tensor.name, [])
        if known and (known[0].dtype, known[0].shape) != (tensor.dtype, tensor.shape):
            raise FormatRefused(f"two ranks saved {tensor.name!r} with different dtypes or shapes", tensor=tensor.name)
        known.append(tensor)

    def segment(self, name: str, dtype: str, shape: tuple[int, ...], aliases: Sequence[str], segment: Segment) -> None:
        """What a part holds of a shared tensor; faster than `tensor`, for steps of very many parts."""
        known = self._segments.get(name)
        if known is None:
            known = self._segments[name] = _Segments(dtype, shape, [], {})
        elif known.dtype != dtype or known.shape != shape:
            raise FormatRefused(f"two ranks saved {name!r} with different dtypes or shapes", tensor=name)
        known.segments.append(segment)
        if aliases:
            known.aliases.update(dict.fromkeys(aliases))

    def value(self, key: str, rank: int | None, value: Any) -> None:
        """A value, of one rank alone or of all."""
        if rank is None:
            _enter(self._values, key, value)
        else:
            _enter(self._local_values, (rank, key), value)

    def all_there(self) -> None:
        """Refuse if a rank is missing."""
        if len(self._ranks) < self._world:
            gone = sorted(set(range(min(self._world, len(self._ranks) + 1))) - self._ranks)
            raise FormatRefused(
                f"{len(self._ranks)} of {self._world} ranks are there; rank {gone[0]} is not", ranks=gone
            )

    def done(self) -> Catalog:
        """The catalog; refused if a rank is missing, or if a name is that of two tensors."""
        self.all_there()
        for name, each in self._segments.items():
            self.tensor(CatalogTensor(name, each.dtype, each.shape, StoredPieces(each.segments), tuple(each.aliases)))
        self._segments.clear()
        tensors = {name: _merged(parts) for name, parts in self._tensors.items()}
        for tensor in tensors.values():
            for alias in tensor.aliases:
                if alias in tensors or self._aliases.setdefault(alias, tensor.name) != tensor.name:
                    raise FormatRefused(f"{alias!r} is a name of two different tensors", tensor=alias)
        return Catalog(self._world, tensors, self._local_tensors, self._aliases, self._values, self._local_values)


def piece_key(name: str, shape: Sequence[int], box: Box, rank: int | None) -> str:
    """The key of a piece in its pack; ``rank`` for tensors that are of one rank alone.

    >>> piece_key("w", (8, 2), Box((0, 0), (4, 2)), None), piece_key("rng", (2,), Box((0,), (2,)), 3)
    ('w[0:4,0:2]', 'rng@rank3')
    """
    name = name if rank is None else f"{name}@rank{rank}"
    if not any(box.lo) and box.hi == tuple(shape):
        return name
    return f"{name}[{','.join(f'{a}:{b}' for a, b in zip(box.lo, box.hi, strict=True))}]"


def checked(
    name: str,
    dtype: str,
    shape: tuple[int, ...],
    pieces: tuple[StoredPiece, ...],
    aliases: tuple[str, ...],
    rank: int | None,
) -> CatalogTensor:
    """The tensor, if there can be one such; raises `FormatRefused` that names it."""
    if dtype not in DTYPES:
        raise FormatRefused(f"{name!r} has the dtype {dtype[:40]!r}, which this release does not know")
    if len(shape) > _MAX_DIMS or any(not 0 <= extent < 1 << 62 for extent in shape) or nbytes(dtype, shape) > 1 << 62:
        raise FormatRefused(f"{name!r} has an impossible shape")
    for piece in pieces:
        inside = len(piece.box.lo) == len(shape) and all(
            lo >= 0 and hi <= extent for lo, hi, extent in zip(piece.box.lo, piece.box.hi, shape, strict=True)
        )
        if not inside:
            raise FormatRefused(f"a piece of {name!r} lies outside its tensor", tensor=name)
    return CatalogTensor(name, dtype, shape, pieces, aliases, rank)


def _box(name: str, lo: tuple[int, ...], hi: tuple[int, ...]) -> Box:
    try:
        return Box(lo, hi)
    except LayoutError as error:
        raise FormatRefused(f"a piece of {name!r} lies outside its tensor", tensor=name) from error


def _enter(table: dict[Key, Any], key: Key, entry: Any) -> None:
    if key in table:
        raise FormatRefused(f"{key!r} is there twice")
    table[key] = entry


def _merged(parts: Sequence[CatalogTensor]) -> CatalogTensor:
    """One tensor of what its parts have; its pieces stay in segments if all of them are."""
    if len(parts) == 1:
        return parts[0]
    aliases = tuple(dict.fromkeys(alias for part in parts for alias in part.aliases))
    held = [part.pieces for part in parts]
    stored = [each for each in held if isinstance(each, StoredPieces)]
    pieces: Sequence[StoredPiece]
    if len(stored) == len(held):
        pieces = StoredPieces([segment for each in stored for segment in each.segments])
    else:
        pieces = tuple(piece for each in held for piece in each)
    return replace(parts[0], pieces=pieces, aliases=aliases)
