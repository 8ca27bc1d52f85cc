"""What a power cut may leave of a folder, from the calls that were made upon it.

Theory. POSIX promises two things and no more. What was written to a file is durable once ``fsync`` of that file has
returned. What was done to the names in a folder (a file made, linked, renamed, removed) is durable once ``fsync`` of
that folder has returned. Of everything else any subset may have reached the disk when the power goes: a name without
its bytes, bytes without their name, the second of two renames without the first, a file of the right size full of
zeros. Real file systems are kinder; a program that needs them to be is broken on the next one.

A process that is killed loses nothing of what its calls have done: that is the cut after which `Everything` is left.
`perdure.testing.watched` records the calls.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Everything", "Nothing", "Only", "Op", "Point", "Some", "Survivors", "Tree", "after_cut", "lay_out"]

_BLOCK_BYTES = 512  # what a disk writes whole


@dataclass(frozen=True, slots=True)
class Op:
    """One call that changed something or made it durable. ``inode`` is of what it is about, ``folder`` of its names.

    ``kind`` is ``make`` (a file or folder, by ``is_folder``), ``write`` (``data`` from ``start`` on), ``sync``,
    ``rename`` (from ``old``), ``link`` or ``remove``.
    """

    kind: str
    inode: int
    folder: int = -1
    name: str = ""
    old: str = ""
    is_folder: bool = False
    start: int = 0
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Point:
    """A cut after the first ``done`` calls; ``torn``: within the next one, a write of which half was handed over."""

    done: int
    torn: bool = False


Tree = dict[str, bytes | None]
"""What lies in the folder: files by path with their bytes, folders with None."""


class Survivors(Protocol):
    """Which of the calls that no ``fsync`` has made durable count all the same."""

    def keeps(self, op: Op) -> bool:
        """Whether the names that ``op`` changed are on the disk."""
        ...

    def block(self, old: bytes, new: bytes) -> bytes:
        """What a block holds that ``new`` was written to; ``old`` is what it was (zeros where nothing was)."""
        ...


class Everything(Survivors):
    """All calls count: the process was killed, the machine lives."""

    def keeps(self, op: Op) -> bool:
        return True

    def block(self, old: bytes, new: bytes) -> bytes:
        return new


class Nothing(Survivors):
    """Only what was made durable is there."""

    def keeps(self, op: Op) -> bool:
        return False

    def block(self, old: bytes, new: bytes) -> bytes:
        return old


@dataclass
class Only(Survivors):
    """Of all that was not made durable, the names of this one call have reached the disk, before what came earlier."""

    op: Op

    def keeps(self, op: Op) -> bool:
        return op is self.op

    def block(self, old: bytes, new: bytes) -> bytes:
        return old


@dataclass
class Some(Survivors):
    """Each name and each block by the toss of a coin: ``names`` and ``blocks`` are the chances that it is there."""

    random: random.Random
    names: float = 0.5
    blocks: float = 0.5

    def keeps(self, op: Op) -> bool:
        return self.random.random() < self.names

    def block(self, old: bytes, new: bytes) -> bytes:
        return new if self.random.random() < self.blocks else old


def after_cut(made: Sequence[Op], point: Point, survivors: Survivors) -> Tree:
    """What is in the folder upon which the calls ``made`` were made, after a cut at ``point``."""
    ops = list(made[: point.done])
    if point.torn:
        torn = made[point.done]
        ops.append(Op("write", torn.inode, start=torn.start, data=torn.data[: len(torn.data) // 2]))
    last_sync = {op.inode: at for at, op in enumerate(ops) if op.kind == "sync"}
    names: dict[int, dict[str, int]] = {0: {}}
    files: dict[int, bytearray] = {}
    for at, op in enumerate(ops):
        if op.kind == "write":
            _write(files.setdefault(op.inode, bytearray()), op, at < last_sync.get(op.inode, -1), survivors)
        elif op.kind != "sync":
            if op.is_folder:
                names.setdefault(op.inode, {})
            if at < last_sync.get(op.folder, -1) or survivors.keeps(op):
                _apply(names[op.folder], op)
    tree: Tree = {}
    _collect(tree, "", 0, names, files)
    return tree


def lay_out(tree: Tree, path: str) -> None:
    """Make the folder ``path`` and all that ``tree`` says in it."""
    os.mkdir(path)
    for name, data in tree.items():
        if data is None:
            os.mkdir(f"{path}/{name}")
        else:
            with open(f"{path}/{name}", "wb") as file:
                file.write(data)


def _write(file: bytearray, op: Op, durable: bool, survivors: Survivors) -> None:
    stop = op.start + len(op.data)
    size = len(file)
    file.extend(bytes(max(0, stop - size)))
    if durable:
        file[op.start : stop] = op.data
        return
    kept = size  # a size that was not kept ends the file before the first byte that was
    for lo in range(op.start, stop, _BLOCK_BYTES):
        hi = min(lo + _BLOCK_BYTES, stop)
        old, new = bytes(file[lo:hi]), op.data[lo - op.start : hi - op.start]
        file[lo:hi] = survivors.block(old, new)
        if file[lo:hi] == new:
            kept = max(kept, hi)
    if not survivors.keeps(op):
        del file[max(kept, size) :]


def _apply(names: dict[str, int], op: Op) -> None:
    if op.kind == "rename" and names.get(op.old) == op.inode:
        del names[op.old]
    if op.kind == "remove":
        names.pop(op.name, None)
    else:
        names[op.name] = op.inode


def _collect(
    tree: Tree, inside: str, folder: int, names: dict[int, dict[str, int]], files: dict[int, bytearray]
) -> None:
    for name, inode in names[folder].items():
        if inode in names:
            tree[f"{inside}{name}"] = None
            _collect(tree, f"{inside}{name}/", inode, names, files)
        else:
            tree[f"{inside}{name}"] = bytes(files.get(inode, b""))
