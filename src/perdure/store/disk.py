"""A store in a folder, on a local disk or on a file system that all nodes see.

Names are looked up folder by folder from the root without following a symbolic link, so that no name and no planted
link leads out of it. The root itself may be reached through links. Writing is in `perdure.store.atomic`.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from perdure.errors import BlobCorrupt, CallError, StorageError
from perdure.store.api import as_bytes, check_name, check_prefix, check_span, is_name, missing, taken
from perdure.store.atomic import TEMPORARY, sync_folder, write_new
from perdure.store.io_choice import Io, uring_refusal
from perdure.store.page_cache import is_cached
from perdure.store.refusals import explained
from perdure.store.remembered import io_for
from perdure.store.spans import LARGE_BYTES, FileCut, read_span, read_tiles

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["DAY_S", "Disk"]

DAY_S = 86_400.0
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a planted pipe must not block us
_DIRECT = getattr(os, "O_DIRECT", 0)


class Disk:
    """The six verbs over the folder ``path``, which is made by the first write.

    ``io`` says how large blobs are written; None is what `perdure doctor --calibrate` found for this file system, or
    else what is right for most (`perdure.store.io_choice`). An engine that this process may not use is a `CallError`.

    >>> import tempfile
    >>> disk = Disk(tempfile.mkdtemp())
    >>> disk.put("a/b", [b"12", b"345"])
    >>> bytes(disk.read("a/b", start=1, nbytes=3)), disk.names("a/")
    (b'234', ['a/b'])
    """

    def __init__(self, path: str | os.PathLike[str], *, io: Io | None = None) -> None:
        if io is not None and io.engine == "uring" and (refusal := uring_refusal()) is not None:
            raise CallError(f"io_uring cannot be used: {refusal}; leave io out, or choose the engine 'threads'")
        self.root = os.path.realpath(path)
        self._io = io
        self._root_seen = self._root_durable = False
        self._durable_folders: set[str] = set()  # folders whose own names this process has synced

    def __repr__(self) -> str:
        return f"Disk({self.root!r})"

    def __str__(self) -> str:
        return self.root

    @property
    def io(self) -> Io:
        """How large blobs are written. Settled by the first one, or by asking."""
        if self._io is None:
            self._io = io_for(self.root)
        return self._io

    def path_of(self, name: str) -> str:
        """The path of ``name``, for messages."""
        return f"{self.root}/{check_name(name)}"

    def put(self, name: str, chunks: Iterable[Buffer]) -> None:
        if not self._write(name, chunks):
            raise taken(name, file=self.path_of(name))

    def create(self, name: str, data: Buffer) -> bool:
        return self._write(name, [data])

    def read(self, name: str, *, start: int = 0, nbytes: int | None = None, into: Buffer | None = None) -> memoryview:
        path = self.path_of(name)
        target = None if into is None else as_bytes(into)
        with self._opened(name) as (fd, folder):
            nbytes = self._check_span(name, fd, start=start, nbytes=nbytes, into=target)
            view = (_room(nbytes) if target is None else target)[:nbytes]
            with self._direct(name, folder, nbytes) as direct_fd:
                try:
                    with explained(path, "read"):
                        read_span(fd, direct_fd, start, view)
                except FileCut:  # while we read
                    self._raise_cut(name, fd, start + nbytes)
            return view

    def resident(self, name: str, at: Sequence[int]) -> int:
        """See `perdure.store.api.Resident`: what the page cache holds."""
        with self._opened(name) as (fd, _):
            return sum(is_cached(fd, start) for start in at)

    def read_digested(self, name: str, *, start: int, nbytes: int, into: Buffer, tile_bytes: int) -> bytes:
        """See `perdure.store.api.DigestedReads`: each piece is digested while it is in the processor's cache."""
        path, target = self.path_of(name), as_bytes(into)
        with self._opened(name) as (fd, folder):
            nbytes = self._check_span(name, fd, start=start, nbytes=nbytes, into=target)
            with self._direct(name, folder, nbytes) as direct_fd:
                try:
                    with explained(path, "read"):
                        return read_tiles(fd, direct_fd, start, target[:nbytes], tile_bytes)
                except FileCut:
                    self._raise_cut(name, fd, start + nbytes)

    def size(self, name: str) -> int | None:
        path = self.path_of(name)
        with self._folder_of(name) as folder:
            if folder is None:
                return None
            with explained(path, "look at"):
                try:
                    found = os.stat(name.rpartition("/")[2], dir_fd=folder, follow_symlinks=False)
                except FileNotFoundError:
                    return None
        if stat.S_ISDIR(found.st_mode):
            return None
        _check_regular(found, path)
        return found.st_size

    def names(self, prefix: str) -> list[str]:
        check_prefix(prefix)
        inside = prefix.rpartition("/")[0]
        found = [name for name, temporary in self._walk(inside, prefix) if not temporary]
        return sorted(name for name in found if name.startswith(prefix) and is_name(name))

    def delete(self, name: str) -> None:
        path = self.path_of(name)
        with self._folder_of(name) as folder:
            if folder is not None:
                with explained(path, "delete"), suppress(FileNotFoundError, IsADirectoryError):
                    os.unlink(name.rpartition("/")[2], dir_fd=folder)

    def stale_temporaries(self, *, older_than_s: float = DAY_S) -> list[str]:
        """Paths below the root of what dead writers left: temporaries of this format not written to for so long.

        Raises `CallError` for less than a day: a slow writer of a large pack is not dead.
        """
        if older_than_s < DAY_S:
            raise CallError("temporaries younger than a day may belong to a living writer; give at least 86400 s")
        limit = time.time() - older_than_s
        return sorted(path for path, temporary in self._walk("", "") if temporary and self._is_older(path, limit))

    def sweep_temporaries(self, *, older_than_s: float = DAY_S) -> list[str]:
        """Delete what `stale_temporaries` lists; return it. Never called by the store itself."""
        stale = self.stale_temporaries(older_than_s=older_than_s)
        for path in stale:
            with self._folder_of(path) as folder:
                if folder is not None:
                    with explained(f"{self.root}/{path}", "delete"), suppress(FileNotFoundError):
                        os.unlink(path.rpartition("/")[2], dir_fd=folder)
        return stale

    def leftovers(self) -> list[str]:
        """See `perdure.store.leftovers.Sweeps`."""
        return self.stale_temporaries()

    def sweep(self) -> list[str]:
        """See `perdure.store.leftovers.Sweeps`."""
        return self.sweep_temporaries()

    def _is_older(self, path: str, limit: float) -> bool:
        with self._folder_of(path) as folder, explained(f"{self.root}/{path}", "look at"):
            try:
                found = os.stat(path.rpartition("/")[2], dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:  # its writer has just finished
                return False
            return stat.S_ISREG(found.st_mode) and found.st_mtime < limit

    def _write(self, name: str, chunks: Iterable[Buffer]) -> bool:
        path = self.path_of(name)
        with self._folder_of(name, make=True) as folder:
            assert folder is not None
            last = name.rpartition("/")[2]
            written = write_new(folder, last, chunks, path=path, io=lambda: self.io)
            if not written:
                with explained(path, "look at"):
                    found = os.stat(last, dir_fd=folder, follow_symlinks=False)
                if stat.S_ISDIR(found.st_mode):
                    raise CallError(f"{path} is a folder: a name must not be a folder of another", file=path)
                _check_regular(found, path)
            return written

    @contextmanager
    def _opened(self, name: str) -> Iterator[tuple[int, int]]:
        """The file of ``name`` and its folder, both open; raise `BlobMissing` if it is not there."""
        with self._folder_of(name) as folder:
            fd = None if folder is None else self._open_file(folder, name)
            if folder is None or fd is None:
                raise missing(name, file=self.path_of(name))
            try:
                yield fd, folder
            finally:
                os.close(fd)

    @contextmanager
    def _direct(self, name: str, folder: int, nbytes: int) -> Iterator[int]:
        """The file of ``name`` opened to be read past the page cache; -1 where that is not wanted or not possible."""
        fd = -1
        if nbytes >= LARGE_BYTES and _DIRECT and self.io.direct:
            with suppress(OSError):  # EINVAL of a file system that cannot; anything else the plain descriptor meets too
                fd = os.open(name.rpartition("/")[2], _FILE | _DIRECT, dir_fd=folder)
        try:
            yield fd
        finally:
            if fd >= 0:
                os.close(fd)

    def _check_span(self, name: str, fd: int, *, start: int, nbytes: int | None, into: memoryview | None) -> int:
        path = self.path_of(name)
        with explained(path, "read"):
            blob_nbytes = os.fstat(fd).st_size
        return check_span(name, blob_nbytes, start=start, nbytes=nbytes, into=into, file=path)

    def _raise_cut(self, name: str, fd: int, wanted: int) -> NoReturn:
        file = self.path_of(name)
        self._check_span(name, fd, start=0, nbytes=wanted, into=None)
        raise StorageError(
            f"{file} ended early and is whole again: something writes to it; find out what, then read again",
            file=file,
        )

    @contextmanager
    def _folder_of(self, name: str, *, make: bool = False) -> Iterator[int | None]:
        """The open folder of ``name``; None if it does not exist. With ``make`` it is made, durably."""
        fd = self._open_root(make=make)
        try:
            here = self.root
            for part in name.split("/")[:-1]:
                if fd is None:
                    break
                inside = f"{here}/{part}"
                inner = _open_folder(fd, part, inside, make=make)
                if make and inside not in self._durable_folders:
                    # Also when somebody else made it: that process may not have synced it yet.
                    sync_folder(fd, path=inside)
                    self._durable_folders.add(inside)
                os.close(fd)
                fd, here = inner, inside
            yield fd
        finally:
            if fd is not None:
                os.close(fd)

    def _open_root(self, *, make: bool) -> int | None:
        seen = self._root_seen  # before the look: another thread may be making the folder just now
        with explained(self.root, "open"):
            try:
                fd = os.open(self.root, _FOLDER)
            except FileNotFoundError:
                if not make and not seen:
                    return None
                if seen:  # an unmounted disk: writing on would fill the disk below its mount point, reading see no run
                    raise StorageError(
                        f"the folder {self.root} has vanished; mount it again, then start again", file=self.root
                    ) from None
                os.makedirs(self.root, exist_ok=True)
                fd = os.open(self.root, _FOLDER)
            if make and not self._root_durable:
                _sync_names_of(self.root)
                self._root_durable = True
        self._root_seen = True
        return fd

    def _open_file(self, folder: int, name: str) -> int | None:
        path = self.path_of(name)
        with explained(path, "open"):
            try:
                fd = os.open(name.rpartition("/")[2], _FILE, dir_fd=folder)
            except FileNotFoundError:
                return None
            except OSError as error:
                if error.errno == errno.ELOOP:
                    raise _not_plain(path, "a symbolic link") from error
                if error.errno == errno.ENXIO:
                    raise _not_plain(path, "a socket") from error
                raise
        found = os.fstat(fd)
        try:
            if not stat.S_ISDIR(found.st_mode):
                _check_regular(found, path)
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        return None

    def _walk(self, inside: str, prefix: str) -> Iterator[tuple[str, bool]]:
        """Files below the folder ``inside`` that ``prefix`` may want, each with whether it is a temporary."""
        with self._folder_of(f"{inside}/x" if inside else "x") as folder:
            if folder is None:
                return
            with explained(f"{self.root}/{inside}", "list"), os.scandir(folder) as entries:
                found = [
                    (e.name, e.is_dir(follow_symlinks=False), e.is_file(follow_symlinks=False))
                    for e in entries
                    if not (e.is_symlink() and e.is_dir())  # never followed, and no blob either
                ]
        for last, is_folder, is_file in found:
            path = f"{inside}/{last}" if inside else last
            if is_file and TEMPORARY.match(last):
                yield path, True
            elif last.startswith("."):
                continue
            elif not is_folder:  # also what is no plain file: who reads it is told
                yield path, False
            elif path.startswith(prefix) or prefix.startswith(f"{path}/"):
                yield from self._walk(path, prefix)


def _open_folder(folder: int, part: str, path: str, *, make: bool) -> int | None:
    with explained(path, "open"):
        if make:
            with suppress(FileExistsError):
                os.mkdir(part, dir_fd=folder)
        try:
            return os.open(part, _FOLDER, dir_fd=folder)
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            if stat.S_ISLNK(os.stat(part, dir_fd=folder, follow_symlinks=False).st_mode):
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
            if make:
                raise CallError(f"{path} is a file: a name must not be a folder of another", file=path) from None
            return None


def _sync_names_of(path: str) -> None:
    """Make the names of ``path`` and of the folders above it durable, up to the mount point.

    Also when somebody else made them: that process may have died before it had synced them.
    """
    device = os.stat(path).st_dev
    above = os.path.dirname(path)
    while above != path and os.stat(above).st_dev == device:
        with suppress(PermissionError):  # whoever made what lies in there may read it
            fd = os.open(above, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        path, above = above, os.path.dirname(above)


def _room(nbytes: int) -> memoryview:
    """Memory that is not cleared first; a large blob would wait for that."""
    return np.empty(nbytes, np.uint8).data if nbytes else memoryview(bytearray())


def _check_regular(found: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise _not_plain(path, "a symbolic link" if stat.S_ISLNK(found.st_mode) else "something else")


def _not_plain(path: str, what: str) -> BlobCorrupt:
    return BlobCorrupt(
        f"{path} is not a plain file but {what}, which is never followed; put the file itself in its place, or use "
        "another copy or an older step",
        file=path,
    )
