"""The packs of a step whose tensors are coded: made in turn, so that only one is in memory beside the step itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from perdure.checkpoint.unchanged import Entry
from perdure.codec import tile_digests
from perdure.layout import Box
from perdure.state.coding import Coding
from perdure.state.index import RankIndex
from perdure.state.relations import Relation, sources
from perdure.state.sampling import Block
from perdure.state.save import PACK_TENSORS
from perdure.store import PackItem, plan_pack
from perdure.store.counted import Anew

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["NewPack", "coded_packs"]

_PACK_BYTES: Final = 1 << 30  # of tensors before they are coded


@dataclass(frozen=True, slots=True)
class NewPack:
    """A pack to write: how many bytes each key takes up in it, and its bytes, which can be read as often as a store
    tries.

    ``coded`` are the keys that are frames; ``bases`` says of those that have a base how it is computed, and from which
    blocks: their keys and dtypes.
    """

    keys: dict[str, int]
    chunks: Iterable[Buffer]
    coded: frozenset[str] = frozenset()
    bases: dict[str, tuple[Relation, tuple[tuple[str, str], ...]]] = field(default_factory=dict)


def coded_packs(written: Sequence[Entry], all_: Sequence[Entry], indexes: Sequence[RankIndex]) -> Iterator[NewPack]:
    """The packs of what is to be ``written``; the other entries of the step may be what bases are computed from."""
    by_key = {each.entry.key: each for each in all_}
    left = {each.entry.key for each in written}
    blocks = {
        piece.key: Block(tensor.dtype, Box(piece.lo, piece.hi), np.frombuffer(by_key[piece.key].data, np.uint8))
        for index in indexes
        for tensor in index.tensors
        for piece in tensor.pieces
    }
    coding = Coding(blocks)
    batch: list[str] = []
    nbytes = 0
    for key, block in blocks.items():
        if key not in left:
            continue
        if batch and (nbytes + block.data.size > _PACK_BYTES or len(batch) == PACK_TENSORS):
            yield _pack(batch, by_key, blocks, coding)
            batch, nbytes = [], 0
        batch.append(key)
        nbytes += block.data.size
    if batch:
        yield _pack(batch, by_key, blocks, coding)


def _pack(keys: Sequence[str], by_key: dict[str, Entry], blocks: dict[str, Block], coding: Coding) -> NewPack:
    items: list[PackItem] = []
    data: list[Buffer] = []
    digests: list[bytes] = []
    coded: set[str] = set()
    bases: dict[str, tuple[Relation, tuple[tuple[str, str], ...]]] = {}
    for key in keys:
        each, made = by_key[key], coding.code(key)
        if made is None:
            items.append(PackItem(key, each.entry.dtype, each.entry.shape, each.entry.nbytes))
            data.append(each.data)
            digests.append(each.digests)
            continue
        size = len(made.frame)
        items.append(PackItem(key, "uint8", (size,), size))
        data.append(made.frame)
        digests.append(tile_digests(made.frame))
        coded.add(key)
        if made.relation is not None:
            wanted = tuple((of.name, blocks[of.name].dtype) for of in sources(key, made.relation))
            bases[key] = (made.relation, wanted)
    plan = plan_pack(items)
    header = plan.render_header(b"".join(digests))
    return NewPack(
        {item.key: item.nbytes for item in items}, Anew(partial(plan.chunks, header, data)), frozenset(coded), bases
    )
