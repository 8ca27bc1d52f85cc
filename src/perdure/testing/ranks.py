"""Ranks of a job, simulated: what each holds of known tensors under a layout, how all save it, and packs in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from perdure.checkpoint.memory_packs import MemoryPacks, seal
from perdure.codec.dtypes import DTYPES
from perdure.layout import Box, Layout
from perdure.state.disk_pack import DiskPack
from perdure.state.index import Catalog, RankIndex
from perdure.state.items import Capture, Held, Memory, TensorItem, ValueItem
from perdure.state.load import PackSource
from perdure.state.save import copy_writes, offer, settle
from perdure.store import Ram, Run

__all__ = [
    "Bytes",
    "Saved",
    "bytes_of",
    "items_of",
    "memory_of",
    "random_bytes",
    "save",
    "save_layout",
    "whole_box",
]

Bytes: TypeAlias = "NDArray[np.uint8]"
"""A tensor as uint8 of its shape and one more dim, the bytes of an element."""


def random_bytes(dtype: str, shape: Sequence[int], seed: int) -> Bytes:
    """A whole tensor of any bytes, NaN payloads and negative zeros among them."""
    width = DTYPES[dtype].itemsize
    made = np.random.default_rng(seed).integers(0, 256, (*shape, width), dtype=np.uint8)
    flat = made.reshape(-1, width)
    flat[: len(flat) // 3, -1] = 0x80  # the sign alone, of many floats
    flat[: len(flat) // 3, :-1] = 0
    return made


def memory_of(array: Bytes) -> Memory:
    """The memory of a contiguous array."""
    return Memory(array.ctypes.data if array.nbytes else 0, array.nbytes, array)


def items_of(layout: Layout, rank: int, wholes: Mapping[str, Bytes] | None, **options: Any) -> tuple[TensorItem, ...]:
    """What ``rank`` holds under ``layout``, cut from ``wholes``; filled with 0xAA without them. A copy of its own."""
    items = []
    for name, tensor in layout.items():
        held = []
        for piece in tensor.of_rank(rank):
            block = np.full((*piece.box.shape, DTYPES[tensor.dtype].itemsize), 0xAA, np.uint8)
            if wholes is not None:
                block[...] = wholes[name][piece.box.within(tensor.whole)]
            held.append(Held(piece.box, memory_of(block)))
        items.append(TensorItem(name, tensor.dtype, tensor.shape, tuple(held), **options))
    return tuple(items)


def bytes_of(held: Held) -> Bytes:
    """The live bytes of a block."""
    array: Bytes = held.memory.owner
    return array


@dataclass
class Saved:
    """A step that simulated ranks saved: packs by name, as bytes."""

    indexes: dict[str, RankIndex] = field(default_factory=dict)
    packs: dict[str, bytearray] = field(default_factory=dict)

    @property
    def catalog(self) -> Catalog:
        """The indexes of all ranks, joined."""
        return Catalog.join(self.indexes.items())

    def in_memory(self, pack: str) -> PackSource:
        """The pack as it is now, in memory."""
        return self.memory_pack(pack, self.packs[pack], file=f"memory of {pack}")

    def memory_pack(self, pack: str, data: bytearray, *, file: str) -> MemoryPacks:
        """``data`` in memory, taken for the pack."""
        return MemoryPacks([(self.indexes[pack], memoryview(data))], file=file)

    def in_store(self, pack: str) -> PackSource:
        """The pack as it was when it was first asked for, in a store."""
        run = Run.open(Ram(), create=True)
        return DiskPack(run, run.write_pack([self.packs[pack]], epoch=1, step=1, seq=0, writer=pack))

    def sources(self, pack: str) -> Sequence[PackSource]:
        """The one copy of the pack."""
        return [self.in_memory(pack)]


def save(captures: Sequence[Capture]) -> Saved:
    """Save what each rank captured, as ranks do, each index going through JSON."""
    offers = [offer(capture, rank=rank) for rank, capture in enumerate(captures)]
    saved = Saved()
    for rank, capture in enumerate(captures):
        plan = settle(offers, rank=rank)
        pack = bytearray(plan.total_nbytes)
        base = np.frombuffer(pack, np.uint8).ctypes.data
        copy_writes(plan, capture, base, which=lambda owned: not owned)
        copy_writes(plan, capture, base, which=lambda owned: owned)
        index = plan.index(capture, rank=rank, world=len(captures))
        assert seal(index, memoryview(pack)) == len(pack)
        name = f"pack{rank}"
        saved.indexes[name] = msgspec.json.decode(msgspec.json.encode(index), type=RankIndex)
        saved.packs[name] = pack
    return saved


def save_layout(layout: Layout, wholes: Mapping[str, Bytes], *, world: int, values: Any = ()) -> Saved:
    """Save tensors under ``layout``; every rank holds ``values`` (key to value) too."""
    kept = tuple(ValueItem(key, value) for key, value in dict(values).items())
    return save([Capture(items_of(layout, rank, wholes), kept) for rank in range(world)])


def whole_box(shape: Sequence[int]) -> Box:
    """The box of a whole tensor."""
    return Box((0,) * len(shape), tuple(shape))
