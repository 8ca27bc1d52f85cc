"""A writer that commits small steps of a run, part of which never changes, and a reader that checks every byte."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perdure.checkpoint.drain import Order, WrittenPart, commit, write_part
from perdure.checkpoint.restoring import read_catalog
from perdure.checkpoint.unchanged import Stored
from perdure.layout import Box, Layout, Piece, TensorLayout
from perdure.state.items import Held, TensorItem
from perdure.state.load import load, match
from perdure.store import Commit, Run, Store
from perdure.store.places import number_of
from perdure.testing.ranks import Bytes, bytes_of, memory_of, save_layout, whole_box

FROZEN_BYTES, MOVING_BYTES = 20_000, 3_000


def some(seed: int, nbytes: int) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, (nbytes, 1), dtype=np.uint8)


def tensors_of(frozen: int, moving: int) -> dict[str, Bytes]:
    """The tensors of a step, by the seeds of the two."""
    return {"frozen": some(frozen, FROZEN_BYTES), "moving": some(1_000_000 + moving, MOVING_BYTES)}


class Writer:
    """One writer of one epoch of the run in ``store``; it went on from slot ``base``."""

    def __init__(self, store: Store, *, base: int | None = None, stored: Stored | None = None, name: str = "w") -> None:
        self.run = Run.open(store, create=True)
        self.epoch = self.run.claim_epoch("test")
        self.stored = stored
        self.base = base
        self.seq = 0
        self.name = name

    def write(self, step: int, frozen: int = 0, moving: int | None = None) -> tuple[Order, WrittenPart]:
        """Write the part of a step and do not commit it."""
        self.seq += 1
        tensors = tensors_of(frozen, step if moving is None else moving)
        layout = Layout(
            {
                name: TensorLayout(data.shape[:-1], (Piece.alone(0, whole_box(data.shape[:-1])),), "uint8")
                for name, data in tensors.items()
            }
        )
        made = save_layout(layout, tensors, world=1)
        packs = [(made.indexes["pack0"], memoryview(made.packs["pack0"]))]
        order = Order(self.epoch, step, self.seq, self.base)
        return order, write_part(self.run, order, writer=self.name, packs=packs, stored=self.stored)

    def save(
        self,
        step: int,
        frozen: int = 0,
        moving: int | None = None,
        *,
        metric: float | None = None,
        pinned: bool = False,
    ) -> Commit:
        order, part = self.write(step, frozen, moving)
        made = commit(
            self.run, Order(order.epoch, step, order.seq, order.base, metric=metric, pinned=pinned), [part.ref]
        )
        self.stored = part.stored(made.slot)
        return made


def assert_loads(run: Run, slot: int, tensors: Mapping[str, Bytes] | None = None) -> None:
    """Load every tensor of a commit, verified; compare with ``tensors``, by default those of its step."""
    expected = tensors if tensors is not None else tensors_of(0, run.read_slot(slot).step)
    catalog, packs = read_catalog(run, slot)
    assert sorted(catalog.tensors) == sorted(expected)
    items = [
        TensorItem(name, "uint8", data.shape[:-1], (Held(Box.whole(data.shape[:-1]), memory_of(np.zeros_like(data))),))
        for name, data in expected.items()
    ]
    load(catalog, match(catalog, items, (), rank=0, world=1), lambda pack: [packs[pack]], threads=1)
    for item, data in zip(items, expected.values(), strict=True):
        assert np.array_equal(bytes_of(item.held[0]), data), item.name


def slots_of(run: Run) -> list[int]:
    """All slots of a run, given up or not."""
    return [number for name in run.store.names("slots/") if (number := number_of(name)) is not None]


def live_steps(run: Run) -> list[int]:
    """The steps of all commits that are not given up, in the order of their slots."""
    gone = run.pruned()
    return [run.read_slot(slot).step for slot in slots_of(run) if slot not in gone]


def assert_nothing_missing(run: Run) -> None:
    """Every commit that is not given up has its parts and all packs that they name."""
    gone = run.pruned()
    for slot in slots_of(run):
        if slot not in gone:
            for ref in run.read_slot(slot).parts:
                for pack in run.read_part(ref).packs:
                    assert run.store.size(pack.name) == pack.nbytes, (slot, pack.name)
