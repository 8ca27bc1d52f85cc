"""Files that appear whole and durable, or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from perdure.clock import Deadline
from perdure.errors import CallError
from perdure.memory.sqlite_files import explained_sqlite, sync_folders
from perdure.process.lock import FileLock
from perdure.store.refusals import explained

__all__ = ["locked", "publish", "sync_file", "temporary_beside", "write_whole"]


@contextmanager
def locked(path: Path, *, deadline: Deadline) -> Iterator[None]:
    """Hold the lock file ``path`` of a space.

    Raises `DeadlineExceeded` where another process does, `StorageFull` or `StorageError` where it cannot be made,
    `perdure.errors.BlobMissing` where its folder was taken away.
    """
    with explained_sqlite(path, "lock"):
        lock = FileLock.acquire(path, deadline=deadline)
    with lock:
        yield


@contextmanager
def temporary_beside(path: Path) -> Iterator[Path]:
    """A name in the folder of ``path``, which is made if need be; what is there at the end is removed."""
    with explained(str(path.parent), "make"):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = path.with_name(f".tmp-{secrets.token_hex(16)}")
    try:
        yield name
    finally:
        for each in (name, Path(f"{name}-journal"), Path(f"{name}-wal"), Path(f"{name}-shm")):
            with explained(str(each), "remove"):
                each.unlink(missing_ok=True)


def sync_file(path: Path) -> None:
    """Make the bytes of a file durable that no SQLite connection has open."""
    with explained(str(path), "sync"):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def publish(temporary: Path, path: Path, *, replace: bool) -> None:
    """Give a durable file its name, durably.

    Raises `CallError` where the name is taken and is not to be replaced.
    """
    with explained(str(path), "write"):
        if replace:
            os.rename(temporary, path)
        else:
            try:
                os.link(temporary, path)
            except FileExistsError:
                raise CallError(f"{path} exists already; give another name", file=str(path)) from None
            os.unlink(temporary)
        sync_folders(path.parent)


def write_whole(path: Path, data: bytes) -> None:
    """Write ``data`` as ``path``, in the place of what is there."""
    with temporary_beside(path) as temporary, explained(str(path), "write"):
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        publish(temporary, path, replace=True)
