"""The index of a part: what its packs mean, as sorted leaves, so that one tensor of a million is found in one read.

A part is what one writer (a node) saved of a step. Its top says which ranks it is of, and lists the grids in which
tensors commonly lie; its leaves hold the entries, sorted by name: tensors, rank-local tensors, other names, values. An
entry says by number in which of the part's packs each piece lies; under which key follows from name and box, and where
in the pack says the pack's header. A tensor that lies in a grid has no boxes written out: grid and shape give those of
all ranks, and the part holds those of its own.

Written by `write_index`, read by `perdure.state.part_reader`; the format is in docs/spec/format-v1.md, "Index".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from perdure.state.entries import (
    KINDS,
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
from perdure.state.index import RankIndex, SavedGrid
from perdure.store import LeafRef
from perdure.store.records import digest_of

__all__ = ["Written", "write_index"]

LEAF_ENTRIES = 4096
LEAF_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Written:
    """A part's index as it goes into the part: the top, the references to the leaves, and the leaves."""

    index: msgspec.Raw
    refs: tuple[LeafRef, ...]
    leaves: tuple[bytes, ...]


def write_index(
    ranks: Sequence[RankIndex],
    packs: Mapping[str, int],
    bases: Sequence[BaseEntry] = (),
    notes: Sequence[NoteEntry] = (),
) -> Written:
    """The index of what ``ranks`` (those of one writer) saved; ``packs`` says in which of its packs each key lies.

    A key that is a frame there has ``-1 - number``; ``bases`` has an entry for each frame that has a base, ``notes``
    what people may want to know.

    The same indexes give the same bytes.
    """
    ranks = sorted(ranks, key=lambda each: each.rank)
    layouts = ranks[0].layouts
    tensors: dict[str, TensorEntry] = {}
    blocks: dict[str, list[tuple[BlockEntry, int]]] = {}
    grids: dict[str, int | None] = {}
    locals_: list[LocalEntry] = []
    aliases: dict[str, str] = {}
    values: list[ValueEntry] = []
    for index in ranks:
        for saved in index.tensors:
            numbers = tuple(packs[piece.key] for piece in saved.pieces)
            if saved.local:
                where = tuple((piece.lo, piece.hi) for piece in saved.pieces)
                locals_.append(
                    LocalEntry(
                        saved.name, index.rank, saved.dtype, saved.shape, where, numbers, tuple(sorted(saved.aliases))
                    )
                )
                continue
            tensors[saved.name] = TensorEntry(saved.name, saved.dtype, saved.shape, (), ())
            grids[saved.name] = saved.layout
            mine = [BlockEntry(index.rank, piece.lo, piece.hi) for piece in saved.pieces]
            blocks.setdefault(saved.name, []).extend(sorted(zip(mine, numbers, strict=True), key=_by_box))
            aliases.update(dict.fromkeys(saved.aliases, saved.name))
        values += [ValueEntry(v.key, index.rank if v.local else None, v.value) for v in index.values]
    entries: dict[str, list[Any]] = {
        "tensors": [_placed(tensors[name], blocks[name], grids[name], layouts) for name in sorted(tensors)],
        "locals": sorted(locals_, key=lambda each: (each.name, each.rank)),
        "aliases": [AliasEntry(alias, aliases[alias]) for alias in sorted(aliases)],
        "bases": sorted(bases, key=lambda each: each.key),
        "notes": sorted(notes, key=lambda each: each.key),
        "values": sorted(values, key=lambda each: (each.key, -1 if each.rank is None else each.rank)),
    }
    top = Index(world=ranks[0].world, ranks=tuple(each.rank for each in ranks), layouts=layouts)
    refs: list[LeafRef] = []
    leaves: list[bytes] = []
    start = 0
    for kind in KINDS:
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


def _by_box(block: tuple[BlockEntry, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return block[0].lo, block[0].hi


def _placed(
    tensor: TensorEntry, blocks: Sequence[tuple[BlockEntry, int]], grid: int | None, layouts: Sequence[SavedGrid]
) -> TensorEntry:
    where: int | tuple[BlockEntry, ...] = tuple(block for block, _ in blocks) if grid is None else grid
    packs = tuple(number for _, number in blocks)
    return TensorEntry(tensor.name, tensor.dtype, tensor.shape, where, packs)


def _leaves(entries: Sequence[Any]) -> Iterator[tuple[str, str, int, bytes]]:
    """Cut sorted entries into leaves: first name, last name, count, bytes."""
    encoded: list[bytes] = []
    size = first = 0
    for i, entry in enumerate(entries):
        data = msgspec.json.encode(entry)
        if encoded and (len(encoded) >= LEAF_ENTRIES or size + len(data) > LEAF_BYTES):
            yield name_of(entries[first]), name_of(entries[i - 1]), len(encoded), _joined(encoded)
            encoded, size, first = [], 0, i
        encoded.append(data)
        size += len(data)
    if encoded:
        yield name_of(entries[first]), name_of(entries[-1]), len(encoded), _joined(encoded)


def _joined(encoded: Sequence[bytes]) -> bytes:
    return b"[" + b",".join(encoded) + b"]\n"
