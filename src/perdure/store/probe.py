"""Try on a folder what a store needs of its file system, for real: claims of documentation are worth less.

Files of the names that a store sweeps (``.tmp-...``) are made and removed; nothing else is touched.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from perdure.store import atomic
from perdure.store.refusals import explained

__all__ = ["Probe", "probe"]

_PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Probe:
    """What the file system of a folder does: None where it does it, else why not, in the kernel's words.

    ``rename``: rename without replacing; ``link``: hard links that refuse a taken name; ``direct``: writes past the
    page cache; ``sync``: making names durable; ``lock``: flock.
    """

    rename: str | None
    link: str | None
    sync: str | None
    direct: str | None
    lock: str | None


def probe(folder: str) -> Probe:
    """Try them on the existing ``folder``; raise `StorageError` if no file can be written there at all."""
    with explained(folder, "write to"):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with _file(fd):
                pass
            return Probe(
                rename=_why_not(lambda: _rename(fd)),
                link=_why_not(lambda: _link(fd)),
                sync=_why_not(lambda: os.fsync(fd)),
                direct=_why_not(lambda: _direct(fd)),
                lock=_why_not(lambda: _lock(fd)),
            )
        finally:
            os.close(fd)


def _why_not(attempt: Callable[[], None]) -> str | None:
    try:
        attempt()
    except OSError as error:
        return error.strerror or str(error)
    return None


@contextmanager
def _file(folder: int) -> Iterator[tuple[str, int]]:
    name = f".tmp-{secrets.token_hex(16)}"
    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        os.write(fd, b"perdure\n")
        yield name, fd
    finally:
        os.close(fd)
        with suppress(FileNotFoundError):  # it was renamed
            os.unlink(name, dir_fd=folder)


def _must_refuse(attempt: Callable[[], None]) -> None:
    """Raise unless ``attempt`` finds the name taken: a file system that replaces silently cannot commit."""
    try:
        attempt()
    except FileExistsError:
        return
    raise OSError(errno.EIO, "it replaced a file that it must not replace")


def _rename(folder: int) -> None:
    with _file(folder) as (one, _), _file(folder) as (other, _):
        _must_refuse(lambda: atomic._rename_new(folder, one, other))
        os.unlink(other, dir_fd=folder)
        atomic._rename_new(folder, one, other)


def _link(folder: int) -> None:
    with _file(folder) as (one, _), _file(folder) as (other, _):
        _must_refuse(lambda: os.link(one, other, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False))
        os.unlink(other, dir_fd=folder)
        os.link(one, other, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)


def _direct(folder: int) -> None:
    with _file(folder) as (name, _), mmap.mmap(-1, _PAGE_BYTES) as page:
        flag = getattr(os, "O_DIRECT", None)
        if flag is None:
            raise OSError(errno.ENOSYS, "this system has no O_DIRECT")
        fd = os.open(name, os.O_RDWR | flag | os.O_CLOEXEC, dir_fd=folder)
        try:
            os.pwrite(fd, page, 0)
            os.preadv(fd, [page], 0)
        finally:
            os.close(fd)


def _lock(folder: int) -> None:
    with _file(folder) as (name, fd):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        other = os.open(name, os.O_RDWR | os.O_CLOEXEC, dir_fd=folder)
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        finally:
            os.close(other)
        raise OSError(errno.ENOLCK, "two holders got the same lock")
