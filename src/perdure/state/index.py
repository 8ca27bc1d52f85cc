"""What a manifest part says about tensors: the index of each rank, and the catalog that joins the indexes of all.

The store keeps an index as bytes it does not interpret; these records give it meaning. They are strict: an unknown or
missing field, a box outside its tensor, a byte count that does not fit the dtype are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from perdure.codec.dtypes import DTYPES, nbytes
from perdure.errors import FormatRefused
from perdure.layout import Box, Layout, Piece, TensorLayout

__all__ = ["Catalog", "CatalogTensor", "RankIndex", "SavedPiece", "SavedTensor", "SavedValue", "StoredPiece"]

Key = TypeVar("Key", str, tuple[int, str])
_MAX_DIMS = 64


class SavedPiece(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where the block ``lo <= index < hi`` lies: under ``key`` in the pack of the rank that wrote it."""

    key: str
    lo: tuple[int, ...]
    hi: tuple[int, ...]


class SavedTensor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One tensor in a rank's index; ``pieces`` are those that this rank wrote."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[SavedPiece, ...]
    aliases: tuple[str, ...] = ()
    local: bool = False


class SavedValue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One value in a rank's index, as tagged JSON."""

    key: str
    value: Any
    local: bool = False


class RankIndex(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that one rank wrote of a step."""

    rank: int
    world: int
    tensors: tuple[SavedTensor, ...]
    values: tuple[SavedValue, ...]


@dataclass(frozen=True, slots=True)
class StoredPiece:
    """A block of a saved tensor and the pack that holds it."""

    box: Box
    pack: str
    key: str


@dataclass(frozen=True, slots=True)
class CatalogTensor:
    """A saved tensor with its pieces from every rank; ``rank`` is set for rank-local ones."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[StoredPiece, ...]
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

    @classmethod
    def join(cls, indexes: Iterable[tuple[str, RankIndex]]) -> Catalog:
        """Join ``(pack name, index)`` of every rank; raise `FormatRefused` where they contradict each other."""
        world = 0
        ranks: set[int] = set()
        tensors: dict[str, CatalogTensor] = {}
        local_tensors: dict[tuple[int, str], CatalogTensor] = {}
        values: dict[str, Any] = {}
        local_values: dict[tuple[int, str], Any] = {}
        for pack, index in indexes:
            world = world or index.world
            if index.world != world or not 0 <= index.rank < world or index.rank in ranks:
                raise FormatRefused(f"{pack} is of rank {index.rank} of {index.world}, others are of {world} ranks")
            ranks.add(index.rank)
            for saved in index.tensors:
                mine = _checked(saved, pack, index.rank if saved.local else None)
                if saved.local:
                    _enter(local_tensors, (index.rank, saved.name), mine)
                    continue
                known = tensors.setdefault(saved.name, mine)
                if known is not mine:
                    tensors[saved.name] = _merged(known, mine)
            for value in index.values:
                if value.local:
                    _enter(local_values, (index.rank, value.key), value.value)
                else:
                    _enter(values, value.key, value.value)
        if len(ranks) < world:
            gone = sorted(set(range(min(world, len(ranks) + 1))) - ranks)
            raise FormatRefused(f"{len(ranks)} of {world} ranks are there; rank {gone[0]} is not", ranks=gone)
        aliases: dict[str, str] = {}
        for tensor in tensors.values():
            for alias in tensor.aliases:
                if alias in tensors or aliases.setdefault(alias, tensor.name) != tensor.name:
                    raise FormatRefused(f"{alias!r} is a name of two different tensors", tensor=alias)
        return cls(world, tensors, local_tensors, aliases, values, local_values)

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
        every = [*self.tensors.values(), *self.local_tensors.values()]
        return sorted({piece.pack for tensor in every for piece in tensor.pieces})


def _enter(table: dict[Key, Any], key: Key, entry: Any) -> None:
    if key in table:
        raise FormatRefused(f"{key!r} is there twice")
    table[key] = entry


def _merged(known: CatalogTensor, mine: CatalogTensor) -> CatalogTensor:
    if (known.dtype, known.shape) != (mine.dtype, mine.shape):
        raise FormatRefused(f"two ranks saved {known.name!r} with different dtypes or shapes", tensor=known.name)
    aliases = tuple(dict.fromkeys(known.aliases + mine.aliases))
    return CatalogTensor(known.name, known.dtype, known.shape, known.pieces + mine.pieces, aliases)


def _checked(saved: SavedTensor, pack: str, rank: int | None) -> CatalogTensor:
    if saved.dtype not in DTYPES:
        raise FormatRefused(f"{saved.name!r} has the dtype {saved.dtype!r}, which this release does not know")
    if len(saved.shape) > _MAX_DIMS or any(not 0 <= extent < 1 << 62 for extent in saved.shape):
        raise FormatRefused(f"{saved.name!r} has an impossible shape")
    pieces = []
    for piece in saved.pieces:
        inside = len(piece.lo) == len(piece.hi) == len(saved.shape) and all(
            0 <= lo <= hi <= extent for lo, hi, extent in zip(piece.lo, piece.hi, saved.shape, strict=True)
        )
        if not inside:
            raise FormatRefused(f"a piece of {saved.name!r} lies outside its tensor", tensor=saved.name)
        pieces.append(StoredPiece(Box(piece.lo, piece.hi), pack, piece.key))
    return CatalogTensor(saved.name, saved.dtype, saved.shape, tuple(pieces), saved.aliases, rank)
