"""A folder in which every call of the store is recorded, stopped, or refused: for tests of crashes and of bad disks.

watched = WatchedFolder(str(tmp_path))
with watched.watching(monkeypatch):
    ...  # a `Disk` below tmp_path is written to
for point in watched.points():
    lay_out(watched.after_cut(point, Nothing()), place)
    ...  # and opened there: `perdure.testing.power` says what a cut may leave
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from perdure.store import atomic, disk, stream
from perdure.testing.power import Op, Point, Survivors, Tree, after_cut

__all__ = ["Killed", "WatchedFolder"]


class Killed(BaseException):
    """The process ends here: no call of it has any effect from now on, whatever it catches."""


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
        return after_cut(self.ops, point, survivors)

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
