"""Small runs in a store, made as ranks and agents make them, and ways to damage them: for tests of inspection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.checkpoint.drain import Order, commit, write_part
from perdure.checkpoint.unchanged import Stored
from perdure.layout import Layout
from perdure.store import Commit, Run, Store
from perdure.testing.ranks import Bytes, save_layout

__all__ = ["blobs_of", "copy_of", "cut", "flip", "save_step"]


def save_step(
    run: Run,
    step: int,
    layout: Layout,
    wholes: Mapping[str, Bytes],
    *,
    world: int,
    epoch: int = 1,
    base: int | None = None,
    values: Mapping[str, Any] | None = None,
    meta: Mapping[str, Any] | None = None,
    stored: dict[str, Stored] | None = None,
) -> Commit:
    """Save a step of ``world`` ranks, each a writer of its own, and commit it.

    ``stored`` is what writers remember of the save before, and is brought up to date: what has not changed is not
    written again.
    """
    saved = save_layout(layout, wholes, world=world, values=values or {})
    order = Order(epoch=epoch, step=step, seq=step, base=base, meta=meta, session="s", save=step)
    parts = {}
    for name, index in saved.indexes.items():
        writer = f"node{index.rank}"
        known = None if stored is None else stored.get(writer)
        view = memoryview(saved.packs[name])
        parts[writer] = write_part(run, order, writer=writer, packs=[(index, view)], stored=known)
    made = commit(run, order, [part.ref for part in parts.values()])
    if stored is not None:
        stored.update({writer: part.stored(made.slot) for writer, part in parts.items()})
    return made


def blobs_of(store: Store) -> dict[str, bytes]:
    """Everything in ``store``."""
    return {name: bytes(store.read(name)) for name in store.names("")}


def copy_of(store: Store, into: Store) -> Store:
    """``into``, with all that is in ``store``."""
    for name, data in blobs_of(store).items():
        into.put(name, [data])
    return into


def flip(store: Store, name: str, at: int) -> None:
    """Flip a bit of the byte ``at`` of blob ``name``."""
    data = bytearray(store.read(name))
    data[at] ^= 4
    store.delete(name)
    store.put(name, [bytes(data)])


def cut(store: Store, name: str, nbytes: int) -> None:
    """Keep ``nbytes`` of the blob ``name``."""
    data = bytes(store.read(name))[:nbytes]
    store.delete(name)
    store.put(name, [data])
