"""Writes `format-1`, by the code that saves: `python tests/golden/make_format_1.py FOLDER`. The same bytes every time.

What a release wrote is never rewritten; this script stays, so that a test can ask whether today's code still writes the
same. Time and every random token are fixed. In it are:

* `four`: four ranks, one part each. Grids, uneven blocks, flat blocks, tensors of each rank alone, other names. Slot 1
  is step 10; slot 2, step 20, refers to packs of slot 1; slot 3, step 15, is of a new epoch and goes on from slot 1, so
  slot 2 is a dead branch; slot 4, step 25, is pinned and has a metric; slot 3 is pruned.
* `one`: one rank. A tensor of every dtype, empty ones, scalars, values of every kind.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from perdure.checkpoint.drain import Order, WrittenPart, commit, write_part
from perdure.codec.digest import digest
from perdure.codec.dtypes import DTYPES
from perdure.layout import Box
from perdure.state.items import Capture, Held, TensorItem, ValueItem
from perdure.state.values import encode_value
from perdure.store import Disk, Run
from perdure.testing.ranks import memory_of, save, whole_box

NAN = np.array([0x7FF8_0000_0000_0123], np.uint64).view(np.float64)[0]
VALUES: dict[str, Any] = {
    "none": None,
    "booleans": [True, False],
    "text": 'quote " back \\ slash / ü 語 😀 \x07',
    "ints": [0, -1, 1 << 53, -(1 << 53), (1 << 53) + 1, 1 << 200, -(1 << 64)],
    "floats": [0.0, -0.0, 0.1, 1e22, 1e-7, 1.7976931348623157e308, 5e-324, float("inf"), float("-inf")],
    "nan": float(NAN),
    "list": [[], [[1]], {}],
    "dict": {"a": 1, "b": {"c": [2]}},
    "dict with other keys": {1: "a", (2, "b"): None, None: 0.5, "$": 1},
    "ordered": OrderedDict([("z", 1), ("a", 2)]),
    "counter": Counter("abca"),
    "tuple": (1, (2, ()), "x"),
    "set": {3, 1, 2},
    "frozenset": frozenset({"b", "a"}),
    "bytes": bytes(range(256)),
    "bytearray": bytearray(b"\x00\xff"),
    "complex": complex(1.5, -0.0),
    "range": range(3, 30, 7),
    "np scalars": [np.float32(0.1), np.int8(-3), np.bool_(True), np.complex64(1 + 2j), np.str_("é")],
    "np arrays": [np.arange(6, dtype=np.int16).reshape(2, 3), np.array([], np.float64), np.array(b"ab")],
}


class Still:
    """A clock that stands."""

    def monotonic(self) -> float:
        return 0.0

    def wall(self) -> float:
        return 1767225600.0

    def sleep(self, seconds: float) -> None:
        pass


def data_of(name: str, dtype: str, shape: Sequence[int], step: int) -> np.ndarray:
    """Bytes that follow from their names alone, by a rule that no library can change; bool holds 0 and 1."""
    n = int(np.prod(shape, dtype=int)) * DTYPES[dtype].itemsize
    seed = b"".join(bytes.fromhex(digest(f"{name}/{step}/{i}".encode())) for i in range(-(-n // 16)))[:n]
    made = np.frombuffer(seed, np.uint8).reshape(*shape, DTYPES[dtype].itemsize)
    return made & 1 if dtype == "bool" else made.copy()


def item(name: str, dtype: str, shape: tuple[int, ...], boxes: Sequence[Box], step: int, **options: Any) -> TensorItem:
    whole = data_of(name, dtype, shape, step)
    held = [Held(box, memory_of(np.ascontiguousarray(whole[box.within(whole_box(shape))]))) for box in boxes]
    return TensorItem(name, dtype, shape, tuple(held), **options)


def of_four(rank: int, step: int) -> Capture:
    """What ``rank`` of four holds: `frozen` and `embedding` never change."""
    row, column = divmod(rank, 2)
    grid = Box((6 * row, 4 * column), (6 * row + 6, 4 * column + 4))
    uneven = [(0, 1), (1, 1), (1, 6), (6, 7)][rank]
    flat = [(0, 40), (40, 80), (80, 120), (120, 130)][rank]  # a block of 10 rows of 13, cut by elements
    tensors = [
        item("frozen", "bfloat16", (64, 32), [Box((16 * rank, 0), (16 * rank + 16, 32))], 0),
        item("embedding", "float32", (12, 8), [grid], 0, aliases=("lm_head", "tied.weight")),
        item("layer.uneven", "float32", (7,), [Box((uneven[0],), (uneven[1],))], step),
        item("layer.flat", "float16", (10, 13), flat_boxes(13, *flat), step),
        item("layer.norm", "float32", (5,), [whole_box((5,))], step),
        item('name with / and " and ü', "int64", (2,), [whole_box((2,))] if rank == 2 else [], step),
        item("empty", "float32", (0, 3), [whole_box((0, 3))], step),
        item("rng", "uint8", (8 + rank,), [whole_box((8 + rank,))], step + rank, local=True),
    ]
    values = [
        ValueItem("lr", encode_value(0.1 * step, key="lr")),
        ValueItem("cursor", encode_value({"rank": rank, "step": step}, key="cursor"), local=True),
    ]
    return Capture(tuple(tensors), tuple(values))


def flat_boxes(width: int, lo: int, hi: int) -> list[Box]:
    """Elements ``lo <= i < hi`` of rows of ``width``, as boxes: what FSDP leaves of a tensor that it cuts flat."""
    boxes = []
    while lo < hi:
        row, column = divmod(lo, width)
        rows = (hi - lo) // width if column == 0 else 0
        if rows:
            boxes.append(Box((row, 0), (row + rows, width)))
            lo += rows * width
        else:
            end = min(width, column + hi - lo)
            boxes.append(Box((row, column), (row + 1, end)))
            lo += end - column
    return boxes


def of_one(step: int) -> Capture:
    """A tensor of every dtype, and values of every kind."""
    tensors = [item(f"dtype.{name}", name, (3, 2), [whole_box((3, 2))], step) for name in DTYPES]
    tensors += [item(f"scalar.{name}", name, (), [whole_box(())], step) for name in ("float64", "bool", "complex128")]
    tensors += [item(f"empty.{name}", name, (2, 0), [whole_box((2, 0))], step) for name in ("int8", "complex32")]
    return Capture(tuple(tensors), tuple(ValueItem(key, encode_value(each, key=key)) for key, each in VALUES.items()))


def make(folder: Path) -> None:
    """Write both runs below ``folder``."""
    tokens = count(1)
    with mock.patch("secrets.token_hex", lambda nbytes: f"{next(tokens):0{2 * nbytes}x}"):
        _make_four(folder / "four")
        _make_one(folder / "one")


def _make_four(folder: Path) -> None:
    run = Run.open(Disk(folder), create=True, created_by="golden", clock=Still())
    epoch = run.claim_epoch("first")
    first = _save(run, lambda rank: of_four(rank, 10), 4, Order(epoch, 10, 0, None, session="a"))
    _save(run, lambda rank: of_four(rank, 20), 4, Order(epoch, 20, 1, None, session="a", save=1), base=first)
    epoch = run.claim_epoch("second")
    third = _save(run, lambda rank: of_four(rank, 15), 4, Order(epoch, 15, 0, 1, session="b"))
    pinned = Order(epoch, 25, 1, 3, {"note": "best", "tags": ["a", 1.5]}, metric=0.25, pinned=True, session="b", save=1)
    _save(run, lambda rank: of_four(rank, 25), 4, pinned, base=third)
    run.give_up(run.read_slot(3))


def _make_one(folder: Path) -> None:
    run = Run.open(Disk(folder), create=True, created_by="golden", clock=Still())
    epoch = run.claim_epoch("only")
    _save(run, lambda rank: of_one(1), 1, Order(epoch, 1, 0, None, session="a"))


def _save(
    run: Run,
    capture: Callable[[int], Capture],
    world: int,
    order: Order,
    *,
    base: tuple[int, list[WrittenPart]] | None = None,
) -> tuple[int, list[WrittenPart]]:
    saved = save([capture(rank) for rank in range(world)])
    parts = []
    for rank in range(world):
        stored = base[1][rank].stored(base[0]) if base is not None else None
        pack = (saved.indexes[f"pack{rank}"], memoryview(saved.packs[f"pack{rank}"]))
        parts.append(write_part(run, order, writer=f"rank{rank}", packs=[pack], stored=stored))
    return commit(run, order, [part.ref for part in parts]).slot, parts


def expected() -> dict[str, Any]:
    """What a reader must find, worked out from the rules above and not from what was written."""
    found: dict[str, Any] = {"four": {}, "one": {}}
    for slot, step in ((1, 10), (2, 20), (3, 15), (4, 25)):
        found["four"][str(slot)] = {"step": step, "tensors": _told([of_four(rank, step) for rank in range(4)], step)}
    found["one"]["1"] = {"step": 1, "tensors": _told([of_one(1)], 1)}
    return found


def _told(captures: Sequence[Capture], step: int) -> dict[str, list[Any]]:
    told: dict[str, list[Any]] = {}
    for rank, capture in enumerate(captures):
        for each in capture.tensors:
            name = f"{each.name}@rank{rank}" if each.local else each.name
            when = 0 if each.name in ("frozen", "embedding") else step + (rank if each.local else 0)
            data = data_of(each.name, each.dtype, each.shape, when)
            told[name] = [each.dtype, list(each.shape), digest(data)]
    return told


if __name__ == "__main__":
    target = Path(sys.argv[1])
    make(target / "format-1")
    text = json.dumps(expected(), indent=1, ensure_ascii=False)
    (target / "format-1.json").write_text(text + "\n", encoding="utf-8")
