"""A folder whose disk forgets: record what is done to it, then see what a power cut may have left.

    watched = WatchedFolder(tmp_path)
    with watched.watching(monkeypatch):
        ...  # a `Disk` below tmp_path is written to
    for point in watched.points():
        after = watched.after_cut(point, Everything())

Theory. POSIX promises two things and no more. What was written to a file is durable once ``fsync`` of that file has
returned. What was done to the names in a folder (a file made, linked, renamed, removed) is durable once ``fsync`` of
that folder has returned. Of everything else any subset may have reached the disk when the power goes: a name without
its bytes, bytes without their name, the second of two renames without the first, a file of the right size full of
zeros. Real file systems are kinder; a program that needs them to be is broken on the next one.

A process that is killed loses nothing of what its calls have done: that is the cut after which `Everything` is left.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from perdure.store import atomic, disk, stream

__all__ = [
    "Everything",
    "Killed",
    "Nothing",
    "Only",
    "Op",
    "Point",
    "Some",
    "Survivors",
    "Tree",
    "WatchedFolder",
    "lay_out",
]

_BLOCK_BYTES = 512  # what a disk writes whole


class Killed(BaseException):
    """The process ends here: no call of it has any effect from now on, whatever it catches."""


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


@dataclass
class WatchedFolder:
    """Records what `perdure.store.disk.Disk` does to files below ``top``, which must be empty. For one thread.

    ``kill_at`` is the number of calls after which the process is dead; `revive` stands for the next process. ``fails``
    maps the number of a call (from 0, failed ones count too) to the errno with which the system refuses it.
    """

    top: str
    ops: list[Op] = field(default_factory=list)
    kill_at: int | None = None
    dead: bool = False
    calls: int = 0
    fails: Mapping[int, int] = field(default_factory=dict)
    _names: dict[int, dict[str, int]] = field(default_factory=lambda: {0: {}})
    _open: dict[int, int] = field(default_factory=dict)
    _ends: dict[int, int] = field(default_factory=dict)  # fd -> where it writes next

    @contextmanager
    def watching(self, patch: Any) -> Iterator[WatchedFolder]:
        """Put this between the store and the operating system; ``patch`` is pytest's ``monkeypatch``.

        Blobs are written by the Python twins of the C++ engines, one call a chunk.
        """
        with patch.context() as here:
            for module in (atomic, disk, stream):
                here.setattr(module, "os", self)
            here.setattr(stream, "NATIVE", False)
            here.setattr(atomic, "_rename_new", self._rename_new(atomic._rename_new))
            yield self

    def revive(self) -> None:
        """The next process begins; the files of the one before are closed."""
        self.dead, self.kill_at = False, None
        self._open.clear()
        self._ends.clear()

    def points(self, *, first: int = 0) -> Iterator[Point]:
        """Every point at which the power may go: between any two calls, and within each write."""
        for done in range(first, len(self.ops) + 1):
            yield Point(done)
            if done < len(self.ops) and len(self.ops[done].data) > 1:
                yield Point(done, torn=True)

    def after_cut(self, point: Point, survivors: Survivors) -> Tree:
        """What is in the folder after a cut at ``point``."""
        ops = self.ops[: point.done]
        if point.torn:
            torn = self.ops[point.done]
            ops = [*ops, Op("write", torn.inode, start=torn.start, data=torn.data[: len(torn.data) // 2])]
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

    # What the modules of the store find in the place of ``os``.

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if flags & os.O_CREAT:
            self._step()
        fd = os.open(path, flags, mode, dir_fd=dir_fd)
        found = self._find(path, dir_fd)
        if found is not None:
            folder, name = found
            if flags & os.O_CREAT and name not in self._names[folder]:
                self._make(folder, name, is_folder=False)
            self._open[fd] = self._names[folder][name] if name else folder
            self._ends[fd] = 0
        return fd

    def close(self, fd: int) -> None:
        self._open.pop(fd, None)
        os.close(fd)

    def mkdir(self, path: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        self._step()
        os.mkdir(path, mode, dir_fd=dir_fd)
        found = self._find(path, dir_fd)
        if found is not None:
            self._make(*found, is_folder=True)

    def makedirs(self, path: str, mode: int = 0o777, exist_ok: bool = False) -> None:
        above = os.path.dirname(path)
        if not os.path.isdir(above):
            self.makedirs(above, mode, exist_ok=True)
        if not (exist_ok and os.path.isdir(path)):
            self.mkdir(path, mode)

    def write(self, fd: int, data: Any) -> int:
        self._step()
        written = os.write(fd, data)
        if fd in self._open:
            self.ops.append(Op("write", self._open[fd], start=self._ends[fd], data=bytes(memoryview(data)[:written])))
            self._ends[fd] += written
        return written

    def fsync(self, fd: int) -> None:
        self._step()  # the real disk is left alone: that is what makes this quick
        if fd in self._open:
            self.ops.append(Op("sync", self._open[fd]))

    def unlink(self, path: str, *, dir_fd: int | None = None) -> None:
        self._step()
        os.unlink(path, dir_fd=dir_fd)
        found = self._find(path, dir_fd)
        if found is not None:
            folder, name = found
            self.ops.append(Op("remove", self._names[folder].pop(name), folder, name))

    def link(self, src: str, dst: str, *, src_dir_fd: int, dst_dir_fd: int, follow_symlinks: bool = True) -> None:
        self._step()
        os.link(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd, follow_symlinks=follow_symlinks)
        folder = self._open[dst_dir_fd]
        inode = self._names[folder][dst] = self._names[self._open[src_dir_fd]][src]
        self.ops.append(Op("link", inode, folder, dst))

    def _rename_new(self, real: Callable[[int, str, str], None]) -> Callable[[int, str, str], None]:
        def rename_new(folder: int, old: str, new: str) -> None:
            self._step()
            real(folder, old, new)
            here = self._open[folder]
            inode = self._names[here][new] = self._names[here].pop(old)
            self.ops.append(Op("rename", inode, here, new, old))

        return rename_new

    def _step(self) -> None:
        if self.dead or (self.kill_at is not None and len(self.ops) >= self.kill_at):
            self.dead = True
            raise Killed("the process ends here")
        self.calls += 1
        code = self.fails.get(self.calls - 1)
        if code is not None:
            raise OSError(code, os.strerror(code))

    def _make(self, folder: int, name: str, *, is_folder: bool) -> None:
        inode = 1 + sum(op.kind == "make" for op in self.ops)
        self._names[folder][name] = inode
        if is_folder:
            self._names[inode] = {}
        self.ops.append(Op("make", inode, folder, name, is_folder=is_folder))

    def _find(self, path: str, dir_fd: int | None) -> tuple[int, str] | None:
        """Folder and last name of ``path``; None if it is outside, and of the watched folder itself its root, ""."""
        if dir_fd is not None:
            return (self._open[dir_fd], path) if dir_fd in self._open else None
        if path != self.top and not path.startswith(f"{self.top}/"):
            return None
        *above, last = path[len(self.top) + 1 :].split("/")
        folder = 0
        for name in above:
            folder = self._names[folder][name]
        return folder, last


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
