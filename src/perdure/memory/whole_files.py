"""Files that appear whole and durable, or not at all.

Until then a file has a temporary name, beside which a lock lies that its process holds: where nobody holds it, the
process was killed, and both are swept away (`sweep`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from perdure.clock import Deadline
from perdure.errors import CallError
from perdure.memory.sqlite_files import explained_sqlite, sync_folders
from perdure.process.lock import FileLock
from perdure.store.refusals import explained

__all__ = ["locked", "publish", "sweep", "sync_file", "temporary_beside", "write_whole"]

_LOCK: Final = ".lock"
_LOOK_S: Final = 0.02


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
    name, lock = _locked_name(path)
    try:
        yield name
    finally:
        _remove(name)
        os.close(lock)


def sweep(folders: Iterable[Path], *, wait_s: float = 0.0) -> list[Path]:
    """Remove what killed processes left half-written in ``folders``, not below them.

    Returns the temporary files that a process is still at after ``wait_s`` seconds.
    """
    until = time.monotonic() + wait_s
    busy: list[Path] = []
    for lock in [each for folder in folders for each in sorted(folder.glob(f".tmp-*{_LOCK}"))]:
        while not (done := _swept(lock)) and time.monotonic() < until:
            time.sleep(_LOOK_S)
        busy += [] if done else [lock.with_name(lock.name.removesuffix(_LOCK))]
    return busy


def _locked_name(path: Path) -> tuple[Path, int]:
    """A new temporary name in the folder of ``path``, and the descriptor of its lock."""
    while True:
        name = path.with_name(f".tmp-{secrets.token_hex(16)}")
        lock = f"{name}{_LOCK}"
        with explained(lock, "make"):
            fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.stat(lock).st_ino == os.fstat(fd).st_ino:  # nobody swept it in that moment
                return name, fd
        os.close(fd)


def _swept(lock: Path) -> bool:
    """Sweep one file away with its lock, unless a process holds that."""
    try:
        fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:  # it is done, or not ours
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove(lock.with_name(lock.name.removesuffix(_LOCK)))
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


def _remove(name: Path) -> None:
    """Remove a temporary file and what lies beside it, the lock last."""
    for each in ("", "-journal", "-wal", "-shm", _LOCK):
        with explained(f"{name}{each}", "remove"):
            Path(f"{name}{each}").unlink(missing_ok=True)


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
