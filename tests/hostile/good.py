"""A small run that is good, saved by the real code: what the hostile ones are made from.

Two ranks, two writers, two steps. The second refers to the packs of the first for what has not changed. There are a
grid, uneven blocks, flat blocks, a tensor of each rank alone, another name, an empty tensor, a scalar, and values.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from perdure.checkpoint.drain import Order, commit, write_part
from perdure.checkpoint.restoring import read_catalog
from perdure.layout import Box
from perdure.state.index import RankIndex
from perdure.state.items import Capture, Held, TensorItem, ValueItem
from perdure.state.load import Match, load
from perdure.state.source import check_room
from perdure.state.values import decode_value, encode_value
from perdure.store import Disk, Run
from perdure.testing.ranks import Saved, memory_of, random_bytes, save, whole_box

WORLD = 2
STEPS = (10, 20)
VALUES = {
    "lr": 0.1,
    "config": {"betas": (0.9, 0.95), "name": "x", "big": 1 << 70},
    "seen": {1, 2},
    "array": np.arange(3, dtype=np.int16),
}


def capture(rank: int, step: int) -> Capture:
    """What ``rank`` holds at ``step``: `w` and `u` never change, the others do."""
    tensors = [
        _item("w", "float32", (64, 16), Box((32 * rank, 0), (32 * rank + 32, 16)), 1, aliases=("tied",)),
        _item("u", "bfloat16", (1001,), Box((0,), (1,)) if rank == 0 else Box((1,), (1001,)), 1),
        _item("b", "int8", (3, 2), whole_box((3, 2)), step),
        _item("one", "float64", (), Box((), ()), step),
        _item("none", "float32", (0, 4), whole_box((0, 4)), step),
        _item("z", "complex128", (2,), whole_box((2,)), step),
        _item("rng", "uint8", (5 + rank,), whole_box((5 + rank,)), step + rank, local=True),
    ]
    values = [ValueItem(key, encode_value(value, key=key)) for key, value in VALUES.items()]
    values.append(ValueItem("cursor", encode_value({"step": step, 7: b"x"}, key="cursor"), local=True))
    return Capture(tuple(tensors), tuple(values))


def _item(name: str, dtype: str, shape: tuple[int, ...], box: Box, seed: int, **options: object) -> TensorItem:
    whole = random_bytes(dtype, shape, seed)
    block = np.ascontiguousarray(whole[box.within(whole_box(shape))])
    return TensorItem(name, dtype, shape, (Held(box, memory_of(block)),), **options)  # type: ignore[arg-type]


def make(folder: Path) -> None:
    """Save the run in ``folder``."""
    run = Run.open(Disk(folder), create=True)
    epoch = run.claim_epoch("good")
    stored = [None] * WORLD
    for seq, step in enumerate(STEPS):
        saved = save([capture(rank, step) for rank in range(WORLD)])
        order = Order(epoch, step, seq, None, meta={"note": "good"}, metric=0.5, session="s", save=seq)
        parts = [
            write_part(run, order, writer=f"rank{rank}", packs=[packed(saved, rank)], stored=stored[rank])
            for rank in range(WORLD)
        ]
        made = commit(run, order, [part.ref for part in parts])
        stored = [part.stored(made.slot) for part in parts]


def packed(saved: Saved, rank: int) -> tuple[RankIndex, memoryview]:
    name = f"pack{rank}"
    return saved.indexes[name], memoryview(saved.packs[name])


def expected(step: int) -> dict[str, bytes]:
    """The bytes of each whole tensor of a step, by name; of one rank alone by ``name@rank``."""
    found: dict[str, bytes] = {}
    for rank in range(WORLD):
        for item in capture(rank, step).tensors:
            seed = 1 if item.name in ("w", "u") else step + (rank if item.local else 0)
            name = f"{item.name}@rank{rank}" if item.local else item.name
            found[name] = random_bytes(item.dtype, item.shape, seed).tobytes()
    return found


def open_run(folder: Path) -> Run:
    """The run as a reader opens it; damage that is passed over is not told."""
    return Run.open(Disk(folder), create=False, tell=lambda note: None)


def read_all(folder: Path, slot: int = 2) -> dict[str, bytes]:
    """Everything of a commit, verified: whole tensors by name, and the values read back."""
    catalog, packs = read_catalog(open_run(folder), slot)
    wholes: dict[str, np.ndarray] = {}
    matches: list[Match] = []
    every = [(name, each) for name, each in catalog.tensors.items()]
    every += [(f"{name}@rank{rank}", each) for (rank, name), each in catalog.local_tensors.items()]
    for name, each in every:
        check_room(each, packs)
        wholes[name] = np.zeros(each.nbytes, np.uint8)
        held = Held(whole_box(each.shape), memory_of(wholes[name]))
        matches.append(Match(TensorItem(each.name, each.dtype, each.shape, (held,)), each))
    load(catalog, matches, lambda pack: [packs[pack]], threads=1)
    for key, value in catalog.values.items():
        decode_value(value, key=key)
    for (_, key), value in catalog.local_values.items():
        decode_value(value, key=key)
    return {name: whole.tobytes() for name, whole in wholes.items()}


def same(found: Mapping[str, bytes], step: int) -> bool:
    """Whether ``found`` is exactly what was saved."""
    return dict(found) == expected(step)
