"""Change good runs at random: bytes of any file, or what lies behind the digests, which are then made right again.

What comes of a case is a `PerdureError`, or exactly what the bytes say; `naive` is a second reader, of another hand,
that says what that is. A case is a function of its seed, so that one number brings it back.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import good
import numpy as np
from forging import Forged

from perdure.codec import decode
from perdure.codec.dtypes import DTYPES
from perdure.errors import PerdureError

__all__ = ["Fuzz", "mutated", "naive"]

NUMBERS = [
    -1,
    0,
    1,
    2,
    3,
    63,
    64,
    255,
    4095,
    4096,
    1 << 31,
    (1 << 32) - 1,
    1 << 53,
    1 << 62,
    (1 << 63) - 1,
    1 << 63,
    1 << 64,
]
TOKENS = [b"[", b"]", b"{", b"}", b'"', b",", b":", b"\\", b"null", b"true", b"1e400", b"NaN", b"-0", b"0.0", b"\x00",
          b"\xff", b"\xef\xbb\xbf", b"\r\n", b'"$"', b"__pad.0", b"\\u0000", b"\\ud800", b"[" * 200]  # fmt: skip


def mutated(chance: random.Random, data: bytes) -> bytes:
    """``data`` with one to four changes: flipped, inserted, deleted, duplicated, moved, cut, another number."""
    found = bytearray(data)
    for _ in range(chance.choice([1, 1, 1, 2, 4])):
        at = chance.randrange(len(found) + 1)
        to = min(len(found), at + chance.choice([1, 1, 2, 4, 16, 64, 1000]))
        way = chance.randrange(9)
        if way == 0 and at < len(found):
            found[at] ^= 1 << chance.randrange(8)
        elif way == 1 and at < len(found):
            found[at] = chance.randrange(256)
        elif way == 2:
            found[at:at] = chance.choice(TOKENS)
        elif way == 3:
            del found[at:to]
        elif way == 4:
            found[at:at] = found[at:to]
        elif way == 5:
            other = chance.randrange(len(found) + 1)
            piece = found[at:to]
            del found[at:to]
            found[other:other] = piece
        elif way == 6:
            del found[at:]
        elif way == 7:
            other = chance.randrange(len(found) + 1)
            found[at:to] = found[other : other + to - at]
        else:
            _number(chance, found)
    return bytes(found)


def _number(chance: random.Random, data: bytearray) -> None:
    """One of the numbers in a text becomes another one."""
    spans = []
    start = None
    for at, byte in enumerate(data[:20_000]):
        if 48 <= byte <= 57:
            start = at if start is None else start
        elif start is not None:
            spans.append((start, at))
            start = None
    if spans:
        lo, hi = chance.choice(spans)
        data[lo:hi] = str(chance.choice(NUMBERS)).encode()


def naive(folder: Path, slot: int = 2) -> dict[str, bytes]:
    """Every tensor of a commit, put together by the letter of the specification, checking nothing."""
    wholes: dict[str, tuple[np.ndarray, list[int]]] = {}
    commit = _body((folder / f"slots/{slot:010d}.json").read_bytes())
    for ref in commit["parts"]:
        data = (folder / ref["name"]).read_bytes()
        part, leaves = _body(data[: ref["top_nbytes"]]), data[ref["top_nbytes"] :]
        index = part["index"]
        packs = [(folder / pack["name"]).read_bytes() for pack in part["packs"]]
        for kind, _, _, _, start, nbytes, _ in part["leaves"]:
            for entry in json.loads(leaves[start : start + nbytes]) if kind in ("tensors", "locals") else []:
                if kind == "tensors":
                    name, dtype, shape, where, numbers = entry
                    boxes = where if isinstance(where, list) else _grid(index["layouts"][where], shape, index["ranks"])
                    boxes, stem = [(lo, hi) for _, lo, hi in boxes], name
                else:
                    name, rank, dtype, shape, boxes, numbers, _ = entry
                    stem = name = f"{name}@rank{rank}"
                width = DTYPES[dtype].itemsize
                whole, _ = wholes.setdefault(name, (np.zeros((*shape, width), np.uint8), shape))
                for (lo, hi), number in zip(boxes, numbers, strict=True):
                    if any(a == b for a, b in zip(lo, hi, strict=True)):
                        continue  # nothing to read
                    inside = not any(lo) and list(hi) == list(shape)
                    key = stem if inside else f"{stem}[{','.join(f'{a}:{b}' for a, b in zip(lo, hi, strict=True))}]"
                    piece = _entry(packs[number if number >= 0 else -1 - number], key)
                    if number < 0:
                        piece = decode(piece).tobytes()
                    block = np.frombuffer(piece, np.uint8).reshape(
                        [b - a for a, b in zip(lo, hi, strict=True)] + [width]
                    )
                    whole[tuple(slice(a, b) for a, b in zip(lo, hi, strict=True))] = block
    return {name: whole.tobytes() for name, (whole, _) in wholes.items()}


def _body(record: bytes) -> Any:
    return json.loads(record)["body"]


def _grid(grid: Any, shape: list[int], ranks: list[int]) -> list[tuple[int, list[int], list[int]]]:
    parts, first, strides = grid
    steps = [-(-extent // n) for extent, n in zip(shape, parts, strict=True)]
    found = []
    for cell in itertools.product(*map(range, parts)):
        rank = first + sum(i * stride for i, stride in zip(cell, strides, strict=True))
        lo = [i * step for i, step in zip(cell, steps, strict=True)]
        if rank in ranks:
            found.append((rank, lo, [min(a + step, n) for a, step, n in zip(lo, steps, shape, strict=True)]))
    return sorted(found)


def _entry(pack: bytes, key: str) -> bytes:
    size = int.from_bytes(pack[:8], "little")
    lo, hi = json.loads(pack[8 : 8 + size])[key]["data_offsets"]
    return pack[8 + size + lo : 8 + size + hi]


class Fuzz:
    """A run in ``folder``, made good again before each case."""

    def __init__(self, folder: Path) -> None:
        good.make(folder)
        self.folder = folder
        self.files = {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
        self.expected = good.expected(20)
        self.refused = self.accepted = 0
        self._dirty: set[Path] = set()

    def torn(self, seed: int) -> None:
        """A file is changed and nothing else: what is read is what was saved, or it is refused."""
        chance = random.Random(f"torn {seed}")
        self._restore()
        path = chance.choice(list(self.files))
        self._dirty = {path}
        path.write_bytes(mutated(chance, self.files[path]))
        found = self._read(f"torn {seed}, {path.name}")
        if found is not None and found != self.expected:
            raise AssertionError(f"torn {seed}: {path.name} was changed, and other tensors were read")

    def forged(self, seed: int) -> None:
        """What lies behind a digest is changed, and all digests are right: what is read is what the bytes say."""
        chance = random.Random(f"forged {seed}")
        self._restore()
        self._dirty = set(self.files)
        run = Forged(self.folder)
        part = chance.randrange(2)

        def change(data: bytes) -> bytes:
            return mutated(chance, data)

        ways: Mapping[str, Callable[[], None]] = {
            "commit": lambda: run.record(str(run.slot.relative_to(self.folder)), change),
            "part": lambda: run.part(change, part),
            "tensors": lambda: run.leaf("tensors", change, part),
            "locals": lambda: run.leaf("locals", change, part),
            "aliases": lambda: run.leaf("aliases", change, part),
            "values": lambda: run.leaf("values", change, part),
            "header": lambda: run.header(change, part, chance.randrange(2)),
            "pack": lambda: run.pack(change, part, chance.randrange(2)),
        }
        way = chance.choice(list(ways))
        try:
            ways[way]()
        except (ValueError, KeyError, TypeError, IndexError, AssertionError, RecursionError, OSError):
            return  # the forger cannot read it either, to make its digests right
        what = f"forged {seed}, {way} of part {part}"
        found = self._read(what)
        if found is not None and found != naive(self.folder):
            raise AssertionError(f"{what}: what was read is not what the bytes say")

    def _read(self, what: str) -> dict[str, bytes] | None:
        try:
            found = good.read_all(self.folder)
        except PerdureError:
            self.refused += 1
            return None
        except BaseException as error:
            raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
        self.accepted += 1
        return found

    def _restore(self) -> None:
        for path in self._dirty:
            path.write_bytes(self.files[path])
