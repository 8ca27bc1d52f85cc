"""The entries of a part's index: what stands in its leaves, and its top (docs/spec/format-v1.md, "Index").

Written by `perdure.state.manifest`, read by `perdure.state.part_reader`.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Annotated, Any

import msgspec

from perdure.state.index import SavedGrid
from perdure.state.relations import MAX_TERMS, Relation

__all__ = [
    "KINDS",
    "MOST_NOTE",
    "MOST_SOURCES",
    "ORDERS",
    "AliasEntry",
    "BaseEntry",
    "BlockEntry",
    "Index",
    "LocalEntry",
    "NoteEntry",
    "SourceEntry",
    "TensorEntry",
    "ValueEntry",
    "name_of",
]

KINDS = ("tensors", "locals", "aliases", "values", "bases", "notes")
MOST_SOURCES = 1 + 2 * MAX_TERMS
MOST_NOTE = 4096
Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 62) - 1)]


class _Entry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    pass


class BlockEntry(_Entry, frozen=True, array_like=True, gc=False):
    """A piece that is written out: of which rank, and its box."""

    rank: Count
    lo: tuple[Count, ...]
    hi: tuple[Count, ...]


class TensorEntry(_Entry, frozen=True, array_like=True, gc=False):
    """A tensor that ranks share. ``where`` is the number of a grid or this part's blocks in turn.

    ``packs`` has for each block of this part the number of its pack; the block is a frame if ``-1 - number`` is there.
    """

    name: str
    dtype: str
    shape: tuple[Count, ...]
    where: Count | tuple[BlockEntry, ...]
    packs: tuple[int, ...]


class LocalEntry(_Entry, frozen=True, array_like=True, gc=False):
    """A tensor of one rank alone."""

    name: str
    rank: Count
    dtype: str
    shape: tuple[Count, ...]
    blocks: tuple[tuple[tuple[Count, ...], tuple[Count, ...]], ...]
    packs: tuple[int, ...]
    aliases: tuple[str, ...]


class AliasEntry(_Entry, frozen=True, array_like=True, gc=False):
    """Another name of a shared tensor."""

    alias: str
    name: str


class ValueEntry(_Entry, frozen=True, array_like=True, gc=False):
    """A value as tagged JSON; ``rank`` if it is of one rank alone."""

    key: str
    rank: Count | None
    value: Any


class SourceEntry(_Entry, frozen=True, array_like=True, gc=False):
    """A block that a base is computed from: its key, its dtype, and the number of its pack as in `TensorEntry`."""

    key: str
    dtype: str
    pack: int


class BaseEntry(_Entry, frozen=True, array_like=True, gc=False):
    """How the base of the frame ``key`` is computed, and from what, in the order that the relation wants."""

    key: str
    relation: Relation
    sources: Annotated[tuple[SourceEntry, ...], msgspec.Meta(min_length=1, max_length=MOST_SOURCES)]


class NoteEntry(_Entry, frozen=True, array_like=True, gc=False):
    """Why the block under ``key`` is stored as it is, or the part as a whole (``""``): for people, nothing follows."""

    key: str
    text: Annotated[str, msgspec.Meta(max_length=MOST_NOTE)]


_NAMED: dict[type, str] = {
    TensorEntry: "name",
    LocalEntry: "name",
    AliasEntry: "alias",
    ValueEntry: "key",
    BaseEntry: "key",
    NoteEntry: "key",
}
ORDERS: dict[str, Callable[[Any], Any]] = {
    "tensors": attrgetter("name"),
    "locals": attrgetter("name", "rank"),
    "aliases": attrgetter("alias"),
    "bases": attrgetter("key"),
    "notes": attrgetter("key"),
    "values": lambda entry: (entry.key, -1 if entry.rank is None else entry.rank),
}


class Index(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The top of a part's index: the ranks that it is of, in rising order, and the grids that its tensors name."""

    world: Annotated[int, msgspec.Meta(ge=1, le=1 << 24)]
    ranks: tuple[Count, ...]
    layouts: tuple[SavedGrid, ...]


def name_of(entry: Any) -> str:
    """What an entry is found by."""
    name: str = getattr(entry, _NAMED[type(entry)])
    return name
